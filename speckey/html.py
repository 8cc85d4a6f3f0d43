"""The report as one page: no scripts, nothing loaded from elsewhere, all text escaped.

The tree is an SVG picture with a layout of its own: one row below the other, indented by fork.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from speckey.rows import Row, leaf_text, rows

if TYPE_CHECKING:
    from speckey.compiler import Entry
    from speckey.fixed import FixedSize
    from speckey.report import Report

_STYLE = """
:root { color-scheme: light dark; --text: #1d2430; --dim: #69748a; --back: #ffffff; --line: #c3cad6;
  --box: #f2f4f8; --fork: #2b5fc7; --symbolic: #dff3e4; --exact: #fbe9cf; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ef; --dim: #98a3b8; --back: #14171d; --line: #444d5e;
  --box: #20252f; --fork: #8fb4ff; --symbolic: #1d4429; --exact: #57401a; } }
body { margin: 2rem auto; max-width: 75rem; padding: 0 1.5rem; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .3rem 0; } p, td.dim, th { color: var(--dim); }
code, pre, td, svg text { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; } td, th { padding: .25rem 1.2rem .25rem 0; text-align: left;
  vertical-align: top; border-bottom: 1px solid var(--line); } th { font-weight: 600; font-size: 13px; }
td.number, th.number { text-align: right; }
svg { display: block; } svg text { fill: var(--text); } svg .where, svg .dim { fill: var(--dim); }
svg .rail { stroke: var(--line); fill: none; stroke-width: 1.5; } svg .fork { fill: var(--fork); font-weight: 600; }
svg .box { fill: var(--box); } svg .symbolic { fill: var(--symbolic); } svg .exact { fill: var(--exact); }
"""
_HEIGHT, _STEP, _CHARACTER = 27, 26, 7.83  # of a row, of an indentation, of a character of 13 px


def page(report: Report) -> str:
    """The whole page as text."""
    name = escape(report.name)
    sections = "\n".join(
        f"<h2>{escape(title)}</h2>\n<pre>{escape(chr(10).join(lines))}</pre>"
        for title, lines in report.sections(tree=False)
    )
    tree = _picture(list(rows(report.tree))) if report.entries else "<p>Not called yet.</p>"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{name}: compiled programs</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{name}</h1>
<p>{escape(report.summary)}</p>
<h2>How a call finds its entry</h2>
<div class="wide">
{tree}
</div>
<h2>Entries</h2>
<div class="wide">
{_table(report)}
</div>
{sections}
</body>
</html>
"""


def _table(report: Report) -> str:
    head = "".join(
        f'<th class="{kind}">{title}</th>'
        for title, kind in (("entry", ""), ("kind", ""), ("hits", "number"), ("compiled in", "number"), ("fixed", ""))
    )
    lines = [
        f"<tr><td>[{entry.number}]</td><td>{escape(entry.kind)}</td><td class=number>{entry.hits}</td>"
        f"<td class=number>{entry.compile_seconds:.2f} s</td><td>{escape(_fixed(entry, fixed))}</td></tr>"
        for entry, fixed in zip(report.entries, report.fixed, strict=True)
    ]
    return f"<table>\n<tr>{head}</tr>\n" + "\n".join(lines) + "\n</table>"


def _fixed(entry: Entry, fixed: Sequence[FixedSize]) -> str:
    if entry.kind == "exact":
        return "shapes " + ", ".join(map(str, entry.shapes)) if entry.shapes else ""
    return ", ".join(map(str, fixed))


# -- the picture -----------------------------------------------------------------------------------


def _picture(all_rows: Sequence[Row]) -> str:
    column = max((_end(row) for row in all_rows if row.where), default=0) + 24  # of the lines that asked
    width = max([_end(row) for row in all_rows] + [column + _width(row.where) for row in all_rows if row.where])
    parts = [part for i, row in enumerate(all_rows) for part in _row(row, i * _HEIGHT, column)]
    height = len(all_rows) * _HEIGHT + 4
    return (
        f'<svg width="{width + 10:.0f}" height="{height}" viewBox="0 0 {width + 10:.0f} {height}" role="img" '
        f'aria-label="the decision tree">\n' + "\n".join(parts) + "\n</svg>"
    )


def _width(text: str) -> float:
    return len(text) * _CHARACTER


def _start(row: Row) -> float:
    """Where the text of a row begins, in pixels from the left."""
    return 8 + _STEP * (len(row.rails) + (row.kind == "branch"))


def _end(row: Row) -> float:
    text = _width(row.text) + 14 if row.text else 0
    return _start(row) + text + (0 if row.leaf is None else _width(leaf_text(row.leaf)) + 26)


def _row(row: Row, y: float, column: float) -> Iterator[str]:
    x, middle, base = _start(row), y + _HEIGHT / 2, y + _HEIGHT / 2 + 4.5
    for level, goes_on in enumerate(row.rails):
        if goes_on:
            yield _line(_rail(level), y, _rail(level), y + _HEIGHT)
    if row.kind == "branch":
        rail = _rail(len(row.rails))
        yield _line(rail, y, rail, middle if row.last else y + _HEIGHT)
        yield _line(rail, middle, rail + _STEP - 8, middle)
    if row.text:
        if row.kind == "branch":
            yield _box("box", x - 6, y, _width(row.text) + 12)
        yield f'<text x="{x:.1f}" y="{base:.1f}" class="{row.kind}" xml:space="preserve">{escape(row.text)}</text>'
        x += _width(row.text) + 14
    if row.leaf is not None:
        text = leaf_text(row.leaf)
        if row.text:
            yield _line(x - 8, middle, x + 6, middle)
            x += 12
        yield _box(row.leaf.entry.kind, x - 6, y, _width(text) + 12)
        yield f'<text x="{x:.1f}" y="{base:.1f}">{escape(text)}</text>'
    if row.where:
        yield f'<text x="{column:.1f}" y="{base:.1f}" class="where">{escape(row.where)}</text>'


def _rail(level: int) -> float:
    return 8 + _STEP * level + 8


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="rail" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _box(kind: str, x: float, y: float, width: float) -> str:
    return f'<rect class="{escape(kind)}" x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{_HEIGHT - 6}" rx="6"/>'
