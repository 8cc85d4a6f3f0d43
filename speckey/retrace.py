"""Why a call was compiled although there are entries: the closest one, and the first thing that differs.

Looked for when a call is compiled, never on a hit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from speckey import symbols
from speckey.compiler import Entry
from speckey.key import names_of_parameters
from speckey.signature import Description, Question
from speckey.words import answer_text, definition, guard_difference, guard_name, name_of, question_text

_ARGUMENT = "argument of "


@attrs.frozen
class Retrace:
    """One compile after the first.

    Attributes:
        entry: the number of the closest entry (``Entry.number``).
        reason: the first thing that differed, with both values, in the user's names.
        where: the line of the program that looked at it ("model.py:12"), or where the argument stands; empty where
            neither is known.
        subject: what differed: "`a.shape[0] > 16`"; empty where it has no values.
        was: its value for the closest entry, as text.
        now: its value in this call, as text.
    """

    entry: int
    reason: str
    where: str = ""
    subject: str = ""
    was: str = ""
    now: str = ""

    @classmethod
    def of(cls, entry: int, difference: Difference) -> Retrace:
        d = difference
        return cls(entry, d.reason or f"{d.subject} was {d.was}, is {d.now} now", d.where, d.subject, d.was, d.now)

    @property
    def is_of_argument(self) -> bool:
        """Whether it is about an argument, not about something that a line of the program asked."""
        return not self.where or self.where.startswith(_ARGUMENT)

    def __str__(self) -> str:
        return f"{self.reason} (entry {self.entry})" + (f": {self.where}" if self.where else "")


@attrs.frozen
class Difference:
    """The first thing in which a call and an entry differ, after ``agreed`` things in which they do not."""

    agreed: int
    subject: str = ""
    was: str = ""
    now: str = ""
    where: str = ""
    reason: str = ""  # in other words than these


@attrs.frozen
class _Call:
    description: Description
    fn: Any
    args: tuple
    kwargs: dict

    def names(self, arguments: int = 0) -> dict:
        return names_of_parameters(self.fn, (None,) * max(arguments, len(self.args)), self.kwargs)


def explain_retrace(
    entries: Sequence[Entry], description: Description, fn: Any, args: tuple, kwargs: dict
) -> Retrace | None:
    """The closest entry is the one that agrees with the call the longest; None where there is no entry."""
    best: tuple[Entry, Difference] | None = None
    call = _Call(description, fn, args, kwargs)
    for entry in entries:
        difference = _first_difference(entry, call)
        if best is None or difference.agreed >= best[1].agreed:
            best = entry, difference
    return None if best is None else Retrace.of(best[0].number, best[1])


def most_frequent(retraces: Sequence[Retrace]) -> str:
    """What most calls were compiled again for, how often, and the last time; empty where there is nothing to tell."""
    if not retraces:
        return ""
    causes = [(retrace.subject or retrace.reason, retrace.where) for retrace in retraces]
    cause, times = Counter(causes).most_common(1)[0]
    last = next(r for r, c in zip(reversed(retraces), reversed(causes), strict=True) if c == cause)
    return f"{cause[0]} ({times} of {len(retraces)} times; the last time {last})"


def _first_difference(entry: Entry, call: _Call) -> Difference:
    description = call.description
    answers = dict(description.answers)
    for agreed, (question, was) in enumerate(entry.answers):
        now = answers.get(question, _NOT_ASKED)
        if was != now:
            return _in_signature(agreed, question, was, now, call)
    agreed = len(entry.answers)
    if entry.kind == "exact":
        differing = [
            Difference(agreed, f"`{name}.shape`", str(was), str(now), reason="")
            for name, was, now in zip(entry.key.names.tensors, entry.shapes, description.shapes(), strict=True)
            if was != now
        ]
        if differing:
            return differing[0]
    else:
        sizes = description.sizes()
        for fact in entry.facts:
            try:
                now = symbols.evaluate(fact.test, sizes)
            except ArithmeticError:
                now = None
            if now != fact.outcome:
                text, was = entry.key.names.question(fact)
                if was != fact.outcome and isinstance(now, bool):
                    now = not now  # the program asked for the opposite
                return Difference(agreed, f"`{text}`", repr(was), repr(now), fact.where)
            agreed += 1
    for guard in entry.guards.values():
        if not guard.holds(call.fn, call.args, call.kwargs):
            was, now = guard_difference(guard, call.fn, call.args, call.kwargs)
            return Difference(agreed, f"`{guard_name(guard, call.names(), call.fn)}`", was, now, guard.where)
    if entry.aliases is not None:
        return Difference(agreed, reason="other arguments share memory")
    return Difference(agreed, reason="the entry's program failed")


_NOT_ASKED = object()


def _in_signature(agreed: int, question: Question, was: Any, now: Any, call: _Call) -> Difference:
    where = ""
    if question.path:
        line = definition(call.fn)
        where = f"{_ARGUMENT}`{name_of(call.fn)}`" + (f", {line}" if line else "")
    if now is _NOT_ASKED:
        return Difference(
            agreed,
            reason=f"{question_text(question, call.names())} was {answer_text(question, was)}, and is not there now",
            where=where,
        )
    passed = None
    if (question.kind, question.path) == ("length", ("args",)):
        names = call.names(max(was, now))
        passed = [{names["item", ("args",), i]: None for i in range(length)} for length in (was, now)]
        by_name = [f"`{name}`" for name in passed[0] if name in call.kwargs and name not in passed[1]]
        if by_name:
            return Difference(agreed, reason=f"{', '.join(by_name)} is passed by name now", where=where)
    elif (question.kind, question.path) == ("keys", ("kwargs",)):
        passed = [dict.fromkeys(was), dict.fromkeys(now)]
    reason = "; ".join(_passed(*passed)) if passed else ""
    return Difference(
        agreed,
        "" if reason else question_text(question, call.names()),
        answer_text(question, was),
        answer_text(question, now),
        where,
        reason,
    )


def _passed(before: dict, after: dict) -> Iterator[str]:
    """What differs between the names of arguments that were passed and are passed now."""
    new, gone = ([f"`{n}`" for n in x if n not in y] for x, y in ((after, before), (before, after)))
    if new:
        yield f"{', '.join(new)} {'was' if len(new) == 1 else 'were'} left out, {_be(new)} passed now"
    if gone:
        yield f"{', '.join(gone)} {'was' if len(gone) == 1 else 'were'} passed, {_be(gone)} left out now"


def _be(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
