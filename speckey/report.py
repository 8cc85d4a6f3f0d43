"""A report of a compiled callable: how a call finds its entry, which line asked, and why calls were compiled again."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs

from speckey.codegen import source_of
from speckey.compiler import Entry
from speckey.dispatch import table_of
from speckey.fixed import FixedSize, fixed_sizes
from speckey.html import page
from speckey.outline import Step, outline
from speckey.retrace import Retrace
from speckey.rows import rows
from speckey.words import name_of

_MOST_CAUSES = 6  # of one line of the program, beyond which the first stands for all
_MOST_ARGUMENTS = 8
_LONGEST = 24  # characters of a value among others
_FARTHEST = 72  # column of the lines that asked, where what stands before them is shorter
_MOST_ALIKE = 3  # retraces with one cause, beyond which they share a line


@attrs.frozen
class Report:
    """What ``explain`` prints; ``str`` of it is the text.

    Attributes:
        name: of the compiled function, or of the module's class.
        entries: oldest first; the text calls them by their numbers: [1], [2], ...
        hits: calls that were served without compiling.
        misses: calls that were compiled for.
        retraces: why calls were compiled after the first, oldest first.
        seconds_compiling: what tracing and compiling these entries took, in seconds.
        fixed: for each entry the sizes that its facts fix to one value.
        tree: the decision tree, as steps of ``speckey.outline``.
        code: the Python source of the look-up, as far as calls have made it.
    """

    name: str
    entries: tuple[Entry, ...]
    hits: int
    misses: int
    retraces: tuple[Retrace, ...]
    seconds_compiling: float
    fixed: tuple[tuple[FixedSize, ...], ...] = attrs.field(repr=False)
    tree: tuple[Step, ...] = attrs.field(repr=False)
    code: str = attrs.field(repr=False)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.summary}"]
        for title, section in self.sections():
            lines += ["", title, *(f"    {line}".rstrip() for line in section)]
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """The numbers in one line."""
        return (
            f"{_count(len(self.entries), 'entry', 'entries')}, {_count(self.hits, 'hit', 'hits')}, "
            f"{_count(self.misses, 'miss', 'misses')}, {self.seconds_compiling:.1f} s compiling"
        )

    def sections(self, *, tree: bool = True) -> Iterator[tuple[str, list[str]]]:
        """Titles, each with its lines of text; without those that have nothing to say."""
        if self.entries:
            yield "Arguments", _common_arguments(self.entries)
            if tree:
                yield "How a call finds its entry", _aligned((str(row), row.where) for row in rows(self.tree))
        for title, lines in (
            ("Arguments of single entries", _own_arguments(self.entries)),
            ("Sizes that are fixed", _aligned(_fixed_lines(self.entries, self.fixed))),
            ("Entries that are not free in all sizes", _reasons(self.entries)),
            ("Why calls were compiled again", _retrace_lines(self.retraces)),
        ):
            if lines:
                yield title, lines

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one self-contained page, with the tree as a picture.

        Args:
            path: of the file to write; an existing one is replaced.

        Raises:
            OSError: the file cannot be written.
        """
        with open(path, "w", encoding="utf-8") as file:
            file.write(page(self))


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
    report = Report(
        name=name_of(table.fn),
        entries=entries,
        hits=table.hits,
        misses=table.misses,
        retraces=tuple(table.retraces),
        seconds_compiling=sum(e.compile_seconds for e in entries),
        fixed=tuple(map(fixed_sizes, entries)),
        tree=outline(table.unit.node, entries, table.fn),
        code=source_of(table.unit),
    )
    print(report)
    if code:
        print("\n" + report.code, end="")
    return report


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


# -- the sections ----------------------------------------------------------------------------------


def _aligned(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Lines of text with the line that asked in one column, as far as they are short enough."""
    pairs = list(lines)
    column = max((len(text) for text, where in pairs if where and len(text) <= _FARTHEST), default=0)
    return [f"{text:<{column}}  {where}".rstrip() for text, where in pairs]


def _common_arguments(entries: Sequence[Entry]) -> list[str]:
    common = [a for a in entries[0].key.arguments if all(a in e.key.arguments for e in entries)]
    return common or (["differ between entries"] if len(entries) > 1 else ["none"])


def _own_arguments(entries: Sequence[Entry]) -> list[str]:
    common = _common_arguments(entries) if entries else []
    numbers: dict[str, list[int]] = {}
    for entry in entries:
        own = "; ".join(a for a in entry.key.arguments if a not in common)
        if own:
            numbers.setdefault(own, []).append(entry.number)
    lines = [f"{_numbered(of)} {own}" for own, of in numbers.items()]
    left = len(lines) - _MOST_ARGUMENTS
    return lines if left <= 1 else [*lines[:_MOST_ARGUMENTS], f"... and {left} more"]


def _fixed_lines(entries: Sequence[Entry], fixed: Sequence[Sequence[FixedSize]]) -> Iterator[tuple[str, str]]:
    values: dict[tuple[str, str], dict[int, list[int]]] = {}
    for entry, sizes in zip(entries, fixed, strict=True):
        for size in sizes:
            values.setdefault((size.name, size.where), {}).setdefault(size.size, []).append(entry.number)
    for (name, where), numbers in values.items():
        of_all = sorted(number for of in numbers.values() for number in of)
        yield f"{name} is {_listed(numbers)} in {_numbered(of_all)}", where


def _reasons(entries: Sequence[Entry]) -> list[str]:
    numbers: dict[tuple[str, str], list[int]] = {}
    for entry in entries:
        if (entry.kind == "exact" and any(entry.shapes)) or entry.reason:
            numbers.setdefault((entry.kind, entry.reason), []).append(entry.number)
    return [f"{_numbered(of)} {kind}: {reason or 'by policy'}" for (kind, reason), of in numbers.items()]


def _retrace_lines(retraces: Sequence[Retrace]) -> list[str]:
    """One line each, oldest first, and one for many of one cause, or of one line of the program."""
    causes = _grouped(retraces, lambda r: (r.subject or r.reason, r.where))
    of_line = Counter(cause[0].where for cause in causes if not cause[0].is_of_argument)
    lines = []
    for cause in causes:
        first = cause[0]
        asked = of_line[first.where]
        if asked > _MOST_CAUSES:
            lines += [
                f"{first.where} asked {asked} questions that came out differently, the first of them:",
                str(first),
            ]
            of_line[first.where] = -1
        elif asked >= 0:
            lines += map(str, cause) if len(cause) <= _MOST_ALIKE else [_alike(cause)]
    return lines


def _grouped(retraces: Sequence[Retrace], key: Callable[[Retrace], Any]) -> list[list[Retrace]]:
    groups: dict[Any, list[Retrace]] = {}
    for retrace in retraces:
        groups.setdefault(key(retrace), []).append(retrace)
    return list(groups.values())


def _alike(retraces: Sequence[Retrace]) -> str:
    first = retraces[0]
    if len({(r.was, r.now) for r in retraces}) == 1:
        text = f"{first.reason} ({len(retraces)} times)"
    else:
        values = _listed(dict.fromkeys(r.now for r in retraces))
        text = f"{first.subject} had another value {len(retraces)} times: {values}"
    return text + (f": {first.where}" if first.where else "")


def _listed(values: Iterable[Any]) -> str:
    texts = [text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..." for text in map(str, values)]
    return ", ".join(texts if len(texts) <= 6 else [*texts[:4], "...", texts[-1]])


def _numbered(numbers: Sequence[int]) -> str:
    """``[1]-[3], [5]``"""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [f"[{r[0]}]-[{r[-1]}]" if len(r) > 2 else ", ".join(f"[{n}]" for n in r) for r in runs]
    return _listed(texts)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
