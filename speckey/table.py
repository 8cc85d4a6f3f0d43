"""Entries of one signature as a decision tree: find, insert, remove.

A node asks one question about sizes.  Tracing is deterministic, so two entries share their facts up
to the first that came out differently; an entry without an opinion on a node's question lives in the
node's ``rest``, which is searched when the answer leads nowhere.  Knows nothing of thunder or torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from speckey import symbols
from speckey.recorder import Fact


class HasFacts(Protocol):
    @property
    def facts(self) -> Sequence[Fact]: ...


E = TypeVar("E", bound=HasFacts)
R = TypeVar("R")


class Node(Generic[E]):
    """``entries`` have no further facts here; the others are told apart by the outcome of ``test``."""

    __slots__ = ("children", "entries", "rest", "test")

    def __init__(self) -> None:
        self.entries: list[E] = []
        self.test: symbols.Expr | None = None
        self.children: dict[object, Node[E]] = {}
        self.rest: Node[E] | None = None

    def __iter__(self) -> Iterator[E]:
        yield from self.entries
        for child in self.children.values():
            yield from child
        if self.rest is not None:
            yield from self.rest

    def is_empty(self) -> bool:
        return not self.entries and not self.children and self.rest is None


class Tree(Generic[E]):
    """All entries of one signature."""

    def __init__(self) -> None:
        self.root: Node[E] = Node()

    def __iter__(self) -> Iterator[E]:
        return iter(self.root)

    def insert(self, entry: E) -> None:
        node = self.root
        left = list(entry.facts)
        while left:
            if node.test is None:
                node.test = left[0].test
            position = next((i for i, fact in enumerate(left) if fact.test == node.test), None)
            if position is None:
                if node.rest is None:
                    node.rest = Node()
                node = node.rest
            else:
                node = node.children.setdefault(left.pop(position).outcome, Node())
        node.entries.append(entry)

    def remove(self, entry: E) -> bool:
        """Take the entry out; whether it was there."""
        return self._remove(self.root, entry)

    def _remove(self, node: Node[E], entry: E) -> bool:
        for i, other in enumerate(node.entries):
            if other is entry:
                del node.entries[i]
                return True
        for outcome, child in list(node.children.items()):
            if self._remove(child, entry):
                if child.is_empty():
                    del node.children[outcome]
                break
        else:
            if node.rest is None or not self._remove(node.rest, entry):
                return False
            if node.rest.is_empty():
                node.rest = None
        if not node.children and node.rest is None:
            node.test = None
        return True

    def find(self, sizes: Mapping[str, int], accept: Callable[[E], R | None]) -> R | None:
        """What ``accept`` makes of the first entry whose facts all hold and that it does not turn down."""
        return self._find(self.root, sizes, accept)

    def _find(self, node: Node[E], sizes: Mapping[str, int], accept: Callable[[E], R | None]) -> R | None:
        for entry in reversed(node.entries):
            if (result := accept(entry)) is not None:
                return result
        if node.test is None:
            return None
        try:
            child = node.children.get(symbols.evaluate(node.test, sizes))
        except ArithmeticError:  # the question makes no sense for these sizes: none of its answers fits
            child = None
        if child is not None and (result := self._find(child, sizes, accept)) is not None:
            return result
        return self._find(node.rest, sizes, accept) if node.rest is not None else None
