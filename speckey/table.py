"""The entries of one callable as a decision tree: find, insert, remove.

A node asks one question, about the arguments or about sizes.  Calls with the same answers so far are
asked the same about their arguments; and tracing is deterministic, so that two entries share their
facts up to the first that came out differently.  An entry without an opinion on a node's question lives
in the node's ``rest``, which is searched when the answer leads nowhere.  Exact entries lie where the
questions about arguments end, by their shapes.

Knows nothing of thunder or torch, nor of how a tree is turned into code; ``Unit`` and ``Switch`` are
told of changes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar


class HasKey(Protocol):
    """What the tree knows of an entry.

    ``steps`` are (question, answer) in the order of asking, about the arguments first.  An exact entry
    has no facts, and the shapes that it was made for in ``shapes_only``.
    """

    @property
    def steps(self) -> Sequence[tuple[Hashable, Hashable]]: ...
    @property
    def shapes_only(self) -> Hashable | None: ...


class Unit(Protocol):
    """Code generated for a node and what is below it, up to the next unit."""

    def stale(self) -> None: ...


class Switch(Protocol):
    """Generated code that finds a child by a dict, which may grow without new code."""

    def add(self, answer: Hashable, child: Node[Any]) -> None: ...
    def drop(self, answer: Hashable) -> None: ...


MISS = object()  # what a look-up and an entry's function return instead of a result

E = TypeVar("E", bound=HasKey)
R = TypeVar("R")
Ask: TypeAlias = Callable[[Hashable], Hashable]


class Node(Generic[E]):
    """``entries`` have no further facts here; the others are told apart by the answer to ``test``."""

    __slots__ = ("children", "entries", "exact", "rest", "switch", "test", "unit")

    def __init__(self) -> None:
        self.entries: list[E] = []
        self.exact: dict[Hashable, list[E]] = {}
        self.test: Hashable | None = None
        self.children: dict[Hashable, Node[E]] = {}
        self.rest: Node[E] | None = None
        self.unit: Unit | None = None
        self.switch: Switch | None = None

    def __iter__(self) -> Iterator[E]:
        waiting: list[Node[E]] = [self]
        while waiting:
            node = waiting.pop()
            yield from node.entries
            for entries in node.exact.values():
                yield from entries
            if node.rest is not None:
                waiting.append(node.rest)
            waiting.extend(node.children.values())

    def is_empty(self) -> bool:
        return not self.entries and not self.exact and not self.children and self.rest is None


class Tree(Generic[E]):
    def __init__(self) -> None:
        self.root: Node[E] = Node()

    def __iter__(self) -> Iterator[E]:
        return iter(self.root)

    def insert(self, entry: E) -> None:
        node, unit = self.root, self.root.unit
        left = list(entry.steps)
        while left:
            if node.test is None:
                node.test = left[0][0]
            position = next((i for i, (test, _) in enumerate(left) if test == node.test), None)
            if position is None:
                if node.rest is None:
                    node.rest = Node()
                    _stale(unit)
                node = node.rest
            else:
                answer = left.pop(position)[1]
                child = node.children.get(answer)
                if child is None:
                    child = node.children[answer] = Node()
                    if node.switch is not None:
                        node.switch.add(answer, child)
                    else:
                        _stale(unit)
                node = child
            unit = node.unit or unit
        if entry.shapes_only is None:
            node.entries.append(entry)
            _stale(unit)
        else:
            if not node.exact:
                _stale(unit)
            node.exact.setdefault(entry.shapes_only, []).append(entry)

    def remove(self, entry: E) -> bool:
        """Take the entry out; whether it was there."""
        path: list[tuple[Node[E], Hashable | None]] = []  # nodes above, and by which answer down (None: rest)
        if not _path_to(self.root, entry, path):
            return False
        node = path.pop()[0]
        if entry.shapes_only is None:
            node.entries.remove(entry)
        else:
            node.exact[entry.shapes_only].remove(entry)
            if not node.exact[entry.shapes_only]:
                del node.exact[entry.shapes_only]
        _stale(node.unit)
        while path and node.is_empty():
            above, by = path.pop()
            if node is above.rest:
                above.rest = None
            else:
                del above.children[by]
                if above.switch is not None:
                    above.switch.drop(by)
            if not above.children and above.rest is None:
                above.test, above.switch = None, None
            node = above
            _stale(node.unit)
        for above, _ in path:
            _stale(above.unit)
        return True

    def rebuild(self, entries: Iterable[E]) -> None:
        """Be the tree of these entries, whatever state it is in."""
        unit = self.root.unit
        Node.__init__(self.root)  # the same node: callers hold it
        self.root.unit = unit
        for entry in entries:
            self.insert(entry)
        _stale(unit)

    def find(self, ask: Ask, shapes: Hashable, accept: Callable[[E], R | None]) -> R | None:
        """What ``accept`` makes of the first entry that fits and that it does not turn down.

        ``ask`` answers a question about the call, or raises ``ArithmeticError`` where it makes no sense.
        The slow and simple way; calls take generated code.
        """
        return self._find(self.root, ask, shapes, accept)

    def _find(self, node: Node[E], ask: Ask, shapes: Hashable, accept: Callable[[E], R | None]) -> R | None:
        for entry in [*reversed(node.exact.get(shapes, ())), *reversed(node.entries)]:
            if (result := accept(entry)) is not None:
                return result
        if node.test is not None and node.children:
            try:
                child = node.children.get(ask(node.test))
            except ArithmeticError:  # the question makes no sense for these sizes: none of its answers fits
                child = None
            if child is not None and (result := self._find(child, ask, shapes, accept)) is not None:
                return result
        return self._find(node.rest, ask, shapes, accept) if node.rest is not None else None


def _stale(unit: Unit | None) -> None:
    if unit is not None:
        unit.stale()


def _path_to(root: Node[Any], entry: HasKey, path: list[tuple[Node[Any], object]]) -> bool:
    """Fill ``path`` with the nodes from the root to the one that holds the entry."""
    waiting: list[tuple[int, Node[Any], object]] = [(0, root, None)]
    while waiting:
        depth, node, by = waiting.pop()
        del path[depth:]
        if path:
            path[-1] = (path[-1][0], by)
        path.append((node, None))
        if any(e is entry for e in node.entries) or any(e is entry for e in node.exact.get(entry.shapes_only, ())):
            return True
        if node.rest is not None:
            waiting.append((depth + 1, node.rest, None))
        waiting.extend((depth + 1, child, answer) for answer, child in node.children.items())
    return False
