"""Which entry would serve a call: the slow and simple way, which runs no program."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from speckey import symbols, thunder_hooks
from speckey.compiler import Entry
from speckey.guards import fetch
from speckey.signature import Description, Question, alias_groups
from speckey.table import Tree


def find_entry(
    tree: Tree[Entry], jfn: Any, fn: Any, args: tuple, kwargs: dict, description: Description
) -> Entry | None:
    """The entry that fits the call, or None."""
    sizes = description.sizes()

    def ask(test: Hashable) -> Hashable:
        if isinstance(test, Question):
            return test.ask(lambda path: fetch(path, fn, args, kwargs))  # type: ignore[return-value]
        return symbols.evaluate(test, sizes)  # type: ignore[arg-type, return-value]

    def accept(entry: Entry) -> Entry | None:
        if entry.aliases is not None and alias_groups(enumerate(description.tensors)) != entry.aliases:
            return None
        if not all(guard.holds(fn, args, kwargs) for guard in entry.guards.values()):
            return None
        try:
            thunder_hooks.run_prologue(jfn, entry.program.entry, args, kwargs)
        except Exception:  # a check of thunder's
            return None
        return entry

    return tree.find(ask, description.shapes(), accept)
