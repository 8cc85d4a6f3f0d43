"""Questions, answers and values from outside in the user's words, for reports.

Knows nothing of thunder, nor of tables.
"""

from __future__ import annotations

import inspect
import linecache
import struct
from collections.abc import Mapping
from typing import Any

import torch

from speckey.guards import Box, Guard, Path, Presence, TensorMetadata, fetch, freeze
from speckey.key import path_text
from speckey.signature import Question

_LONGEST = 60  # characters of a value that are shown

_ABOUT = {
    "type": "the type of",
    "length": "the length of",
    "keys": "the keys of",
    "dtype": "the dtype of",
    "device": "the device of",
    "requires grad": "requires_grad of",
    "rank": "the number of dimensions of",
    "ordinary": "whether it is an ordinary tensor:",
    "no gradient": "whether it has no .grad:",
    "no grad sync": "no_sync() of",
    "identity": "the object",
    "same as": "which other argument it is:",
    "details": "the metadata of",
    "extras": "the attributes of",
    "fields": "whether it has its fields only:",
    "content": "the content of",
}
_ARGUMENTS = {("length", ("args",)): "positional arguments", ("keys", ("kwargs",)): "keyword arguments"}


def question_text(question: Question, names: Mapping[Path, str]) -> str:
    """What a question of the signature is about: ``the dtype of `a```."""
    if not question.path:
        return question.kind
    known = _ARGUMENTS.get((question.kind, question.path))
    if known is not None:
        return known
    about = _ABOUT.get(question.kind, "")
    return f"{about} `{path_text(question.path, names)}`".lstrip()


def answer_text(question: Question, answer: Any) -> str:
    """An answer to it: ``float32``."""
    if question.kind == "bits":
        return repr(_from_bits(answer))
    if question.kind == "keys" and isinstance(answer, tuple):
        return ", ".join(k if isinstance(k, str) else frozen_text(k) for k in answer) or "none"
    if question.kind == "summary" or question.kind == "content":
        return frozen_text(answer)
    return short(answer)


def short(value: Any) -> str:
    """A value in one short line."""
    if isinstance(value, Box):
        value = value.value
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return _cut(repr(value))


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _from_bits(bits: bytes) -> float | complex:
    numbers = struct.unpack("d" * (len(bits) // 8), bits)
    return numbers[0] if len(numbers) == 1 else complex(*numbers)


# -- values from outside the arguments -------------------------------------------------------------


def guard_name(guard: Guard, names: Mapping[Path, str], fn: Any) -> str:
    """The name by which the program reads a value: ``SCALE``, ``self.lin.weight``."""
    return _name(guard.path, names, fn)


_INSIDE_MODULES = ("_parameters", "_buffers", "_modules", "__dict__")


def _name(path: Path, names: Mapping[Path, str], fn: Any) -> str:
    if path in names or path[0] not in ("attr", "item"):
        return path_text(path, names)
    kind, above, key = path
    if kind == "attr" and key == "cell_contents":
        variable = _variable_of_cell(above, fn)
        if variable:
            return variable
    if kind == "item" and above[0] == "attr":
        if above[2] == "__globals__":
            return str(key)
        if above[2] in _INSIDE_MODULES:
            return f"{_name(above[1], names, fn)}.{key}"
    parent = _name(above, names, fn)
    return f"{parent}[{key!r}]" if kind == "item" else f"{parent}.{key}"


def _variable_of_cell(path: Path, fn: Any) -> str:
    """The variable of an outer function that the cell at ``path`` holds."""
    if path[0] == "item" and path[1][0] == "attr" and path[1][2] == "__closure__":
        try:
            return fetch(path[1][1], fn, (), {}).__code__.co_freevars[path[2]]
        except Exception:  # whatever a program's objects raise when they are read
            pass
    return ""


def guard_answer(guard: Guard) -> str:
    """What the value must be: ``== 2``, ``is there``."""
    if isinstance(guard.frozen, Presence):
        return "is there" if guard.frozen is Presence.PRESENT else "is not there"
    return f"is {frozen_text(guard.frozen)}"


def guard_difference(guard: Guard, fn: Any, args: tuple, kwargs: dict) -> tuple[str, str]:
    """What the value was and is: ``("2", "3")``."""
    was = frozen_text(guard.frozen)
    try:
        parent = fetch(guard.path[1], fn, args, kwargs) if guard.path[0] in ("attr", "item") else None
        value = fetch(guard.path, fn, args, kwargs)
    except Exception:  # whatever a program's objects raise when they are read
        return was, "not there"
    if isinstance(guard.frozen, Presence):
        return was, "there"
    if isinstance(guard.frozen, TensorMetadata) and isinstance(value, torch.Tensor):
        return was, frozen_text(TensorMetadata.of(value))
    now = frozen_text(freeze(value, parent))
    return was, now if now != was else "another"


def frozen_text(frozen: Any) -> str:
    """A value that ``guards.freeze`` has frozen, as short as ``repr`` would have it."""
    return _cut(_thawed(frozen))


def _thawed(frozen: Any) -> str:
    if isinstance(frozen, Presence):
        return "there" if frozen is Presence.PRESENT else "not there"
    if isinstance(frozen, TensorMetadata):
        return _metadata_text(frozen)
    if isinstance(frozen, Box):
        return _object_text(frozen.value)
    if not isinstance(frozen, tuple) or not frozen:
        return short(frozen)
    kind, *content = frozen
    if kind in (float, complex) and isinstance(content[0], bytes):
        return repr(_from_bits(content[0]))
    if kind in (dict, list, tuple, set, frozenset) and len(content) == 1 and isinstance(content[0], tuple):
        return _container_text(kind, content[0])
    if kind is torch.Tensor:
        return "a tensor"
    if kind is slice:
        return f"slice({', '.join(map(_thawed, content))})"
    if content and isinstance(content[0], Box):
        return _thawed(content[0])  # a function
    if len(content) == 1 and not isinstance(content[0], tuple):
        return short(content[0])
    return f"a {kind.__name__}" if isinstance(kind, type) else short(frozen)


def _container_text(kind: type, items: tuple) -> str:
    if kind is dict:
        return "{" + ", ".join(f"{_thawed(k)}: {_thawed(v)}" for k, v in items) + "}"
    inside = ", ".join(map(_thawed, items))
    if kind is list:
        return f"[{inside}]"
    if kind is tuple:
        return f"({inside},)" if len(items) == 1 else f"({inside})"
    return "{" + inside + "}"


def _object_text(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else f"<{type(value).__name__}>"


def _metadata_text(tensor: TensorMetadata) -> str:
    kind = "" if tensor.kind in (torch.Tensor, torch.nn.Parameter) else f"{tensor.kind.__name__} "
    grad = ", requires_grad" if tensor.requires_grad else ""
    return f"{kind}{short(tensor.dtype)}{list(tensor.shape)} {tensor.device}{grad}"


# -- the definition of a program -------------------------------------------------------------------


def name_of(fn: Any) -> str:
    """``branch``; of a module, the name of its class."""
    name = getattr(fn, "__name__", None)
    return name if isinstance(name, str) else type(fn).__name__


def definition(fn: Any) -> str:
    """The line of its ``def`` (``model.py:3``); empty where it is not known."""
    function = inspect.unwrap(getattr(fn, "forward", fn))
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    line = code.co_firstlineno
    while linecache.getline(code.co_filename, line).lstrip().startswith(("@", ")", "#")):
        line += 1  # decorators come first
    return f"{code.co_filename.replace(chr(92), '/').rpartition('/')[2]}:{line}"
