"""Checking: before an entry serves shapes that it has not served, compare it with a program compiled afresh.

Both programs run on copies of the arguments, and of a module's state where they write to it, with the same
random numbers.  The call itself goes its usual way afterwards, or not at all.
"""

from __future__ import annotations

import contextlib
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch

from speckey import thunder_hooks
from speckey.compiler import Call, Entry, compile_entry
from speckey.containers import Copies, rebuilt
from speckey.dispatch import Table, table_of
from speckey.errors import MismatchError, RetraceError
from speckey.guards import TensorMetadata, module_tensor_name
from speckey.logs import LOGGER
from speckey.signature import describe
from speckey.stance import stance
from speckey.table import MISS


def check(jfn: Any, *, rtol: float | None = None, atol: float | None = None) -> Checking:
    """From now on, check the results of a callable compiled with a ``SpecKeyCache``.

    Each time an entry is about to serve shapes (or numbers) that it has not served since, the call is compiled
    afresh with constant values, both programs run on copies of the arguments, and the results are compared: values,
    shapes, dtypes, what is left in the arguments, and gradients.  NaN equals NaN.  On a difference the call raises
    a ``MismatchError`` with the entry's key, and is not run.  Compiling takes as long as it does without a cache;
    random numbers, statistics and the user's tensors are as without checking.

    Compiling traces the program again, with what it does while it is traced.  A number that it draws then is part of
    the program, and differs.

    What the check cannot run on copies is served unchecked, with a warning in the log: programs that write into
    tensors from outside their arguments and module.

    Args:
        jfn: the compiled callable.
        rtol, atol: relative and absolute tolerance; by default those of ``torch.testing.assert_close`` for the dtype.

    Returns:
        An object whose ``stop()`` ends the checking, and which does so at the end of a ``with`` block.

    Raises:
        TypeError: ``jfn`` was not compiled with a ``SpecKeyCache``.
        ValueError: only one tolerance is given, or a negative one.
    """
    if (rtol is None) != (atol is None):
        raise ValueError("check() expects both rtol= and atol=, or neither")
    for word, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not value >= 0:
            raise ValueError(f"check({word}=...) expects a number of at least 0, got {value!r}")
    return Checking(table_of(jfn), rtol, atol)


class Checking:
    """Checking that is going on; see ``check``."""

    def __init__(self, table: Table, rtol: float | None, atol: float | None) -> None:
        self._table = table
        self._close = {"rtol": rtol, "atol": atol, "equal_nan": True}
        self._seen: weakref.WeakKeyDictionary[Entry, set[tuple]] = weakref.WeakKeyDictionary()
        self._before = table.unit.watch
        table.watch(self._find)

    def stop(self) -> None:
        """Check no more, or as before this checking began."""
        if self._table.unit.watch == self._find:
            self._table.watch(self._before)

    def __enter__(self) -> Checking:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _find(self, find: Callable[[tuple, dict], Any], args: tuple, kwargs: dict) -> Any:
        table = self._table
        with table.lock:
            entry = table.find(args, kwargs)
            if entry is not None:
                description = describe(args, kwargs, table.fn)
                sizes, seen = description.sizes(), self._seen.setdefault(entry, set())
                known = tuple([(type(value), repr(value)) for value in sizes.values()])
                if known not in seen:
                    self._check(entry, args, kwargs, description.shapes())
                    seen.add(known)
        return find(args, kwargs)

    def _check(self, entry: Entry, args: tuple, kwargs: dict, shapes: tuple) -> None:
        table = self._table
        writes = entry.program.mutates or thunder_hooks.writes_attributes(entry.program.entry)
        if writes and _reads_other_tensors(entry):
            LOGGER.warning("%s: entry %d is not checked: it may write to other tensors", table.name, entry.number)
            return
        with _as_before(table, entry):
            theirs = _outcome(lambda *copies: _run_afresh(table, *copies), table, args, kwargs, writes=writes)
            ours = _outcome(lambda *copies: _run_entry(entry, *copies), table, args, kwargs, writes=writes)
        if isinstance(ours.error, RetraceError) or ours.result is MISS:
            return  # the call itself will be compiled for
        difference = self._difference(ours, theirs)
        if difference:
            texts = ", ".join(map(str, shapes)) or "no tensors"
            raise MismatchError(
                f"entry {entry.number} of {table.name} is wrong for shapes {texts}: {difference}\n"
                f"The entry's key:\n{entry.key.text(with_lines=True)}",
                entry,
            ) from theirs.error

    def _difference(self, ours: _Outcome, theirs: _Outcome) -> str:
        if ours.error is not None and theirs.error is not None:
            return ""
        if ours.error is not None:
            return f"it raises {type(ours.error).__name__}: {ours.error}"
        if theirs.error is not None:
            return f"compiled afresh, the call raises {type(theirs.error).__name__}: {theirs.error}"
        for name, one, other in (
            ("result", ours.result, theirs.result),
            ("arguments after the call", ours.arguments, theirs.arguments),
            ("gradients", ours.gradients, theirs.gradients),
        ):
            difference = _difference(name, one, other, self._close)
            if difference:
                return difference
        return ""


@attrs.frozen
class _Outcome:
    """What came of running a program on copies."""

    result: Any = None
    error: Exception | None = None
    arguments: Any = None
    gradients: Any = None


def _outcome(run: Callable[[tuple, dict], Any], table: Table, args: tuple, kwargs: dict, *, writes: bool) -> _Outcome:
    copies = Copies()
    args, kwargs = rebuilt((args, kwargs), copies)
    grad_mode = torch.is_grad_enabled()
    state = thunder_hooks.copied_state(table.jfn, table.fn) if writes else contextlib.nullcontext()
    with state, _same_random_numbers():
        try:
            result = run(args, kwargs)
            torch.set_grad_enabled(grad_mode)
            gradients = _gradients(result, [*copies.made, *thunder_hooks.parameters_of(table.jfn)])
        except Exception as error:
            return _Outcome(error=error)
        finally:
            torch.set_grad_enabled(grad_mode)
    return _Outcome(result, None, (args, kwargs), gradients)


def _run_afresh(table: Table, args: tuple, kwargs: dict) -> Any:
    call = Call(table.jfn, table.fn, args, kwargs, describe(args, kwargs, table.fn))
    return table.run_first(call, compile_entry(call, exactly=True))


def _run_entry(entry: Entry, args: tuple, kwargs: dict) -> Any:
    with stance("fail_on_retrace"):
        return entry.run(args, kwargs)


@contextlib.contextmanager
def _as_before(table: Table, entry: Entry) -> Iterator[None]:
    """Take back what running an entry counts."""
    hits, used, last = entry.hits, entry.used, table.last
    try:
        yield
    finally:
        entry.hits, entry.used, table.last = hits, used, last


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[None]:
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    state = random.getstate()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(state)


def _reads_other_tensors(entry: Entry) -> bool:
    """Whether the program is given tensors that are neither in its arguments nor a module's parameters or buffers."""
    for path, guard in entry.guards.items():
        root = path
        while root[0] in ("attr", "item"):
            root = root[1]
        if (
            isinstance(guard.frozen, TensorMetadata)
            and root not in (("args",), ("kwargs",))
            and module_tensor_name(path) is None
        ):
            return True
    return False


def _gradients(result: Any, inputs: list[torch.Tensor]) -> Any:
    outputs: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad and tensor.grad_fn is not None:
            outputs.append(tensor)
        return tensor

    rebuilt(result, note)
    inputs = [t for t in inputs if t.requires_grad and t.is_leaf]
    if not outputs or not inputs:
        return None
    # Not all the same: of a softmax, ones would have no gradient.
    cotangents = [torch.linspace(0.5, 1.5, t.numel(), device=t.device).reshape(t.shape).to(t.dtype) for t in outputs]
    return list(torch.autograd.grad(outputs, inputs, cotangents, allow_unused=True))


def _difference(name: str, one: Any, other: Any, close: dict[str, Any]) -> str:
    """The first thing that differs, in words; empty where nothing does."""
    if type(one) is not type(other):
        return f"{name} is a {type(one).__name__}, should be a {type(other).__name__}"
    if isinstance(one, torch.Tensor):
        if one.requires_grad is not other.requires_grad:
            return f"{name}.requires_grad is {one.requires_grad}, should be {other.requires_grad}"
        try:
            torch.testing.assert_close(one, other, **close)
        except AssertionError as error:
            return f"{name}: {error}"
        return ""
    if isinstance(one, (tuple, list)):
        if len(one) != len(other):
            return f"{name} has {len(one)} items, should have {len(other)}"
        parts = [(f"{name}[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other, strict=True))]
    elif isinstance(one, dict):
        if list(one) != list(other):
            return f"{name} has keys {list(one)}, should have {list(other)}"
        parts = [(f"{name}[{key!r}]", one[key], other[key]) for key in one]
    elif attrs.has(type(one)) or hasattr(one, "__dataclass_fields__"):
        parts = [(f"{name}.{key}", value, getattr(other, key, None)) for key, value in vars(one).items()]
    elif isinstance(one, (int, str, bytes, float, complex, torch.dtype, torch.device)):
        same = one == other or (one != one and other != other)
        return "" if same else f"{name} is {one!r}, should be {other!r}"
    else:
        return ""  # other objects have no equality to go by
    return next(filter(None, (_difference(*part, close) for part in parts)), "")
