"""A decision tree as a Python function: the sizes of a call -> what an accepted entry makes of it.

Each size is read once, each question asked at most once on the way.  The text consists of numbered
names, integers and the canonical code of expressions; entries and tables are bound, not printed.
Knows nothing of thunder or torch.
"""

from __future__ import annotations

import linecache
import math
from collections.abc import Callable
from typing import Any

from speckey import symbols
from speckey.table import Node, Tree

_MOST_NESTED = 40  # Python allows 100 levels of indentation
_serial = 0


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.functions: list[list[str]] = []
        self.bound: dict[str, Any] = {"math": math}
        self.sizes: set[tuple[int, int]] = set()

    def bind(self, value: Any) -> str:
        name = f"b{len(self.bound)}"
        self.bound[name] = value
        return name

    def node(self, node: Node, lines: list[str], indent: int) -> None:
        pad = " " * indent
        if node.entries:
            entries = self.bind(tuple(reversed(node.entries)))
            lines += [
                f"{pad}for entry in {entries}:",
                f"{pad} found = accept(entry)",
                f"{pad} if found is not None: return found",
            ]
        if node.test is not None and node.children:
            self.question(node, lines, indent)
        if node.rest is not None:
            self.node(node.rest, lines, indent)

    def question(self, node: Node, lines: list[str], indent: int) -> None:
        pad, test = " " * indent, node.test
        assert test is not None
        self.sizes |= symbols.sizes_in(test)
        value = test.code
        if "/" in value or "%" in value:
            # One that makes no sense for these sizes has no answer: none of the children fits.
            lines += [f"{pad}try: v = {value}", f"{pad}except ArithmeticError: v = None"]
            value = "v"
        if test.kind is bool and indent < _MOST_NESTED:
            self.two_ways(node, value, lines, indent)
            return
        # Outcomes in a dict of functions: its cost does not depend on how many there are.
        branches = {outcome: self.function(child) for outcome, child in node.children.items()}
        table = self.bind(branches)
        lines += [
            f"{pad}go = {table}.get({value})",
            f"{pad}if go is not None:",
            f"{pad} found = go[0](sizes, accept)",
            f"{pad} if found is not None: return found",
        ]

    def two_ways(self, node: Node, value: str, lines: list[str], indent: int) -> None:
        pad = " " * indent
        yes, no = node.children.get(True), node.children.get(False)
        if value == "v" and no is not None:
            value = "v is True" if yes is not None else "v"
        if yes is not None:
            lines.append(f"{pad}if {value}:")
            self.node(yes, lines, indent + 1)
            if no is not None:
                lines.append(f"{pad}elif v is False:" if value == "v is True" else f"{pad}else:")
                self.node(no, lines, indent + 1)
        elif no is not None:
            lines.append(f"{pad}if v is False:" if value == "v" else f"{pad}if not ({value}):")
            self.node(no, lines, indent + 1)

    def function(self, node: Node) -> list:
        """A place for the function of a subtree, filled when the module is compiled."""
        lines: list[str] = []
        before, self.sizes = self.sizes, set()
        self.node(node, lines, 1)
        name = f"f{len(self.functions)}"
        self.functions.append([f"def {name}(sizes, accept):", *_unpack(self.sizes), *lines, " return None"])
        self.sizes = before
        place: list = [name]
        return place


def _unpack(sizes: set[tuple[int, int]]) -> list[str]:
    return [f" s{tensor}_{dim} = sizes[{tensor}][{dim}]" for tensor, dim in sorted(sizes)]


def compile_tree(tree: Tree) -> tuple[Callable[[Any, Callable], Any], str]:
    """``find(shapes, accept)`` for this tree as it is now, and its source.

    ``shapes`` is indexed by tensor, then by dimension.
    """
    global _serial
    _serial += 1
    writer = _Writer()
    places: list[list] = []
    function = writer.function

    def remember(node: Node) -> list:
        places.append(function(node))
        return places[-1]

    writer.function = remember  # type: ignore[method-assign]
    root = remember(tree.root)[0]
    source = "\n".join("\n".join(lines) for lines in writer.functions) + "\n"
    name = f"<speckey table {_serial}>"
    exec(compile(source, name, "exec"), writer.bound)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # for tracebacks
    for place in places:
        place[0] = writer.bound[place[0]]
    return writer.bound[root], source
