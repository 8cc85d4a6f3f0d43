"""The compiled callable: find an entry, else compile one; run it.

Never sees an expression.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
import warnings
from collections.abc import Callable
from typing import Any

import attrs
import torch

from speckey import signature, thunder_hooks
from speckey.bounds import arguments_of
from speckey.codegen import Unit
from speckey.compiler import Call, Entry, compile_entry, names_of, outside_of_bounds
from speckey.errors import EntryLimitError, RetraceError
from speckey.inputs import Inexpressible, record
from speckey.logs import LOGGER
from speckey.lookup import find_entry
from speckey.policies.drop import Drop, Room, checked_room
from speckey.policies.numbers import Numbers
from speckey.policies.vary import NamesArguments, Vary, checked_dim
from speckey.retrace import Retrace, explain_retrace, most_frequent
from speckey.runner import compile_run
from speckey.signature import Description, describe
from speckey.stance import current_stance
from speckey.symbols import is_free_number
from speckey.table import MISS, Tree
from speckey.thunder_hooks import OUT_OF_MEMORY

signature.ABOUT_VALUES["no grad sync"] = thunder_hooks.no_grad_sync

_MOST_RETRACES = 1000
_MOST_SIZES = 64  # of one dimension, or values of one number, that are remembered


@attrs.define
class _Seen:
    """What calls of one structure were compiled for: sizes by tensor and dimension, and values of numbers."""

    sizes: list[list[set[int]]]
    values: list[set[int | float]]
    constant: set[int] = attrs.field(factory=set)  # numbers that a program could not be compiled without

    def note(self, shapes: tuple, numbers: list) -> None:
        known = [s for sizes in self.sizes for s in sizes] + self.values
        for seen, value in zip(known, [n for shape in shapes for n in shape] + numbers, strict=True):
            if len(seen) < _MOST_SIZES:
                seen.add(value)


class Table:
    """Everything compiled for one callable, and the way a call takes through it.

    Attributes:
        entries: oldest first.
        last: the entry that served the last call.
        misses: how many calls were compiled for.
        slow_calls: how many calls found no entry, including those that failed or ran uncompiled.
        retraces: why calls were compiled after the first, oldest first.
        tick: the next number of the clock by which entries note when they were used.
    """

    def __init__(self, jfn: Any, fn: Any, vary: Vary, numbers: Numbers, drop: Drop) -> None:
        self.jfn = jfn
        self.fn = fn
        self.vary = vary
        self.numbers = numbers
        self.drop = drop
        self.entries: list[Entry] = []
        self.last: Entry | None = None
        self.misses = 0
        self.slow_calls = 0
        self.retraces: list[Retrace] = []
        self.tick = itertools.count(1).__next__
        self.lock = threading.RLock()
        self._counting = threading.Lock()
        self._dropped_hits = 0
        self._numbers = itertools.count(1)
        self._has_warned = False
        self._tree: Tree[Entry] = Tree()
        self._seen: dict[tuple, _Seen] = {}  # by structure
        self.unit = Unit(self._tree.root, fn, self.lock)
        self._original_parts = _parts(fn) if isinstance(fn, torch.nn.Module) else {}
        thunder_hooks.follow(jfn, self)

    @property
    def hits(self) -> int:
        with self._counting:
            return self._dropped_hits + sum(entry.hits for entry in self.entries)

    @property
    def calls(self) -> int:
        return self.hits + self.slow_calls

    @property
    def name(self) -> str:
        """What the user calls the function."""
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    # -- calls -------------------------------------------------------------------------------------

    def compile_and_run(self, args: tuple, kwargs: dict) -> Any:
        """For a call that no entry fits."""
        with self.lock:
            self._adopt_replaced()
            # Another thread may have compiled it, or a replaced parameter may be all that changed.
            result = self.unit.go(args, kwargs)
            if result is not MISS:
                return result
            self.slow_calls += 1
            room = self._room_for(args, kwargs)
            if room.instead is None:
                return self._compile(args, kwargs, room)
        return self.fn(*args, **kwargs)

    def recover(self, entry: Entry, error: Exception, args: tuple, kwargs: dict) -> Any:
        """Eager may accept this call although the program that should serve it does not: let an exact one decide."""
        if entry.kind == "exact" or entry.program.mutates or isinstance(error, OUT_OF_MEMORY):
            raise error
        with self.lock:
            room = self._room_for(args, kwargs)
            if room.instead is None:
                return self._compile(args, kwargs, room, exactly=True, reason=_reason(error))
        return self.fn(*args, **kwargs)

    def _room_for(self, args: tuple, kwargs: dict) -> Room:
        """What stance and policy make of a call that no entry fits.

        Raises:
            RetraceError, EntryLimitError: they make it an error.
        """
        stance = current_stance()
        if stance == "eager_on_retrace":
            return Room(instead="eager")
        if stance == "fail_on_retrace":
            raise RetraceError(*self._no_entry(stance, describe(args, kwargs, self.fn), args, kwargs))
        room = self._room()
        if room.instead == "error":
            message, _ = self._no_entry(repr(self.drop), describe(args, kwargs, self.fn), args, kwargs)
            raise EntryLimitError(message)
        return room

    def _room(self) -> Room:
        room = checked_room(self.drop, tuple(self.entries))
        if any(entry not in self.entries for entry in room.drop):
            policy = type(self.drop).__name__
            raise ValueError(f"{policy}.room() is to drop entries that it was given, not {room.drop!r}")
        return room

    def _no_entry(
        self, because: str, description: Description, args: tuple, kwargs: dict
    ) -> tuple[str, Retrace | None]:
        if not self.entries:
            return f"{because}: {self.name} has no entry yet; speckey.warmup(...) compiles one ahead of a call", None
        retrace = self._closest(description, args, kwargs)
        return f"{because}: no entry of {self.name} fits this call: {retrace or 'its arguments differ'}", retrace

    def _closest(self, description: Description, args: tuple, kwargs: dict) -> Retrace | None:
        with contextlib.suppress(Exception):  # whatever a program's objects raise when they are compared
            return explain_retrace(self.entries, description, self.fn, args, kwargs)
        return None

    def _compile(self, args: tuple, kwargs: dict, room: Room, *, exactly: bool = False, reason: str = "") -> Any:
        call = self.described(args, kwargs)
        outside = "" if exactly else outside_of_bounds(call)
        self.misses += 1
        retrace = None if exactly else self._closest(call.description, args, kwargs)
        entry, result = self._first(call, self.run_first, exactly=exactly or bool(outside), reason=reason or outside)
        if not outside:
            self._note_constants(call, entry)
        self.last = entry
        if retrace is not None and len(self.retraces) < _MOST_RETRACES:
            self.retraces.append(retrace)
        self._log(entry, str(retrace or ""))
        self._keep(entry, call, room)
        return result

    def _first(
        self, call: Call, first: Callable[[Call, Entry], Any], *, exactly: bool = False, reason: str = ""
    ) -> tuple[Entry, Any]:
        """A new entry and what ``first`` makes of it; where that raises, an exact entry."""
        entry = compile_entry(call, exactly=exactly, reason=reason)
        entry.program = thunder_hooks.shared(entry.program, [e.program for e in self.entries])
        try:
            return entry, first(call, entry)
        except Exception as error:
            if entry.kind == "exact" or entry.program.mutates or isinstance(error, OUT_OF_MEMORY):
                raise
            entry = compile_entry(call, exactly=True, reason=_reason(error))
            return entry, first(call, entry)

    def _log(self, entry: Entry, because: str) -> None:
        if LOGGER.isEnabledFor(logging.INFO):
            because = "; ".join(filter(None, (because, entry.reason))) or "first call"
            LOGGER.info("%s: compiled %s in %.1f s: %s", self.name, entry.kind, entry.compile_seconds, because)
            LOGGER.debug("%s: %s", self.name, entry.key.text(with_lines=True))

    def described(self, args: tuple, kwargs: dict) -> Call:
        """The call with what the policies say of its sizes and numbers, noting which have differed."""
        description = describe(args, kwargs, self.fn)
        if isinstance(self.vary, NamesArguments):
            self.vary.check(arguments_of(self.fn, args, kwargs, description.structured))
        try:
            recorded = record(self.fn, args, kwargs)  # now: a program may change its arguments
        except Inexpressible as word:
            recorded = str(word)
        except Exception as error:  # whatever a program's objects raise when they are looked at
            recorded = _reason(error)
        call = Call(self.jfn, self.fn, args, kwargs, description, inputs=recorded)
        shapes = description.shapes()
        seen = self._seen.setdefault(
            description.structure(),
            _Seen([[set() for _ in shape] for shape in shapes], [set() for _ in description.numbers]),
        )
        seen.note(shapes, description.numbers)
        names = names_of(call)
        places = [(i, d) for i, shape in enumerate(shapes) for d in range(len(shape))]
        return attrs.evolve(
            call,
            dims={
                (i, d): checked_dim(self.vary, names.tensors[i], d, frozenset(seen.sizes[i][d])) for i, d in places
            },
            varied=frozenset((i, d) for i, d in places if len(seen.sizes[i][d]) > 1),
            free_numbers=frozenset(
                i
                for i, value in enumerate(description.numbers)
                if i not in seen.constant
                and is_free_number(value)
                and self.numbers.is_free(names.numbers[i], frozenset(seen.values[i]))
            ),
        )

    def _note_constants(self, call: Call, entry: Entry) -> None:
        """Numbers that a program could not be compiled without are not tried again."""
        self._seen[call.description.structure()].constant |= call.free_numbers - entry.free_numbers

    def prepare(self, call: Call, entry: Entry) -> tuple:
        """Make ``entry.run``; the arguments of computation and epilogue.

        By thunder's own prologue, which has a say in whether the entry fits.
        """
        inputs, to_epilogue = thunder_hooks.run_prologue(self.jfn, entry.program.entry, call.args, call.kwargs)
        entry.run = compile_run(self, entry, call.description, entry.guards, inputs)
        return inputs, to_epilogue

    def run_first(self, call: Call, entry: Entry) -> Any:
        inputs, to_epilogue = self.prepare(call, entry)
        entry.used = self.tick()
        compiled = entry.program.entry
        result = compiled.computation_fn(*inputs)
        if compiled.backward_fn:
            result = thunder_hooks.attach_backward(self.jfn, compiled, result)
        result = compiled.epilogue_fn(*to_epilogue, *result)
        if entry.program.grad_enabled_after is not None:
            torch.set_grad_enabled(entry.program.grad_enabled_after)
        return result

    def watch(self, watch: Callable[[Callable, tuple, dict], Any] | None) -> None:
        """Let ``watch(find, args, kwargs)`` take the place of the look-up; None for the look-up itself."""
        with self.lock:
            self.unit.watch = watch
            self.unit.stale()

    # -- entries -----------------------------------------------------------------------------------

    def find(self, args: tuple, kwargs: dict) -> Entry | None:
        """The entry that would serve a call, which is not run; None where there is none."""
        with self.lock:
            self._adopt_replaced()
            return find_entry(self._tree, self.jfn, self.fn, args, kwargs, describe(args, kwargs, self.fn))

    def warm_up(self, args: tuple, kwargs: dict) -> Entry:
        """The entry for a call, compiled if need be; the call is not run, nor counted.

        Raises:
            EntryLimitError: there is no room for another.
            ValueError: no entry can serve a second call with these arguments.
        """
        with self.lock:
            found = self.find(args, kwargs)
            if found is not None:
                return found
            room = self._room()
            call = self.described(args, kwargs)
            if room.instead is not None:
                raise EntryLimitError(self._no_entry(repr(self.drop), call.description, args, kwargs)[0])
            outside = outside_of_bounds(call)
            entry, _ = self._first(call, self.prepare, exactly=bool(outside), reason=outside)
            if not outside:
                self._note_constants(call, entry)
            if not entry.reusable:
                raise ValueError(f"{self.name}: a program for these arguments serves one call only")
            entry.used = self.tick()
            self._log(entry, "warm-up")
            self._keep(entry, call, room)
            return entry

    def _keep(self, entry: Entry, call: Call, room: Room) -> None:
        if not entry.reusable:
            return
        entry.number = next(self._numbers)
        entry.inputs = call.inputs
        self._add(entry)
        for old in room.drop:
            self.forget(old)
        if room.drop and not self._has_warned:
            self._has_warned = True
            often = most_frequent(self.retraces)
            because = f" Most often compiled again for: {often}." if often else ""
            warnings.warn(
                f"speckey: {self.name} needs more entries than {self.drop!r} keeps; from now on old ones are "
                f"dropped, and compiled again when they are needed.{because}",
                stacklevel=5,
            )

    def _add(self, entry: Entry) -> None:
        try:
            self._tree.insert(entry)
            self.entries.append(entry)
            thunder_hooks.list_entry(self.jfn, entry.program)
        except BaseException:  # a tree that an interrupt left half done would lose entries
            self.entries = [e for e in self.entries if e is not entry]
            self._tree.rebuild(self.entries)
            thunder_hooks.unlist_entry(self.jfn, entry.program)
            raise

    def forget(self, entry: Entry) -> None:
        """Drop an entry.  Results that it gave stay as they are; their backward works."""
        with self.lock:
            if not self._tree.remove(entry):
                return
            with self._counting:
                self.entries.remove(entry)
                self._dropped_hits += entry.hits
            thunder_hooks.unlist_entry(self.jfn, entry.program)
            if self.last is entry:
                self.last = None
            structure = entry.structure
            if all(other.structure != structure for other in self.entries):
                self._seen.pop(structure, None)

    def forget_all(self) -> None:
        with self.lock:
            for entry in tuple(self.entries):
                self.forget(entry)

    # -- modules -----------------------------------------------------------------------------------

    def _adopt_replaced(self) -> None:
        """Let thunder's module see what was replaced on the original: parameters, buffers, submodules.

        thunder keeps those it found at ``thunder.jit`` time.  Ones that a transform exchanged stay.
        """
        if not isinstance(self.fn, torch.nn.Module):
            return
        for name, value in _parts(self.fn).items():
            before = self._original_parts.get(name)
            if before is not value:
                thunder_hooks.replace_part(self.jfn, name, before, value)
                self._original_parts[name] = value


def _parts(module: torch.nn.Module) -> dict[str, Any]:
    """Parameters, buffers and submodules by their names."""
    return {
        **dict(module.named_modules(remove_duplicate=False)),
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _reason(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__} when run: {text.splitlines()[0] if text else ''}"


def make_callable(jfn: Any, fn: Any, vary: Vary, numbers: Numbers, drop: Drop) -> Any:
    """Put a table in front of what ``thunder.jit`` returned."""
    current_trace = thunder_hooks.current_trace
    if isinstance(fn, torch.nn.Module):
        table = Table(jfn, fn, vary, numbers, drop)

        def forward(*args: Any, **kwargs: Any) -> Any:
            if current_trace(None) is not None:
                return fn(*args, **kwargs)
            result = unit.go(args, kwargs)
            return table.compile_and_run(args, kwargs) if result is MISS else result

        unit = table.unit
        thunder_hooks.replace_forward(jfn, forward)
        jfn._speckey_table = table
        return jfn

    @functools.wraps(fn)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if current_trace(None) is not None:
            return fn(*args, **kwargs)
        result = unit.go(args, kwargs)
        return table.compile_and_run(args, kwargs) if result is MISS else result

    thunder_hooks.take_over(compiled, jfn)
    table = Table(compiled, fn, vary, numbers, drop)
    unit = table.unit
    compiled._speckey_table = table
    return compiled


def table_of(jfn: Any) -> Table:
    """The table of a compiled callable.

    Raises:
        TypeError: it was not compiled with a ``SpecKeyCache``.
    """
    table = getattr(jfn, "_speckey_table", None)
    if table is None:
        raise TypeError(f"expected a callable compiled with cache=SpecKeyCache(), got {jfn!r}")
    return table
