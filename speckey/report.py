"""A report of a compiled callable: its entries, what they depend on, and which line asked."""

from __future__ import annotations

from typing import Any

import attrs

from speckey.codegen import source_of
from speckey.compiler import Entry
from speckey.dispatch import table_of
from speckey.retrace import Retrace


@attrs.frozen
class Report:
    """What ``explain`` prints.

    Attributes:
        entries: oldest first.
        hits: calls that were served without compiling.
        misses: calls that were compiled for.
        retraces: why calls were compiled after the first, oldest first.
        seconds_compiling: what tracing and compiling these entries took, in seconds.
        code: the Python source of the look-up, as far as calls have made it.
    """

    entries: tuple[Entry, ...]
    hits: int
    misses: int
    retraces: tuple[Retrace, ...]
    seconds_compiling: float
    code: str = attrs.field(repr=False)

    def __str__(self) -> str:
        lines = [
            f"{_count(len(self.entries), 'entry', 'entries')}, {_count(self.hits, 'hit', 'hits')}, "
            f"{_count(self.misses, 'miss', 'misses')}, {self.seconds_compiling:.1f} s compiling"
        ]
        for entry in self.entries:
            lines += ["", *describe_entry(entry)]
        if self.retraces:
            lines += ["", "Compiled again because:", *(f"    {retrace}" for retrace in self.retraces)]
        return "\n".join(lines)


def describe_entry(entry: Entry) -> list[str]:
    """Lines of text: how often it was used, what it depends on, and the line that asked for each fact."""
    hits = _count(entry.hits, "hit", "hits")
    lines = [f"[{entry.number}] {entry.kind}, {hits}, compiled in {entry.compile_seconds:.1f} s"]
    if entry.reason:
        lines.append(f"    because:    {entry.reason}")
    if entry.kind == "exact":
        lines.append(f"    shapes:     {', '.join(map(str, entry.shapes))}")
    lines += [f"    {line}" for line in entry.key.text(with_lines=True).splitlines()]
    return lines


def explain(jfn: Any, *, code: bool = False) -> Report:
    """Print a report of a callable compiled with a ``SpecKeyCache``, and return it.

    Args:
        jfn: the compiled callable.
        code: print the Python source of the look-up as well.

    Raises:
        TypeError: ``jfn`` was not compiled with a ``SpecKeyCache``.
    """
    table = table_of(jfn)
    entries = tuple(table.entries)
    seconds = sum(e.compile_seconds for e in entries)
    report = Report(entries, table.hits, table.misses, tuple(table.retraces), seconds, source_of(table.unit))
    print(report)
    if code:
        print("\n" + report.code, end="")
    return report


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
