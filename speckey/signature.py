"""Everything about a call that is not a size: the structure, types and values of its arguments, and
the state of torch around it.  Also lists the tensors whose sizes may vary, in a fixed order.

Knows nothing of thunder, entries or tables.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

import attrs
import torch

from speckey.guards import Path, freeze

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


@attrs.define
class Description:
    """One call: its signature, and the tensors whose sizes may vary.

    ``paths`` (how each of ``tensors`` is found in the arguments) and ``structured`` (the paths of all
    that the signature covers) are filled when asked for only.  ``cacheable`` is False for arguments
    that change by being used, such as generators.
    """

    signature: tuple
    tensors: list[torch.Tensor]
    paths: list[Path]
    structured: set[Path]
    cacheable: bool = True

    def sizes(self) -> dict[str, int]:
        """The size of every dimension by its name in expressions (``s{tensor}_{dim}``)."""
        return {f"s{i}_{d}": int(n) for i, t in enumerate(self.tensors) for d, n in enumerate(t.shape)}

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(t.shape) for t in self.tensors)


def describe(args: tuple, kwargs: dict[str, Any], *, with_paths: bool = False) -> Description:
    walk = _Walk(with_paths)
    positional = walk.sequence(args, ("args",))
    keyword = walk.mapping(kwargs, ("kwargs",))
    return Description((positional, keyword), walk.tensors, walk.paths, walk.structured, walk.cacheable)


_CONSTANT_TYPES = (
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    enum.Enum,
    type(NotImplemented),
)


class _Walk:
    def __init__(self, with_paths: bool) -> None:
        self.with_paths = with_paths
        self.tensors: list[torch.Tensor] = []
        self.paths: list[Path] = []
        self.structured: set[Path] = set()
        self.cacheable = True
        self._met: dict[int, int] = {}  # containers on the way, to tell shared from equal ones

    def value(self, value: Any, path: Path) -> object:
        if self.with_paths:
            self.structured.add(path)
        kind = type(value)
        if kind is torch.Tensor:
            return self._tensor(value, path)
        if value is None or value is Ellipsis:
            return value
        if kind is bool or kind is int or kind is str or kind is bytes:
            return (kind, value)
        if kind is float:
            return (float, struct.pack("d", value))  # NaN equals itself, 0.0 is not -0.0
        if kind is complex:
            return (complex, struct.pack("dd", value.real, value.imag))
        if isinstance(value, torch.Tensor):
            return self._unusual_tensor(value)
        if isinstance(value, (tuple, list)):
            return self._shared(value) or (kind, self.sequence(value, path), self._extra(value, path))
        if isinstance(value, dict):
            return self._shared(value) or (kind, self.mapping(value, path), self._extra(value, path))
        if isinstance(value, _CONSTANT_TYPES):
            return (kind, value)
        if kind is slice:
            return (slice, freeze(value))
        if isinstance(value, (set, frozenset)):
            return (kind, freeze(value))
        if isinstance(value, (int, float, complex, str, bytes)):  # subclasses: numpy scalars, IntEnum
            return (kind, repr(value), self._extra(value, path))
        if numpy is not None and isinstance(value, numpy.ndarray):
            return (kind, value.shape, value.dtype.str, value.tobytes())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = tuple(f.name for f in dataclasses.fields(value))
            if getattr(value, "__dict__", {}).keys() == set(names):
                return self._shared(value) or (
                    kind,
                    tuple((n, self.value(value.__dict__[n], ("attr", path, n))) for n in names),
                )
        if isinstance(value, Iterator):
            self.cacheable = False
        return self._opaque(value, path)

    def sequence(self, values: Sequence, path: Path) -> tuple:
        # tuple.__iter__ and list.__iter__: a subclass may lie about its items.
        items = tuple.__iter__(values) if isinstance(values, tuple) else list.__iter__(values)
        return tuple(self.value(v, ("item", path, i)) for i, v in enumerate(items))

    def mapping(self, values: dict, path: Path) -> tuple:
        # The order of keys is part of it: a program may iterate.
        return tuple((freeze(k), self.value(v, ("item", path, k))) for k, v in dict.items(values))

    def _shared(self, value: object) -> tuple | None:
        """A container that was met before in this call: a program may see that it is the same one."""
        new = len(self._met)
        first = self._met.setdefault(id(value), new)
        return None if first == new else ("same as", first)

    def _extra(self, value: object, path: Path) -> object:
        """What an instance of a subclass of a container carries besides its items."""
        extra = getattr(value, "__dict__", None)
        return freeze(extra) if extra else None

    def _opaque(self, value: object, path: Path) -> object:
        self.structured.discard(path)  # what is read from inside is guarded, one read at a time
        if isinstance(value, (FunctionType, BuiltinFunctionType, ModuleType, type)):
            return Identity(value)
        return (type(value), Identity(value))

    def _tensor(self, tensor: torch.Tensor, path: Path) -> object:
        grad = tensor.grad if tensor.requires_grad and tensor.is_leaf else None
        if grad is not None or tensor.layout is not torch.strided or tensor.__dict__ or tensor.is_quantized:
            return self._unusual_tensor(tensor)
        self.tensors.append(tensor)
        if self.with_paths:
            self.paths.append(path)
        return (type(tensor), tensor.dtype, tensor.device, tensor.requires_grad, tensor.dim())

    def _unusual_tensor(self, tensor: torch.Tensor) -> object:
        """Tensors whose sizes stay fixed: parameters, subclasses, sparse ones, leaves with a gradient."""
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
            None if grad is None else self._unusual_tensor(grad),
        )


def _shape(tensor: torch.Tensor) -> object:
    try:
        return tuple(int(n) for n in tensor.shape)
    except (RuntimeError, TypeError):  # nested tensors have no one shape
        return Identity(tensor)


class Environment(NamedTuple):
    """The state of torch that tracing looks at, besides the arguments."""

    grad_enabled: bool
    inference_mode: bool
    default_dtype: torch.dtype
    default_device: torch.device
    autocast_cpu: torch.dtype | None
    autocast_cuda: torch.dtype | None


def environment() -> Environment:
    return Environment(
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None,
        torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None,
    )


def alias_groups(tensors: Iterable[tuple[int, torch.Tensor]]) -> str:
    """Which of the numbered tensors share storage: members joined by commas, groups by hyphens."""
    groups: dict[int, list[str]] = {}
    for position, tensor in tensors:
        if tensor.layout is torch.strided and tensor.numel():  # an empty tensor has no memory to share
            groups.setdefault(tensor.untyped_storage().data_ptr(), []).append(str(position))
    return "-".join(",".join(group) for group in groups.values() if len(group) > 1)
