"""Values that a program reads from outside its arguments, and whether they are still the same.

A guard compares numbers and strings by value, plain containers by their content, anything else by
identity.  ``PathCode`` turns paths into Python statements, so that objects on the way to many guards
are fetched once.  Knows nothing of thunder.
"""

from __future__ import annotations

import copy
import enum
import keyword
import struct
import sys
from array import array
from collections import deque
from collections.abc import Mapping
from types import BuiltinMethodType, FunctionType, MappingProxyType, MethodType, MethodWrapperType
from typing import Any, TypeAlias

import attrs
import torch

try:
    import numpy
except ImportError:  # torch works without it
    numpy = None

# How to get at a value: ("fn",) the compiled function or module, ("args",), ("kwargs",),
# ("object", Box), ("attr", path, name) or ("item", path, key).
Path: TypeAlias = tuple[Any, ...]


@attrs.frozen(eq=False)
class Box:
    """An object as part of a path, compared by identity."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Presence(enum.Enum):
    """What ``hasattr`` said, where the value itself was not read."""

    ABSENT = 0
    PRESENT = 1


_CONTAINER_LIMIT = 100_000  # beyond, only identity and length are compared
_DEPTH_LIMIT = 50


def freeze(value: object, parent: object = None) -> object:
    """A hashable stand-in that is equal as long as a program cannot tell ``value`` apart.

    Containers are looked into (with their lengths, keys and order); tensors in them count by type, since
    those that a program reads are inputs with checks of their own.
    """
    return _freeze(value, parent, 0, set())


_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_VIEWS = tuple(map(type, ({}.keys(), {}.values(), {}.items())))
_CONTAINERS = (tuple, list, dict, set, frozenset, deque, MappingProxyType, *_VIEWS)
_BUFFERS = (bytearray, array, memoryview)
_NUMBERS = (int, float, complex, str, bytes)
CONTENT_TYPES = (deque, MappingProxyType, *_BUFFERS, *_VIEWS)  # beside tuple, list, dict and set


def _freeze(value: object, parent: object, depth: int, open_: set[int]) -> object:
    kind = type(value)
    if value is None or kind is bool or value is Ellipsis:
        return value if kind is not bool else (bool, value)
    if kind is int or kind is str or kind is bytes:
        return (kind, value)
    if kind is float:
        return (float, struct.pack("d", value))
    if kind is complex:
        return (complex, struct.pack("dd", value.real, value.imag))
    if isinstance(value, enum.Enum):
        return Box(value)  # its class may have an __eq__ of its own
    if isinstance(value, _CONSTANTS):
        return (kind, value)
    if kind is slice:
        return (slice, *(_freeze(v, None, depth + 1, open_) for v in (value.start, value.stop, value.step)))
    if isinstance(value, _CONTAINERS):
        return _freeze_container(value, depth, open_)
    if isinstance(value, _NUMBERS):
        return (kind, bare_text(value))
    if isinstance(value, _BUFFERS):
        return (kind, bytes(value))
    if isinstance(value, torch.Tensor):
        return (torch.Tensor, kind)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return (kind, value.shape, value.dtype.str, value.tobytes())
    if kind is FunctionType:
        return _freeze_function(value, depth, open_)
    if isinstance(value, (MethodType, BuiltinMethodType, MethodWrapperType)):
        # Made anew on every access: what counts is the function, and whose method it is.
        owner, function = value.__self__, getattr(value, "__func__", None)
        code = _freeze(function, None, depth + 1, open_) if type(function) is FunctionType else Box(function)
        return (kind, "self" if owner is parent else Box(owner), code, value.__name__)
    return Box(value)


def bare_text(value: object) -> str:
    """What a number or string is, whatever its class makes of it."""
    base = next(b for b in _NUMBERS if isinstance(value, b))
    return base.__repr__(value)  # type: ignore[arg-type]


def _freeze_function(function: Any, depth: int, open_: set[int]) -> object:
    """Code and defaults of a function may be exchanged, as when a notebook reloads a module."""
    if is_library(function) or depth > _DEPTH_LIMIT or id(function) in open_:
        return Box(function)
    open_.add(id(function))
    try:
        defaults = [_freeze(v, None, depth + 1, open_) for v in (function.__defaults__, function.__kwdefaults__)]
    finally:
        open_.discard(id(function))
    return (FunctionType, Box(function), Box(function.__code__), *defaults)


def _freeze_container(value: Any, depth: int, open_: set[int]) -> object:
    kind = type(value)
    if len(value) > _CONTAINER_LIMIT or depth > _DEPTH_LIMIT or id(value) in open_:
        return (kind, len(value), Box(value))
    open_.add(id(value))
    try:
        if isinstance(value, (dict, MappingProxyType)):
            items = tuple(
                (_freeze(k, None, depth + 1, open_), _freeze(v, None, depth + 1, open_)) for k, v in value.items()
            )
        else:  # sets too: equal ones may be gone through in another order
            items = tuple(_freeze(v, None, depth + 1, open_) for v in value)
    finally:
        open_.discard(id(value))
    return (kind, items, getattr(value, "maxlen", None)) if isinstance(value, deque) else (kind, items)


# Reason for not guarding what is read off these: it does not change while a program runs, and a model
# reads hundreds of names.  A program that patches torch or the standard library between calls is told so
# in the documented limits.
_LIBRARIES = frozenset(sys.stdlib_module_names) | {"torch", "thunder", "builtins", "numpy"}


def is_library_name(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _LIBRARIES and module != "__main__"


def is_library(definition: Any) -> bool:
    """Whether a class or function is one of a library's, which nobody redefines.

    Those of a program that is executed without a ``__name__`` are told to be of ``builtins``.
    """
    module = getattr(definition, "__module__", None)
    if module == "builtins":
        made_in_python = isinstance(definition, type) and definition.__flags__ & HEAP_TYPE
        return not (made_in_python or isinstance(definition, FunctionType))
    return is_library_name(module)


# Read by name only, and each name that is read has a guard of its own: whether the whole is the same
# does not matter.  (The cells of a closure cannot be exchanged; their contents are guarded.)
NAMESPACES = frozenset(["__globals__", "__dict__", "__builtins__", "__closure__"])


HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def has_own_class(value: object) -> bool:
    """Whether ``value.__class__`` may be set: not of modules, classes and what is written in C."""
    kind = type(value)
    return bool(kind.__flags__ & HEAP_TYPE) and hasattr(value, "__dict__") and not isinstance(value, type)


@attrs.frozen
class TensorMetadata:
    """What a program compiled for a tensor of fixed sizes relies on."""

    kind: type
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    layout: torch.layout

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorMetadata:
        return cls(type(tensor), tuple(tensor.shape), tensor.dtype, tensor.device, tensor.requires_grad, tensor.layout)

    def matches(self, tensor: object) -> bool:
        return (
            type(tensor) is self.kind
            and tensor.shape == self.shape
            and tensor.dtype is self.dtype
            and tensor.requires_grad is self.requires_grad
            and tensor.device == self.device
            and tensor.layout is self.layout
        )


@attrs.frozen
class Guard:
    """The value at ``path`` must freeze to ``frozen`` (or be absent); ``where`` is the user's line that read it."""

    path: Path
    frozen: object
    where: str = attrs.field(default="", eq=False)

    def holds(self, fn: Any, args: tuple, kwargs: dict) -> bool:
        """The slow and simple way to ask; for reports."""
        try:
            parent = fetch(self.path[1], fn, args, kwargs) if self.path[0] in ("attr", "item") else None
            value = fetch(self.path, fn, args, kwargs)
        except Exception:
            return self.frozen is Presence.ABSENT
        if self.frozen is Presence.PRESENT:
            return True
        if isinstance(self.frozen, TensorMetadata):
            return self.frozen.matches(value)
        return self.frozen is not Presence.ABSENT and freeze(value, parent) == self.frozen

    @classmethod
    def presence(cls, path: Path, *, there: bool, where: str = "") -> Guard:
        return cls(path, Presence.PRESENT if there else Presence.ABSENT, where)

    @classmethod
    def tensor(cls, path: Path, tensor: torch.Tensor, where: str = "") -> Guard:
        return cls(path, TensorMetadata.of(tensor), where)


def fetch(path: Path, fn: Any, args: tuple, kwargs: dict) -> Any:
    """The value at a path, for a call of ``fn`` with these arguments. Raises what getting there raises."""
    kind = path[0]
    if kind == "object":
        return path[1].value
    if kind in ("attr", "item"):
        parent = fetch(path[1], fn, args, kwargs)
        return getattr(parent, path[2]) if kind == "attr" else parent[path[2]]
    return {"fn": fn, "args": args, "kwargs": kwargs}[kind]


def module_tensor_name(path: Path) -> str | None:
    """``layers.0.weight`` for the path of that parameter or buffer of the compiled module, else None."""
    names: list[str] = []
    expected: tuple[str, ...] = ("_parameters", "_buffers")
    while path[0] == "item" and path[1][0] == "attr" and path[1][2] in expected:
        names.insert(0, str(path[2]))
        path, expected = path[1][1], ("_modules",)
    return ".".join(names) if names and path == ("fn",) else None


def module_path(name: str) -> Path:
    """The path of the submodule ``layers.0`` of the compiled module."""
    path: Path = ("fn",)
    for part in name.split("."):
        path = ("item", ("attr", path, "_modules"), part)
    return path


class PathCode:
    """Python statements that fetch the values at paths, each part of a path once.

    Text is made of fixed words and numbered names only; whatever comes from the program (keys,
    constants) is bound by name in ``constants``.  An attribute name is written out when it is an
    identifier.
    """

    def __init__(self, indent: int = 1) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        self.indent = indent
        self._names: dict[Path, str] = {("fn",): "fn", ("args",): "args", ("kwargs",): "kwargs"}

    def write(self, line: str) -> None:
        self.lines.append(" " * self.indent + line)

    def nested(self) -> PathCode:
        """The same text, one step further in; what is fetched there is not known outside."""
        inner = copy.copy(self)
        inner.indent += 1
        inner._names = self._names.copy()
        return inner

    def bind(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def fetch(self, path: Path) -> str:
        """The name of the local variable that holds the value at ``path``."""
        name = self._names.get(path)
        if name is None:
            expression = self.expression(path)
            name = self._names[path] = f"p{len(self._names)}"
            self.write(f"{name} = {expression}")
        return name

    def expression(self, path: Path) -> str:
        known = self._names.get(path)
        if known is not None:
            return known
        kind = path[0]
        if kind == "object":
            return self.bind(path[1].value)
        parent = self.fetch(path[1])
        if kind == "attr":
            return self.attribute(parent, path[2])
        key = path[2]
        return f"{parent}[{key if type(key) is int else self.bind(key)}]"

    def attribute(self, parent: str, name: str) -> str:
        if name.isidentifier() and not keyword.iskeyword(name) and name.isascii():
            return f"{parent}.{name}"
        return f"getattr({parent}, {self.bind(name)})"

    def alias(self, path: Path, name: str) -> None:
        self._names[path] = name


def guard_lines(
    code: PathCode,
    guards: Mapping[Path, Guard],
    fail: str,
    used: Mapping[Path, tuple[dict, str]] = MappingProxyType({}),
) -> None:
    """Append to ``code`` the checks of ``guards``; ``fail`` is the statement on a mismatch.

    ``used`` tells for tensors from where a program takes them (a dict and a key): they must still be
    the tensors at their paths.
    """
    code.constants.setdefault("freeze", freeze)
    for path, guard in guards.items():
        frozen = guard.frozen
        if isinstance(frozen, Presence):
            parent, key = code.fetch(path[1]), code.bind(path[2])
            there = f"hasattr({parent}, {key})" if path[0] == "attr" else f"{key} in {parent}"
            code.write(f"if {there}: {fail}" if frozen is Presence.ABSENT else f"if not ({there}): {fail}")
            continue
        value = code.fetch(path)
        if path in used:
            source, name = used[path]
            code.write(f"if {code.bind(source)}[{code.bind(name)}] is not {value}: {fail}")
        condition = _condition(code, path, value, frozen)
        if condition:
            code.write(f"if {condition}: {fail}")


def _condition(code: PathCode, path: Path, value: str, frozen: Any) -> str:
    """The condition under which the guard fails."""
    if frozen is None:
        return f"{value} is not None"
    if isinstance(frozen, TensorMetadata):
        return f"not {code.bind(frozen.matches)}({value})"
    if isinstance(frozen, Box):
        same = f"{value} is not {code.bind(frozen.value)}"
        kind = type(frozen.value)
        return same if not has_own_class(frozen.value) else f"{same} or type({value}) is not {code.bind(kind)}"
    if isinstance(frozen, tuple) and frozen[0] is FunctionType and frozen[3] is None and frozen[4] is None:
        function, body = code.bind(frozen[1].value), code.bind(frozen[2].value)
        return (
            f"{value} is not {function} or {value}.__code__ is not {body} "
            f"or {value}.__defaults__ is not None or {value}.__kwdefaults__ is not None"
        )
    if isinstance(frozen, tuple) and len(frozen) == 2 and frozen[0] is bool:
        return f"{value} is not {frozen[1]}"
    if isinstance(frozen, tuple) and len(frozen) == 2 and frozen[0] in (int, str):
        kind = frozen[0].__name__
        return f"type({value}) is not {kind} or {value} != {code.bind(frozen[1])}"
    if isinstance(frozen, tuple) and frozen[0] is torch.Tensor:
        return f"type({value}) is not {code.bind(frozen[1])}"
    if isinstance(frozen, tuple) and len(frozen) == 2 and frozen[0] in (dict, list, tuple) and not frozen[1]:
        return f"{value} or type({value}) is not {code.bind(frozen[0])}"
    parent = code.fetch(path[1]) if path[0] in ("attr", "item") else "None"
    return f"freeze({value}, {parent}) != {code.bind(frozen)}"
