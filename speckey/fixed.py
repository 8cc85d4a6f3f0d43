"""Which sizes an entry serves one value of only, and which line of the program made it so."""

from __future__ import annotations

import attrs

from speckey import symbols
from speckey.compiler import Entry
from speckey.symbols import Expr


@attrs.frozen
class FixedSize:
    """One dimension that has the same size in all calls that an entry serves.

    Attributes:
        name: in the user's names: ``a.shape[1]``.
        size: its size.
        where: the line that asked the fact by which it is fixed ("model.py:12"); empty where it is not known.
    """

    name: str
    size: int
    where: str

    def __str__(self) -> str:
        return f"{self.name} == {self.size}"


def fixed_sizes(entry: Entry) -> tuple[FixedSize, ...]:
    """The dimensions that the facts of a symbolic entry fix, in the order of its arguments.

    An exact entry fixes all sizes, for the one reason in ``entry.reason``: none are listed.
    """
    if entry.kind == "exact":
        return ()
    names = entry.key.names
    open_ = [symbols.size(i, d) for i, rank in enumerate(entry.ranks) for d in range(rank)]
    found: dict[Expr, FixedSize] = {}
    knowledge = symbols.Knowledge()
    for fact in entry.facts:
        knowledge.learn(fact.test, fact.outcome)
        for size in open_:
            if size not in found and not isinstance(value := knowledge.simplify(size), Expr):
                found[size] = FixedSize(names.text(size.code), int(value), fact.where)
    return tuple(found[size] for size in open_ if size in found)
