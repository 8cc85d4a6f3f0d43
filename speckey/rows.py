"""The outline of a decision tree as rows, one below the other: what text and pictures have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import attrs

from speckey.outline import OTHERWISE, Branch, Condition, Fork, Leaf, Step

_FARTHEST = 64  # conditions of one line of the program share a row up to this column
_AS_ABOVE = "the same facts"


@attrs.frozen
class Row:
    """One row.

    Attributes:
        kind: "condition", "fork", "branch" (an answer to a fork) or "leaf".
        text: in the user's words; empty where only an entry stands.
        rails: for each fork above, from the outermost, whether branches of it follow below.
        last: of a branch, whether it is the last.
        leaf: the entry that the row leads to, if it does.
        where: the line of the program that asked.
    """

    kind: Literal["condition", "fork", "branch", "leaf"]
    text: str
    rails: tuple[bool, ...] = ()
    last: bool = False
    leaf: Leaf | None = None
    where: str = ""

    def __str__(self) -> str:
        indent = "".join("│  " if rail else "   " for rail in self.rails)
        joint = "" if self.kind != "branch" else "└─ " if self.last else "├─ "
        arrow = "" if self.leaf is None else f"→ {leaf_text(self.leaf)}"
        return indent + joint + " ".join(filter(None, (self.text, arrow)))


def leaf_text(leaf: Leaf) -> str:
    """``[3] symbolic, 2 hits, 0.4 s``"""
    entry = leaf.entry
    hits = f"{entry.hits} hit{'' if entry.hits == 1 else 's'}"
    return f"[{entry.number}] {entry.kind}, {hits}, {entry.compile_seconds:.1f} s"


def rows(steps: Iterable[Step], rails: tuple[bool, ...] = ()) -> Iterator[Row]:
    """The rows of a tree, from top to bottom."""
    waiting: list[Condition] = []
    for step in steps:
        if isinstance(step, Condition):
            joined = ", ".join(c.text for c in [*waiting, step])
            if waiting and (waiting[0].where != step.where or 3 * len(rails) + len(joined) > _FARTHEST):
                yield _conditions(waiting, rails)
                waiting = []
            waiting.append(step)
            continue
        if waiting:
            yield _conditions(waiting, rails)
            waiting = []
        if isinstance(step, Leaf):
            yield Row("leaf", "", rails, leaf=step)
        else:
            yield from _fork(step, rails)
    if waiting:
        yield _conditions(waiting, rails)


def _conditions(conditions: Sequence[Condition], rails: tuple[bool, ...]) -> Row:
    return Row("condition", ", ".join(c.text for c in conditions), rails, where=conditions[0].where)


def _fork(fork: Fork, rails: tuple[bool, ...]) -> Iterator[Row]:
    is_question = {branch.label for branch in fork.branches} <= {"yes", "no", OTHERWISE}
    yield Row("fork", fork.text + ("?" if is_question else ":"), rails, where=fork.where)
    previous: tuple[Step, ...] = ()
    for branch in fork.branches:
        last = branch is fork.branches[-1]
        yield from rows(branch.before, (*rails, True))
        *conditions, end = branch.steps
        leaf = end if isinstance(end, Leaf) else None
        if leaf is not None and not conditions:
            yield Row("branch", branch.label, rails, last, leaf, branch.where)
        elif leaf is not None and tuple(conditions) == previous:
            yield Row("branch", f"{branch.label}, then {_AS_ABOVE}", rails, last, leaf, branch.where)
        else:
            yield from _in_full(branch, rails, last)
            previous = tuple(conditions)


def _in_full(branch: Branch, rails: tuple[bool, ...], last: bool) -> Iterator[Row]:
    yield Row("branch", branch.label, rails, last, where=branch.where)
    yield from rows(branch.steps, (*rails, not last))
