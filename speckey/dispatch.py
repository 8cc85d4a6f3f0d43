"""The compiled callable: find an entry, else compile one; run it.

Never sees an expression.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from typing import Any

import attrs
import torch

from speckey import signature, thunder_hooks
from speckey.codegen import Unit
from speckey.compiler import Call, Entry, compile_entry, names_of
from speckey.policies import Numbers, Vary
from speckey.retrace import Retrace, explain_retrace
from speckey.runner import compile_run
from speckey.signature import describe
from speckey.symbols import is_free_number
from speckey.table import MISS, Tree
from speckey.thunder_hooks import OUT_OF_MEMORY

signature.ABOUT_VALUES["no grad sync"] = thunder_hooks.no_grad_sync


LOGGER = logging.getLogger("speckey")
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
        slow_calls: how many calls found no entry, including those that failed.
        retraces: why calls were compiled after the first, oldest first.
    """

    def __init__(self, jfn: Any, fn: Any, vary: Vary, numbers: Numbers) -> None:
        self.jfn = jfn
        self.fn = fn
        self.vary = vary
        self.numbers = numbers
        self.entries: list[Entry] = []
        self.last: Entry | None = None
        self.misses = 0
        self.slow_calls = 0
        self.retraces: list[Retrace] = []
        self._lock = threading.RLock()
        self._tree: Tree[Entry] = Tree()
        self._seen: dict[tuple, _Seen] = {}  # by structure
        self.unit = Unit(self._tree.root, fn, self._lock)
        self._original_parts = _parts(fn) if isinstance(fn, torch.nn.Module) else {}
        thunder_hooks.follow(jfn, self)

    @property
    def hits(self) -> int:
        return sum(entry.hits for entry in self.entries)

    @property
    def calls(self) -> int:
        return self.hits + self.slow_calls

    # -- calls -------------------------------------------------------------------------------------

    def compile_and_run(self, args: tuple, kwargs: dict) -> Any:
        """For a call that no entry fits."""
        with self._lock:
            self._adopt_replaced()
            # Another thread may have compiled it, or a replaced parameter may be all that changed.
            result = self.unit.go(args, kwargs)
            if result is not MISS:
                return result
            self.slow_calls += 1
            return self._compile(args, kwargs)

    def recover(self, entry: Entry, error: Exception, args: tuple, kwargs: dict) -> Any:
        """Eager may accept this call although the program that should serve it does not: let an exact one decide."""
        if entry.kind == "exact" or entry.program.mutates or isinstance(error, OUT_OF_MEMORY):
            raise error
        with self._lock:
            return self._compile(args, kwargs, exactly=True, reason=_reason(error))

    def _compile(self, args: tuple, kwargs: dict, *, exactly: bool = False, reason: str = "") -> Any:
        self.misses += 1
        description = describe(args, kwargs, self.fn)
        retrace = None
        if not exactly:
            with contextlib.suppress(Exception):  # whatever a program's objects raise when they are compared
                retrace = explain_retrace(self.entries, description, self.fn, args, kwargs)
        call = self._with_what_is_free(Call(self.jfn, self.fn, args, kwargs, description))
        entry = compile_entry(call, exactly=exactly, reason=reason)
        try:
            result = self._run_first(call, entry)
        except Exception as error:
            if entry.kind == "exact" or entry.program.mutates or isinstance(error, OUT_OF_MEMORY):
                raise
            entry = compile_entry(call, exactly=True, reason=_reason(error))
            result = self._run_first(call, entry)
        self._note_constants(call, entry)
        if entry.reusable:
            self._add(entry)
        self.last = entry
        self._log(entry, retrace)
        return result

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

    def _log(self, entry: Entry, retrace: Retrace | None) -> None:
        if retrace is not None and len(self.retraces) < _MOST_RETRACES:
            self.retraces.append(retrace)
        if LOGGER.isEnabledFor(logging.INFO):
            name = getattr(self.fn, "__name__", type(self.fn).__name__)
            because = "; ".join(str(r) for r in (retrace, entry.reason) if r) or "first call"
            LOGGER.info("%s: compiled %s in %.1f s: %s", name, entry.kind, entry.compile_seconds, because)
            LOGGER.debug("%s: %s", name, entry.key.text(with_lines=True))

    def _with_what_is_free(self, call: Call) -> Call:
        """Ask the policies which sizes and numbers are free, and note which have differed."""
        description = call.description
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
            free=frozenset(
                (i, d) for i, d in places if self.vary.is_free(names.tensors[i], d, frozenset(seen.sizes[i][d]))
            ),
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

    def _run_first(self, call: Call, entry: Entry) -> Any:
        """By thunder's own prologue, which has a say in whether the entry fits."""
        compiled = entry.program.entry
        inputs, to_epilogue = thunder_hooks.run_prologue(self.jfn, compiled, call.args, call.kwargs)
        entry.run = compile_run(self, entry, call.description, entry.guards, inputs)
        result = compiled.computation_fn(*inputs)
        if compiled.backward_fn:
            result = thunder_hooks.attach_backward(self.jfn, compiled, result)
        result = compiled.epilogue_fn(*to_epilogue, *result)
        if entry.program.grad_enabled_after is not None:
            torch.set_grad_enabled(entry.program.grad_enabled_after)
        return result

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


def make_callable(jfn: Any, fn: Any, vary: Vary, numbers: Numbers) -> Any:
    """Put a table in front of what ``thunder.jit`` returned."""
    current_trace = thunder_hooks.current_trace
    if isinstance(fn, torch.nn.Module):
        table = Table(jfn, fn, vary, numbers)

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
    table = Table(compiled, fn, vary, numbers)
    unit = table.unit
    compiled._speckey_table = table
    return compiled
