"""Why a call was compiled although there are entries: the closest one, and the first thing that differs.

Looked for when a call is compiled, never on a hit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from speckey import symbols
from speckey.compiler import Entry
from speckey.guards import Box, Presence, TensorMetadata
from speckey.key import names_of_parameters, path_text
from speckey.signature import Description, Question

_CAUSE = re.compile(r" (?:was|were|has|is) ")


@attrs.frozen
class Retrace:
    """One compile after the first.

    Attributes:
        entry: the number of the closest entry (``Entry.number``).
        reason: the first thing that differed, with both values, in the user's names.
        where: the line of the program that looked at it ("model.py:12"); empty where it is not known.
    """

    entry: int
    reason: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.reason} (entry {self.entry})" + (f": {self.where}" if self.where else "")


def explain_retrace(
    entries: Sequence[Entry], description: Description, fn: Any, args: tuple, kwargs: dict
) -> Retrace | None:
    """The closest entry is the one that agrees with the call the longest; None where there is no entry."""
    best: tuple[int, Retrace] | None = None
    names = names_of_parameters(fn, args, kwargs)
    sizes = description.sizes()
    for entry in entries:
        agreed, reason, where = _first_difference(entry, description, sizes, names, fn, args, kwargs)
        if best is None or agreed >= best[0]:
            best = agreed, Retrace(entry.number, reason, where)
    return None if best is None else best[1]


def most_frequent(retraces: Sequence[Retrace]) -> str:
    """What most calls were compiled again for, how often, and the last time; empty where there is nothing to tell."""
    if not retraces:
        return ""
    causes = [(_CAUSE.split(retrace.reason, maxsplit=1)[0], retrace.where) for retrace in retraces]
    cause, times = Counter(causes).most_common(1)[0]
    last = next(r for r, c in zip(reversed(retraces), reversed(causes), strict=True) if c == cause)
    return f"{cause[0]} ({times} of {len(retraces)} times; the last time {last})"


def _first_difference(
    entry: Entry, description: Description, sizes: dict, names: dict, fn: Any, args: tuple, kwargs: dict
) -> tuple[int, str, str]:
    answers = dict(description.answers)
    for agreed, (question, was) in enumerate(entry.answers):
        now = answers.get(question, _NOT_ASKED)
        if was != now:
            return agreed, _about(question, was, now, names), ""
    agreed = len(entry.answers)
    if entry.kind == "exact":
        return agreed, f"the shapes were {_shapes(entry.shapes)}, are {_shapes(description.shapes())} now", ""
    for fact in entry.facts:
        try:
            now = symbols.evaluate(fact.test, sizes)
        except ArithmeticError:
            now = None
        if now != fact.outcome:
            text = entry.key.names.text(fact.test.code)
            return agreed, f"`{text}` was {fact.outcome!r}, is {now!r} now", fact.where
        agreed += 1
    for path, guard in entry.guards.items():
        if not guard.holds(fn, args, kwargs):
            return agreed, f"`{path_text(path, names)}` {_guarded(guard.frozen)}", ""
    if entry.aliases is not None:
        return agreed, "other arguments share memory", ""
    return agreed, "the entry's program failed", ""


_NOT_ASKED = object()


def _shapes(shapes: tuple) -> str:
    return ", ".join(map(str, shapes)) or "none"


def _guarded(frozen: Any) -> str:
    if frozen is Presence.ABSENT:
        return "was not there"
    if frozen is Presence.PRESENT:
        return "is not there any more"
    if isinstance(frozen, TensorMetadata):
        return "is another tensor now, or of another shape, dtype or device"
    if isinstance(frozen, tuple) and len(frozen) == 2 and frozen[0] in (bool, int, str):
        return f"was {frozen[1]!r}"
    return "has changed" if frozen is not None else "was None"


_WORDS = {
    "type": "the type of",
    "length": "the length of",
    "keys": "the keys of",
    "dtype": "the dtype of",
    "device": "the device of",
    "requires grad": "requires_grad of",
    "rank": "the number of dimensions of",
    "ordinary": "whether it is an ordinary tensor:",
    "no gradient": "whether it has no .grad:",
    "identity": "the object",
    "same as": "which other argument it is:",
    "details": "the metadata of",
}


def _about(question: Question, was: Any, now: Any, names: dict) -> str:
    if not question.path:
        return f"{question.kind} was {_short(was)}, is {_short(now)} now"
    what = _WORDS.get(question.kind, "")
    name = path_text(question.path, names)
    return f"{what} `{name}` was {_short(was)}, is {_short(now)} now".lstrip()


def _short(value: Any) -> str:
    if isinstance(value, Box):
        value = value.value
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
