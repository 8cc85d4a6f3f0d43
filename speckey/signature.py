"""Everything about a call that is not a size: the structure, types and values of its arguments, and
the state of torch around it.

A signature is a list of answers.  Which question comes next depends on the answers before it only,
so that calls with equal answers were asked the same, and questions can be laid out as a tree.
Also lists the tensors whose sizes may vary, in the order in which they are met.

Knows nothing of thunder, entries or tables.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import attrs
import torch

from speckey import torch_private
from speckey.guards import CONTENT_TYPES, Path, bare_text, freeze

try:
    import numpy
except ImportError:  # torch works without it
    numpy = None


class Identity:
    """An object that is told apart by identity, held weakly where its type allows."""

    __slots__ = ("_id", "_ref")

    def __init__(self, value: object) -> None:
        self._id = id(value)
        try:
            self._ref = weakref.ref(value)
        except TypeError:
            self._ref = lambda value=value: value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity) or self._id != other._id:
            return False
        value = self._ref()
        return value is not None and value is other._ref()

    def __hash__(self) -> int:
        return self._id

    def __repr__(self) -> str:
        return f"<{type(self._ref()).__name__}>"


# -- questions -------------------------------------------------------------------------------------


@attrs.frozen
class Question:
    """``kind`` of the value at ``path``; for "same as", which of ``others`` it is.

    Questions about the state of torch have no path.
    """

    kind: str
    path: Path = ()
    others: tuple[Path, ...] = ()

    def ask(self, fetch: Callable[[Path], Any]) -> object:
        """The slow and simple way to ask."""
        if self.kind == "same as":
            return same_as(fetch(self.path), [fetch(p) for p in self.others])
        if self.path:
            return ABOUT_VALUES[self.kind](fetch(self.path))
        return ABOUT_TORCH[self.kind]()


def keys(mapping: dict) -> tuple:
    """Its keys in order (a program may iterate); strings as they are, others frozen."""
    return tuple([k if type(k) is str else freeze(k) for k in mapping])


def bits(number: float | complex) -> bytes:
    """NaN equals itself, 0.0 is not -0.0."""
    return struct.pack("d", number) if type(number) is float else struct.pack("dd", number.real, number.imag)


def same_as(value: object, others: Iterable[object]) -> int | None:
    return next((i for i, other in enumerate(others) if other is value), None)


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether nothing but its sizes and metadata can be told apart."""
    return tensor.layout is torch.strided and not tensor.__dict__


def has_no_gradient(tensor: torch.Tensor) -> bool:
    return not tensor.is_leaf or tensor.grad is None


def tensor_details(tensor: torch.Tensor) -> tuple:
    """Of tensors whose sizes stay fixed: parameters, subclasses, sparse ones, leaves with a gradient."""
    grad = tensor.grad if tensor.requires_grad and tensor.is_leaf else None
    return (
        type(tensor),
        tensor.dtype,
        tensor.device,
        tensor.requires_grad,
        tensor.layout,
        tensor.is_leaf,
        tensor.is_quantized,
        _shape(tensor),
        freeze(tensor.__dict__),
        None if grad is None else tensor_details(grad),
    )


def _shape(tensor: torch.Tensor) -> object:
    try:
        return tuple(int(n) for n in tensor.shape)
    except (RuntimeError, TypeError, AttributeError):  # nested tensors have no one shape
        return Identity(tensor)


def extras(value: object) -> object:
    """What an instance of a subclass of a container or number carries besides its content."""
    extra = getattr(value, "__dict__", None)
    return freeze(extra) if extra else None


def summary(value: Any) -> object:
    """A hashable stand-in for what is not looked into piece by piece."""
    if isinstance(value, _CONSTANT_TYPES):
        return freeze(value)
    if isinstance(value, (slice, set, frozenset)):
        return freeze(value)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return freeze(value)
    return (bare_text(value), extras(value))  # subclasses of numbers and strings: numpy scalars, IntEnum


def has_fields_only(value: object) -> bool:
    """Of a dataclass: whether its attributes are its fields."""
    return getattr(value, "__dict__", {}).keys() == {f.name for f in dataclasses.fields(value)}  # type: ignore[arg-type]


ABOUT_VALUES: dict[str, Callable[[Any], object]] = {
    "type": type,
    "length": len,
    "keys": keys,
    "value": lambda v: v,
    "bits": bits,
    "ordinary": is_ordinary,
    "dtype": lambda t: t.dtype,
    "device": lambda t: t.device,
    "requires grad": lambda t: t.requires_grad,
    "no gradient": has_no_gradient,
    "rank": lambda t: t.dim(),
    "details": tensor_details,
    "extras": extras,
    "summary": summary,
    "fields": has_fields_only,
    "identity": Identity,
    "content": freeze,
    "no grad sync": lambda fn: False,  # set by dispatch, which knows of thunder
}


def autocast() -> tuple[torch.dtype | None, torch.dtype | None] | None:
    """What autocast computes in on the CPU and on CUDA devices; None when it is off for both."""
    dtypes = tuple(torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None for d in ("cpu", "cuda"))
    return None if dtypes == (None, None) else dtypes  # type: ignore[return-value]


def default_device() -> torch.device | None:
    """The default device; None for the CPU."""
    if not torch_private.default_device_may_differ():
        return None
    device = torch.get_default_device()
    return None if device == torch.device("cpu") else device


# The state of torch that tracing looks at, besides the arguments.
ABOUT_TORCH: dict[str, Callable[[], object]] = {
    "grad mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "default dtype": torch.get_default_dtype,
    "default device": default_device,
    "autocast": autocast,
}


# -- descriptions ----------------------------------------------------------------------------------


@attrs.define
class Description:
    """One call: its signature, and the tensors whose sizes may vary.

    Attributes:
        answers: the questions that were asked, with their answers.
        tensors: in the order in which they were met.
        paths: how each of ``tensors`` is found in the arguments.
        numbers: the ints and floats that may be withheld from tracing, in the order in which they were met:
            arguments and items of tuples.
        number_paths: how each of ``numbers`` is found in the arguments.
        structured: the paths of all that the signature covers.
        cacheable: False for arguments that change by being used, such as generators.
    """

    answers: list[tuple[Question, object]] = attrs.field(factory=list)
    tensors: list[torch.Tensor] = attrs.field(factory=list)
    paths: list[Path] = attrs.field(factory=list)
    numbers: list[int | float] = attrs.field(factory=list)
    number_paths: list[Path] = attrs.field(factory=list)
    structured: set[Path] = attrs.field(factory=set)
    cacheable: bool = True

    @property
    def signature(self) -> tuple:
        """Equal for two calls when all answers are."""
        return tuple([answer for _, answer in self.answers])

    def answers_without(self, numbers: Collection[int]) -> list[tuple[Question, object]]:
        """The answers but for those about the values of some ``numbers``, given by their positions."""
        paths = {self.number_paths[i] for i in numbers}
        return [
            (question, answer)
            for question, answer in self.answers
            if question.kind not in ("value", "bits") or question.path not in paths
        ]

    def structure(self) -> tuple:
        """Equal for two calls that differ in sizes and numbers only."""
        return tuple([answer for _, answer in self.answers_without(range(len(self.numbers)))])

    def answer(self, kind: str) -> Any:
        """The answer to the first question of this kind."""
        return next(answer for question, answer in self.answers if question.kind == kind)

    def sizes(self) -> dict[str, int | float]:
        """Sizes and numbers by their names in expressions (``s{tensor}_{dim}`` and ``n{number}``)."""
        sizes = {f"s{i}_{d}": int(n) for i, t in enumerate(self.tensors) for d, n in enumerate(t.shape)}
        return {**sizes, **{f"n{i}": n for i, n in enumerate(self.numbers)}}

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(t.shape) for t in self.tensors)


def describe(args: tuple, kwargs: dict[str, Any], fn: Any = None) -> Description:
    """Ask everything about a call.  ``fn`` is the function or module that is called."""
    walk = _Walk()
    for kind, ask in ABOUT_TORCH.items():
        walk.answers.append((Question(kind), ask()))
    if isinstance(fn, torch.nn.Module):
        walk.ask("no grad sync", fn, ("fn",))
    walk.items(args, ("args",))
    walk.mapping(kwargs, ("kwargs",))
    if any(question.kind == "same as" and answer is not None for question, answer in walk.answers):
        walk.numbers, walk.number_paths = [], []  # another container may hold the tuple that a number is in
    return Description(
        walk.answers, walk.tensors, walk.paths, walk.numbers, walk.number_paths, walk.structured, walk.cacheable
    )


_CONSTANT_TYPES = (
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    enum.Enum,
    type(NotImplemented),
)


class _Walk:
    def __init__(self) -> None:
        self.answers: list[tuple[Question, object]] = []
        self.tensors: list[torch.Tensor] = []
        self.paths: list[Path] = []
        self.numbers: list[int | float] = []
        self.number_paths: list[Path] = []
        self.structured: set[Path] = set()
        self.cacheable = True
        self._tuples: set[Path] = {("args",), ("kwargs",)}  # containers that can be built anew unnoticed
        self._met: list[tuple[Path, object]] = []  # containers on the way, to tell shared from equal ones

    def ask(self, kind: str, value: Any, path: Path) -> Any:
        answer = ABOUT_VALUES[kind](value)
        self.answers.append((Question(kind, path), answer))
        return answer

    def value(self, value: Any, path: Path) -> None:
        kind = self.ask("type", value, path)
        self.structured.add(path)
        if kind is torch.Tensor:
            self.tensor(value, path)
        elif value is None or value is Ellipsis:
            pass
        elif kind in (bool, int, str, bytes, float, complex):
            self.ask("bits" if kind in (float, complex) else "value", value, path)
            if (kind is int or kind is float) and path[1] in self._tuples:
                self.numbers.append(value)
                self.number_paths.append(path)
        elif isinstance(value, torch.Tensor):
            self.ask("details", value, path)
        elif isinstance(value, (tuple, list, dict)):
            self.container(value, kind, path)
        elif isinstance(value, (*_CONSTANT_TYPES, slice, set, frozenset, int, float, complex, str, bytes)) or (
            numpy is not None and isinstance(value, numpy.ndarray)
        ):
            self.ask("summary", value, path)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type) and self.ask("fields", value, path):
            if not self.is_shared(value, path):
                for field in dataclasses.fields(value):
                    self.value(value.__dict__[field.name], ("attr", path, field.name))
        else:
            self.opaque(value, path)

    def container(self, value: Any, kind: type, path: Path) -> None:
        if not is_read_as_usual(kind):
            self.opaque(value, path)
        elif not self.is_shared(value, path):
            if kind is tuple and path[1] in self._tuples:
                self._tuples.add(path)
            if isinstance(value, dict):
                self.mapping(value, path)
            else:
                self.items(value, path)
            if kind not in (tuple, list, dict):
                self.ask("extras", value, path)

    def items(self, values: tuple | list, path: Path) -> None:
        self.ask("length", values, path)
        for i, value in enumerate(values):
            self.value(value, ("item", path, i))

    def mapping(self, values: dict, path: Path) -> None:
        self.ask("keys", values, path)
        for key in values:
            self.value(values[key], ("item", path, key))

    def is_shared(self, value: object, path: Path) -> bool:
        """A container that was met before in this call: a program may see that it is the same one."""
        answer = None
        if self._met:
            answer = same_as(value, (other for _, other in self._met))
            self.answers.append((Question("same as", path, tuple(p for p, _ in self._met)), answer))
        if answer is None:
            self._met.append((path, value))
        return answer is not None

    def opaque(self, value: Any, path: Path) -> None:
        self.structured.discard(path)  # what is read from inside is guarded, one read at a time
        if isinstance(value, Iterator) and not isinstance(value, (FunctionType, BuiltinFunctionType, ModuleType, type)):
            self.cacheable = False
        self.ask("identity", value, path)
        if isinstance(value, CONTENT_TYPES):
            self.ask("content", value, path)

    def tensor(self, tensor: torch.Tensor, path: Path) -> None:
        fixed = not self.ask("ordinary", tensor, path)
        if not fixed:
            self.ask("dtype", tensor, path)
            self.ask("device", tensor, path)
            fixed = self.ask("requires grad", tensor, path) and not self.ask("no gradient", tensor, path)
        if fixed:
            self.ask("details", tensor, path)
        else:
            self.ask("rank", tensor, path)
            self.tensors.append(tensor)
            self.paths.append(path)


_KNOWN_SUBCLASSES = (OrderedDict, torch.Size)
_READ_AS_USUAL: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()
_READERS = ("__getitem__", "__iter__", "__len__", "__contains__", "__missing__", "keys", "values", "items", "get")


def is_read_as_usual(kind: type) -> bool:
    """Whether a subclass of tuple, list or dict gives out its items as they do.

    One that does not, or makes up missing ones, is told apart by identity and looked into read by read.
    """
    known = _READ_AS_USUAL.get(kind)
    if known is None:
        base = next(b for b in kind.__mro__ if b in (tuple, list, dict, *_KNOWN_SUBCLASSES))
        known = all(getattr(kind, name, None) is getattr(base, name, None) for name in _READERS)
        _READ_AS_USUAL[kind] = known
    return known


def alias_groups(tensors: Iterable[tuple[int, torch.Tensor]]) -> str:
    """Which of the numbered tensors share storage: members joined by commas, groups by hyphens."""
    groups: dict[int, list[str]] = {}
    for position, tensor in tensors:
        if tensor.layout is torch.strided and tensor.numel():  # an empty tensor has no memory to share
            groups.setdefault(tensor.untyped_storage().data_ptr(), []).append(str(position))
    return "-".join(",".join(group) for group in groups.values() if len(group) > 1)
