"""The compiled callable: find an entry, else compile one; run it.

Never sees an expression.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from speckey import thunder_hooks
from speckey.codegen import compile_tree
from speckey.compiler import Call, Entry, compile_entry
from speckey.signature import Description, alias_groups, describe, environment
from speckey.table import Tree

R = TypeVar("R")


class Bucket:
    """The entries of one signature: exact ones by their shapes, the others in a tree."""

    def __init__(self) -> None:
        self.exact: dict[tuple, list[Entry]] = {}
        self.tree: Tree[Entry] = Tree()
        self._find: Callable[[Any, Callable], Any] | None = None

    def insert(self, entry: Entry) -> None:
        if entry.kind == "exact":
            self.exact.setdefault(entry.shapes, []).append(entry)
        else:
            self.tree.insert(entry)
            self._find = None

    def find(self, tensors: list[torch.Tensor], accept: Callable[[Entry], R | None]) -> R | None:
        """What ``accept`` makes of the first entry that fits these sizes and that it does not turn down."""
        shapes = [t.shape for t in tensors]
        if self.exact:
            for entry in reversed(self.exact.get(tuple(map(tuple, shapes)), ())):
                if (found := accept(entry)) is not None:
                    return found
        find = self._find
        if find is None:
            find, _ = compile_tree(self.tree)
            self._find = find
        return find(shapes, accept)


class Table:
    """Everything compiled for one callable, and the way a call takes through it."""

    def __init__(self, jfn: Any, fn: Any) -> None:
        self.jfn = jfn
        self.fn = fn
        self.entries: list[Entry] = []
        self.buckets: dict[tuple, Bucket] = {}
        self._lock = threading.RLock()
        self._original_parameters = _parameters_and_buffers(fn)

    # -- calls -------------------------------------------------------------------------------------

    def __call__(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        stats = self.jfn._lc_cs
        stats.calls += 1
        description = describe(args, kwargs)
        signature = (environment(), thunder_hooks.no_grad_sync(self.fn), description.signature)
        found = self._find(signature, description, args, kwargs)
        if found is None:
            return self._compile_and_run(signature, args, kwargs)
        entry, inputs, to_epilogue = found
        entry.hits += 1
        stats.cache_hits += 1
        self._remember(entry)
        try:
            return self._run(entry, inputs, to_epilogue)
        except Exception as error:
            if entry.kind == "exact" or entry.program.mutates:
                raise
            # Eager may accept this call although the program does not: let an exact one decide.
            return self._compile_and_run(signature, args, kwargs, exactly=True, reason=_reason(error))

    def _find(self, signature: tuple, description: Description, args: tuple, kwargs: dict) -> tuple | None:
        bucket = self.buckets.get(signature) if description.cacheable else None
        if bucket is None:
            return None

        def accept(entry: Entry) -> tuple | None:
            try:
                if entry.aliases is not None and entry.aliases != alias_groups(enumerate(description.tensors)):
                    return None
                entered = entry.enter(self.fn, self.jfn, args, kwargs)
            except Exception:  # a path that is gone, a check of thunder's that fails
                return None
            return None if entered is None else (entry, *entered)

        return bucket.find(description.tensors, accept)

    def _compile_and_run(
        self, signature: tuple, args: tuple, kwargs: dict, *, exactly: bool = False, reason: str = ""
    ) -> Any:
        with self._lock:
            self._adopt_replaced_parameters()
            description = describe(args, kwargs, with_paths=True)
            stats = self.jfn._lc_cs
            if not exactly:
                # Another thread may have compiled it, or a replaced parameter may be all that changed.
                found = self._find(signature, description, args, kwargs)
                if found is not None:
                    entry, inputs, to_epilogue = found
                    entry.hits += 1
                    stats.cache_hits += 1
                    self._remember(entry)
                    return self._run(entry, inputs, to_epilogue)
            stats.cache_misses += 1
            call = Call(self.jfn, self.fn, args, kwargs, description, signature)
            entry = compile_entry(call, exactly=exactly, reason=reason)
            try:
                inputs, to_epilogue = thunder_hooks.run_prologue(self.jfn, entry.program.entry, args, kwargs)
                result = self._run(entry, inputs, to_epilogue)
            except Exception as error:
                if entry.kind == "exact" or entry.program.mutates:
                    raise
                entry = compile_entry(call, exactly=True, reason=_reason(error))
                inputs, to_epilogue = thunder_hooks.run_prologue(self.jfn, entry.program.entry, args, kwargs)
                result = self._run(entry, inputs, to_epilogue)
            if description.cacheable and entry.program.reusable:
                self._insert(signature, entry)
            self._remember(entry)
            return result

    def _insert(self, signature: tuple, entry: Entry) -> None:
        self.buckets.setdefault(signature, Bucket()).insert(entry)
        self.entries.append(entry)
        self.jfn._lc_cs.interpreter_cache.append(entry.program.entry)

    def _run(self, entry: Entry, inputs: tuple, to_epilogue: tuple) -> Any:
        program = entry.program
        compiled = program.entry
        computation = entry.computation
        if computation is None:
            computation = entry.computation = thunder_hooks.computation_for(compiled, inputs)
        result = computation(*inputs)
        if compiled.backward_fn:
            result = thunder_hooks.attach_backward(self.jfn, compiled, result)
        result = compiled.epilogue_fn(*to_epilogue, *result)
        if program.grad_enabled_after is not None:
            torch.set_grad_enabled(program.grad_enabled_after)
        return result

    def _remember(self, entry: Entry) -> None:
        """What thunder tells of the last call."""
        stats, compiled = self.jfn._lc_cs, entry.program.entry
        stats.last_traces = compiled.computation_traces
        stats.last_prologue_traces = compiled.prologue_traces
        stats.last_epilogue_traces = compiled.epilogue_traces
        stats.last_backward_traces = compiled.backward_traces
        stats.last_prologue = compiled.prologue_fn
        stats.last_computation = compiled.computation_fn

    def _adopt_replaced_parameters(self) -> None:
        """Let thunder's module see parameters and buffers that were replaced on the original module.

        thunder keeps those it found at ``thunder.jit`` time.  Ones that a transform exchanged stay.
        """
        if not self._original_parameters:
            return
        for name, tensor in _parameters_and_buffers(self.fn).items():
            before = self._original_parameters.get(name)
            if before is tensor:
                continue
            for overrides in (self.jfn._overrides_parameters, self.jfn._overrides_buffers):
                if name in overrides and overrides[name] is before:
                    overrides[name] = tensor
            self._original_parameters[name] = tensor


def _parameters_and_buffers(fn: Any) -> dict[str, torch.Tensor]:
    if not isinstance(fn, torch.nn.Module):
        return {}
    return {
        **dict(fn.named_parameters(remove_duplicate=False)),
        **dict(fn.named_buffers(remove_duplicate=False)),
    }


def _reason(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__} when run: {text.splitlines()[0] if text else ''}"


def make_callable(jfn: Any, fn: Any) -> Any:
    """Put a table in front of what ``thunder.jit`` returned."""
    if isinstance(fn, torch.nn.Module):
        table = Table(jfn, fn)

        def forward(*args: Any, **kwargs: Any) -> Any:
            if thunder_hooks.is_tracing():
                return fn(*args, **kwargs)
            return table(args, kwargs)

        jfn._forward_fn = forward
        jfn._speckey_table = table
        return jfn

    @functools.wraps(fn)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if thunder_hooks.is_tracing():
            return fn(*args, **kwargs)
        return table(args, kwargs)

    compiled._lc_cd, compiled._lc_cs, compiled._lc_transforms = jfn._lc_cd, jfn._lc_cs, jfn._lc_transforms
    table = Table(compiled, fn)
    compiled._speckey_table = table
    return compiled
