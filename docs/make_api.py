"""Writes docs/api.md from the docstrings: ``python docs/make_api.py``."""

from __future__ import annotations

import inspect
import pathlib
import re
import textwrap
from typing import Any

import attrs

import speckey
from speckey import policies

HIDDEN = {"Entry.structure", "Report.sections", "Retrace.is_of_argument"}  # for speckey's own use
# Modules whose docstrings say how to write a policy.
PROTOCOLS = {"policies.Vary": policies.vary, "policies.Numbers": policies.numbers, "policies.Drop": policies.drop}

SECTIONS = {
    "The option": ["SpecKeyCache"],
    "Look inside": ["explain", "Report", "entries", "Entry", "SpecKey", "Fact", "Retrace"],
    "Control": ["warmup", "clear", "stance", "check", "save_profile", "replay_profile"],
    "Policies: what may vary": ["AllDims", "Exact", "Automatic", "Dims", "Dim", "Divisible", "policies.Vary"],
    "Policies: numbers": ["AutomaticNumbers", "ConstantNumbers", "SymbolicNumbers", "policies.Numbers"],
    "Policies: what to drop": ["LRU", "Unbounded", "Refuse", "Eager", "policies.Drop", "policies.Room"],
    "Errors": ["SpecKeyError", "RetraceError", "EntryLimitError", "BoundsError", "MismatchError", "ProfileError"],
}


def page() -> str:
    """The reference as Markdown."""
    listed = {name for names in SECTIONS.values() for name in names}
    missing = sorted(set(speckey.__all__) - listed)
    if missing:
        raise ValueError(f"SECTIONS lacks {', '.join(missing)}")
    parts = [
        "# Reference\n",
        "Written from the docstrings by `python docs/make_api.py`. All names are of the package `speckey`.\n",
    ]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += _described(name)
    return "\n".join(parts)


def _described(name: str) -> list[str]:
    value = getattr(policies, name.removeprefix("policies.")) if "." in name else getattr(speckey, name)
    parts = [f"### `{name}{_signature(value)}`\n", _markdown(inspect.getdoc(value) or "")]
    if name in PROTOCOLS:
        parts.append(_markdown(inspect.getdoc(PROTOCOLS[name]) or ""))
    if inspect.isclass(value):
        for member, function in vars(value).items():
            doc = inspect.getdoc(function)
            if (
                member.startswith("_")
                or not doc
                or f"{name}.{member}" in HIDDEN
                or not isinstance(function, (type(page), property))
            ):
                continue
            arguments = "" if isinstance(function, property) else _signature(function)
            parts += [f"#### `{name}.{member}{arguments}`\n", _markdown(doc)]
    return parts


def _signature(value: Any) -> str:
    """Parameters with their defaults; those of types and containers by the docstring."""
    if inspect.isclass(value) and (
        issubclass(value, Exception) or value in (speckey.Report, speckey.Entry, speckey.SpecKey, speckey.Retrace)
    ):
        return ""
    if getattr(value, "_is_protocol", False):
        return ""
    shown = []
    for parameter in inspect.signature(value).parameters.values():
        if parameter.name == "self":
            continue
        parameter = parameter.replace(annotation=parameter.empty)
        if parameter.default is attrs.NOTHING:
            parameter = parameter.replace(default=None)
        shown.append(parameter)
    return re.sub(r"=<[^>]*>", "=...", str(inspect.Signature(shown)))


def _markdown(doc: str) -> str:
    """A docstring: headings of Google style in bold, their items as a list, code blocks fenced."""
    doc = re.sub(r"``(.+?)``", r"`\1`", doc)
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", doc):
        heading, _, rest = paragraph.partition("\n")
        if re.fullmatch(r"(Args|Attributes|Raises|Returns):", heading):
            lines += [f"**{heading[:-1]}**\n", *_items(textwrap.dedent(rest)), ""]
        elif paragraph.startswith("    "):
            lines += ["```", textwrap.dedent(paragraph), "```\n"]
        else:
            lines += [re.sub(r"::$", ":", paragraph), ""]
    return "\n".join(lines)


def _items(text: str) -> list[str]:
    items: list[str] = []
    for line in text.splitlines():
        if line.startswith(" ") and items:
            items[-1] += " " + line.strip()
        else:
            items.append(re.sub(r"^([\w, ]+): ", r"- `\1`: ", line) if ": " in line else f"- {line}")
    return items


if __name__ == "__main__":
    path = pathlib.Path(__file__).with_name("api.md")
    path.write_text(page(), encoding="utf-8")
    print(f"wrote {path.name}")
