"""What one tracing learned: facts about sizes, and values read from outside the arguments.

Filled by ``thunder_hooks`` while thunder traces and compiles; knows nothing of thunder itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinMethodType, MethodType, ModuleType

import attrs

from speckey import symbols
from speckey.guards import NAMESPACES, Guard, Path, Presence, freeze, is_library, is_library_name
from speckey.symbols import Expr, Value


@attrs.frozen
class Fact:
    """``test`` came out as ``outcome``; ``where`` is the user's line that asked ("model.py:12").

    ``asked`` is the comparison as the program has it, with its answer (``("s0_0 > 16", False)`` for the test
    ``s0_0 >= 17``); None where the test is not just that.
    """

    test: Expr
    outcome: object
    where: str = attrs.field(default="", eq=False)
    asked: tuple[str, bool] | None = attrs.field(default=None, eq=False)


_FEW = 40  # facts that are each compared with all others


class Inconsistent(Exception):
    """A recorded outcome contradicts what the sizes say: this tracing cannot be trusted."""


class Recorder:
    """Collects the facts of one tracing, each in canonical form and none that earlier ones imply."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.facts: list[Fact] = []
        self.guards: dict[Path, Guard] = {}
        self.repeatable = True
        self._sizes = sizes
        self._knowledge = symbols.Knowledge()
        self._seen: set[tuple[str, object]] = set()

    # -- facts -------------------------------------------------------------------------------------

    def value(self, expr: Value, value: object, where: str = "") -> None:
        """Tracing read the concrete value of ``expr``."""
        self._record(expr, value, where)

    def truth(self, expr: Value, value: object, where: str = "", asked: str = "") -> None:
        """Tracing branched on ``bool(expr)``; ``value`` is the concrete value of ``expr``.

        ``asked`` is ``expr`` as the program has it, where that is a comparison.
        """
        self._record(symbols.to_bool(expr), bool(value), where, asked)

    def nonzero(self, expr: Value, value: object, where: str = "") -> None:
        """Tracing divided by ``expr``: whether that raises depends on it being zero."""
        if isinstance(expr, Expr):
            self._record(symbols.to_bool(expr), bool(value), where)

    def simplify(self, expr: Value) -> Value:
        """The same value, given the facts so far."""
        return self._knowledge.simplify(expr)

    def settle(self) -> None:
        """Drop the facts that the others imply, whichever were recorded first; the simplest stay."""
        by_weight = sorted(self.facts, key=lambda f: (symbols.part(f.test), len(f.test.code)))
        kept: list[Fact] = []
        knowledge = symbols.Knowledge()
        for fact in by_weight:
            if knowledge.simplify(fact.test) != fact.outcome:
                kept.append(fact)
                knowledge.learn(fact.test, fact.outcome)
        if len(kept) <= _FEW:
            for fact in reversed(list(kept)):
                others = symbols.Knowledge()
                for other in kept:
                    if other is not fact:
                        others.learn(other.test, other.outcome)
                if others.simplify(fact.test) == fact.outcome:
                    kept.remove(fact)
        stay = set(map(id, kept))
        self.facts = [fact for fact in self.facts if id(fact) in stay]

    def bounds(self, expr: Value) -> tuple[float, float]:
        """Lower and upper bound of an integer expression, given the facts so far."""
        return symbols.bounds(self.simplify(expr), self._knowledge)

    def _record(self, expr: Value, outcome: object, where: str, asked: str = "") -> None:
        if not isinstance(expr, Expr):
            return
        recorded = (expr.code, outcome)
        if recorded in self._seen:
            return
        self._seen.add(recorded)
        answer = outcome
        todo = [(expr, outcome)]
        while todo:
            test, outcome = todo.pop(0)
            simpler = self._knowledge.simplify(test)
            split = symbols.canonical_test(simpler, outcome)
            if len(split) > 1:
                todo = split + todo
                continue
            ((test, outcome),) = split
            if not isinstance(test, Expr):
                if test != outcome:
                    raise Inconsistent(f"{expr.code} was {outcome!r}, but the facts before it say {test!r}")
                continue
            if symbols.evaluate(test, self._sizes) != outcome:
                raise Inconsistent(f"{test.code} was {outcome!r} while tracing, but is not")
            as_asked = asked and symbols.canonical_test(expr, answer) == [(test, outcome)]
            self.facts.append(Fact(test, outcome, where, (asked, bool(answer)) if as_asked else None))
            self._knowledge.learn(test, outcome)

    # -- values from outside the arguments -----------------------------------------------------------

    def read(self, path: Path, parent: object, value: object, where: Callable[[], str] = str) -> None:
        """Tracing read ``value`` at ``path`` (an attribute or item of ``parent``).

        ``where`` tells the user's line; asked for new guards only, which are few among all reads.
        """
        if isinstance(value, Iterator) and not _is_library(parent):
            self.repeatable = False  # it changes by being used
        known = self.guards.get(path)
        if (
            (known and not isinstance(known.frozen, Presence))
            or (path[0] == "attr" and path[2] in NAMESPACES)
            or (_is_library(parent) and not _is_registry(value))
            or type(parent).__module__ in _BOOKKEEPING
        ):
            return
        self.guards[path] = Guard(path, freeze(value, parent), where())
        self._not_shadowed(path)

    def read_tensor(self, path: Path, tensor: object, where: Callable[[], str] = str) -> None:
        """A tensor from outside (a parameter, a buffer, a global) is an input with fixed metadata."""
        known = self.guards.get(path)
        self.guards[path] = Guard.tensor(path, tensor, known.where if known else where())
        self._not_shadowed(path)

    def asked(self, path: Path, parent: object, *, there: bool, where: Callable[[], str] = str) -> None:
        """Tracing asked whether an attribute or item is there."""
        if path not in self.guards and not _is_library(parent):
            self.guards[path] = Guard.presence(path, there=there, where=where())

    def _not_shadowed(self, path: Path) -> None:
        """A module's parameters and submodules are found where its own dict does not have the name."""
        if path[0] == "item" and path[1][0] == "attr" and path[1][2] in ("_parameters", "_buffers", "_modules"):
            own = ("item", ("attr", path[1][1], "__dict__"), path[2])
            self.guards.setdefault(own, Guard.presence(own, there=False, where=self.guards[path].where))


# torch.compile notes which modules were made; making one while tracing changes that, and no result depends on it.
_BOOKKEEPING = frozenset(["torch._dynamo.utils", "torch._dynamo.mutation_guard"])


def _is_registry(value: object) -> bool:
    """A small container in a library, such as torch's hooks of all modules: made to be written to."""
    return type(value) in (dict, OrderedDict, list, set) and len(value) <= 16  # type: ignore[arg-type]


def _is_library(parent: object) -> bool:
    if isinstance(parent, dict):  # the globals of a function
        name = parent.get("__name__") if "__builtins__" in parent else None
    elif isinstance(parent, ModuleType):
        name = parent.__name__
    elif isinstance(parent, type) or (callable(parent) and hasattr(parent, "__code__")):
        return is_library(parent)
    elif isinstance(parent, (MethodType, BuiltinMethodType)):
        return _is_library(getattr(parent, "__func__", None) or type(parent.__self__))
    else:
        return False
    return is_library_name(name)
