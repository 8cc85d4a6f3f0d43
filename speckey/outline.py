"""The decision tree in the user's words, as text and pictures show it.

A tree is a sequence of steps: conditions that every call so far has met, entries, and at its end a fork.
Knows nothing of how it is printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

import attrs

from speckey.compiler import Entry
from speckey.guards import Path
from speckey.key import names_of_parameters
from speckey.recorder import Fact
from speckey.signature import Question
from speckey.table import Node
from speckey.words import answer_text, guard_answer, guard_name, question_text


@attrs.frozen
class Condition:
    """A question that had one answer so far: ``a.shape[1] != 1``."""

    text: str
    where: str = ""


@attrs.frozen
class Leaf:
    """An entry, which serves the calls that get here."""

    entry: Entry


@attrs.frozen
class Branch:
    """One answer, and where it leads.

    Attributes:
        label: the answer, or in a ladder the question that was answered with yes.
        steps: what comes then.
        where: the line that asked, if it is not the fork's.
        before: in a ladder, what calls that come this far have met.
    """

    label: str
    steps: tuple[Step, ...]
    where: str = ""
    before: tuple[Condition, ...] = ()


@attrs.frozen
class Fork:
    """A question with several answers."""

    text: str
    branches: tuple[Branch, ...]
    where: str = ""


Step = Union[Condition, Leaf, Fork]  # noqa: UP007  (Python 3.10 evaluates this)

LADDER = "the first of these that holds"
_SHORTEST_LADDER = 3
_MOST_GUARDS = 3  # that tell entries apart, and are told
OTHERWISE = "otherwise"  # entries that did not ask, tried where the answer leads nowhere
# Questions of the signature that are worth telling although all calls that get there answer the same.
_TELLING = frozenset(["value", "bits", "dtype", "rank", "summary"])


def outline(root: Node, entries: Sequence[Entry], fn: Any) -> tuple[Step, ...]:
    """The tree below ``root``, in which these entries are."""
    return _Outline(entries, fn).steps(root)


class _Outline:
    def __init__(self, entries: Sequence[Entry], fn: Any) -> None:
        self.fn = fn
        self.facts = {id(e): {fact.test: fact for fact in e.facts} for e in entries}
        self.names = _names(entries, fn)
        common = [set(map(repr, (question for question, _ in e.answers))) for e in entries]
        self.common = set.intersection(*common) if common else set()

    def steps(self, node: Node) -> tuple[Step, ...]:
        steps: list[Step] = []
        while True:
            steps += self.entries_here(node)
            if node.test is None:
                return tuple(steps)
            if len(node.children) == 1 and node.rest is None:
                ((answer, child),) = node.children.items()
                condition = self.condition(node, answer)
                if condition is not None:
                    steps.append(condition)
                node = child
                continue
            return (*steps, self.fork(node))

    def asked(self, node: Node) -> tuple[Fact, Entry]:
        """The fact about a node's question, of the first entry that has one."""
        test = node.test
        for entry in node:
            fact = self.facts[id(entry)].get(test)
            if fact is not None:
                return fact, entry
        raise LookupError(test)

    def condition(self, node: Node, answer: Any) -> Condition | None:
        question = node.test
        if not isinstance(question, Question):
            fact, entry = self.asked(node)
            return Condition(entry.key.names.fact(fact), fact.where)
        if question.kind not in _TELLING or repr(question) in self.common:
            return None
        return Condition(f"{question_text(question, self.names)} is {answer_text(question, answer)}")

    def fork(self, node: Node) -> Fork:
        question = node.test
        where = ""
        if isinstance(question, Question):
            text = question_text(question, self.names)
            labels = {answer: answer_text(question, answer) for answer in node.children}
        else:
            fact, entry = self.asked(node)
            where = fact.where
            text, answer = entry.key.names.question(fact)
            if fact.test.kind is bool:
                flipped = bool(answer) != bool(fact.outcome)
                labels = {a: "yes" if bool(a) != flipped else "no" for a in node.children}
            else:
                labels = {a: f"== {a!r}" for a in node.children}
        children = sorted(node.children.items(), key=lambda c: labels[c[0]] == "no")  # yes comes first
        branches = [Branch(labels[answer], self.steps(child)) for answer, child in children]
        if node.rest is not None:
            branches.append(Branch(OTHERWISE, self.steps(node.rest)))
        return _as_ladder(Fork(text, tuple(branches), where))

    def entries_here(self, node: Node) -> Iterator[Step]:
        if node.exact:
            yield self.exact_entries(node)
        entries = [*reversed(node.entries)]  # as they are tried
        if entries:
            yield self.told_apart_by_guards(entries)

    def exact_entries(self, node: Node) -> Step:
        branches = []
        for shapes, entries in node.exact.items():
            here = self.told_apart_by_guards([*reversed(entries)])
            if not shapes:
                return here
            branches.append(Branch(", ".join(map(str, shapes)), (here,)))
        tensors = next(iter(next(iter(node.exact.values())))).key.names.tensors
        return Fork(f"the {'shapes' if len(tensors) > 1 else 'shape'} of {', '.join(tensors)}", tuple(branches))

    def told_apart_by_guards(self, entries: Sequence[Entry]) -> Step:
        """Entries whose facts are the same, by what differs between them."""
        if len(entries) == 1:
            return Leaf(entries[0])
        return Fork("values from outside the arguments", tuple(self.by_guards(entries)))

    def by_guards(self, entries: Sequence[Entry]) -> Iterator[Branch]:
        paths = dict.fromkeys(path for e in entries for path in e.guards)
        differing = [p for p in paths if len({_frozen(e, p) for e in entries}) > 1]
        for entry in entries:
            guards = [entry.guards[p] for p in differing if p in entry.guards][:_MOST_GUARDS]
            label = ", ".join(f"{guard_name(g, self.names, self.fn)} {guard_answer(g)}" for g in guards)
            where = guards[0].where if guards else ""
            yield Branch(label or OTHERWISE, (Leaf(entry),), where)


def _frozen(entry: Entry, path: Path) -> str:
    return repr(entry.guards[path].frozen) if path in entry.guards else ""


def _names(entries: Sequence[Entry], fn: Any) -> Mapping[Path, str]:
    """The user's names of all arguments that any entry was given."""
    longest, keywords = 0, {}
    for entry in entries:
        for question, answer in entry.answers:
            if question.path == ("args",):
                longest = max(longest, answer)  # type: ignore[call-overload]
            elif question.path == ("kwargs",):
                keywords.update(dict.fromkeys(answer))  # type: ignore[call-overload]
    return names_of_parameters(fn, (None,) * longest, keywords)


# -- ladders ---------------------------------------------------------------------------------------


def _as_ladder(fork: Fork) -> Fork:
    """``if``, ``elif``, ``elif``: a chain of questions, each of which takes one way out, stays on one level."""
    rungs: list[Branch] = []
    before: tuple[Condition, ...] = ()
    step: Fork = fork
    while True:
        rung = _rung(step)
        if rung is None:
            return fork
        rungs.append(attrs.evolve(rung[0], before=before))
        *conditions, last = rung[1]
        if not isinstance(last, Fork) or not all(isinstance(c, Condition) for c in conditions):
            rungs.append(Branch(OTHERWISE, rung[1]))
            break
        before, step = tuple(conditions), last  # type: ignore[assignment]
        if last.text == LADDER:
            rungs += [attrs.evolve(last.branches[0], before=before), *last.branches[1:]]
            break
    return Fork(LADDER, tuple(rungs)) if len(rungs) > _SHORTEST_LADDER else fork


def _rung(fork: Fork) -> tuple[Branch, tuple[Step, ...]] | None:
    """The way out of a question with two answers, and where the other answer leads; None for other forks."""
    if len(fork.branches) != 2 or not {b.label for b in fork.branches} <= {"yes", "no", OTHERWISE}:
        return None
    for out, on in (fork.branches, fork.branches[::-1]):
        if out.label != OTHERWISE and not any(isinstance(step, Fork) for step in out.steps):
            return Branch(fork.text if out.label == "yes" else f"not {fork.text}", out.steps, fork.where), on.steps
    return None
