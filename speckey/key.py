"""The specialization key of an entry: what a call must look like to be served by it.

Knows nothing of thunder, nor of how a key is looked up.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import attrs

from speckey import symbols
from speckey.guards import Path
from speckey.recorder import Fact
from speckey.symbols import Part

_SIZE_OR_NUMBER = re.compile(r"\bs(\d+)_(\d+)\b|\bn(\d+)\b")


@attrs.frozen
class Names:
    """How tensors and other arguments are called in the user's signature."""

    tensors: tuple[str, ...]
    numbers: tuple[str, ...] = ()

    def text(self, code: str) -> str:
        """Source of an expression with ``a.shape[0]`` for ``s0_0``, and ``n`` for ``n0``."""
        code = _LONE_OPERATION.sub(r"\1 \2", code.replace(" & ", " and ").replace(" ^ ", " != "))
        return _SIZE_OR_NUMBER.sub(
            lambda m: self.numbers[int(m[3])] if m[3] else f"{self.tensors[int(m[1])]}.shape[{m[2]}]", code
        )

    def question(self, fact: Fact) -> tuple[str, object]:
        """What was asked, as the program has it where that is known, and the answer: ``("a.shape[0] > 16", True)``."""
        code, answer = fact.asked or (fact.test.code, fact.outcome)
        return self.text(code), answer

    def fact(self, fact: Fact) -> str:
        """One fact as the user would write it: ``a.shape[0] == 2``."""
        code, answer = fact.asked or (fact.test.code, fact.outcome)
        if fact.test.kind is not bool:
            return self.text(f"{code} == {answer!r}")
        return self.text(code if answer else _opposite(code))


_COMPARISON = re.compile(r" (==|!=|<=|>=|<|>) ")
_OPPOSITES = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
# What binds more tightly than the comparison after it needs no parentheses.
_LONE_OPERATION = re.compile(r"^\(([^()]*)\) (==|!=|<=|>=|<|>)")


def _opposite(code: str) -> str:
    """The negation of a predicate, as one comparison where it is one."""
    found = _COMPARISON.findall(code)
    if len(found) != 1 or code.startswith("not "):
        return code.removeprefix("not ") if code.startswith("not (") else f"not ({code})"
    return _COMPARISON.sub(f" {_OPPOSITES[found[0]]} ", code)


@attrs.frozen
class SpecKey:
    """What was looked at when a program was compiled, and how it came out.

    Attributes:
        signature: everything that is not a size, of the arguments and of the state of torch (hashable).
        size_one: which dimensions were compared with 1, and the answers.
        broadcast: which dimensions were compared with each other, and the answers.
        branches: every other question about sizes that tracing asked, and the answers.

    Facts are in canonical order: keys of two entries are equal when they say the same.
    """

    signature: tuple[Hashable, ...]
    size_one: tuple[Fact, ...]
    broadcast: tuple[Fact, ...]
    branches: tuple[Fact, ...]
    arguments: tuple[str, ...] = attrs.field(eq=False, repr=False, default=())
    names: Names = attrs.field(eq=False, repr=False, default=Names(()))

    @classmethod
    def of(
        cls, signature: tuple[Hashable, ...], facts: Iterable[Fact], arguments: tuple[str, ...], names: Names
    ) -> SpecKey:
        parts: dict[Part, list[Fact]] = {part: [] for part in Part}
        for fact in sorted(facts, key=lambda f: (len(f.test.code), f.test.code)):
            parts[symbols.part(fact.test)].append(fact)
        by_part = {part.name.lower(): tuple(facts) for part, facts in parts.items()}
        return cls(signature, **by_part, arguments=arguments, names=names)

    @property
    def facts(self) -> tuple[Fact, ...]:
        return self.size_one + self.broadcast + self.branches

    def __str__(self) -> str:
        return self.text()

    def text(self, *, with_lines: bool = False) -> str:
        """The key in the user's names; ``with_lines`` adds to each fact the line of the program that asked."""
        lines = ["signature:  " + ("\n            ".join(self.arguments) or "no arguments")]
        for title, facts in (
            ("size one", self.size_one),
            ("broadcast", self.broadcast),
            ("branches", self.branches),
        ):
            if facts:
                texts = [self.names.fact(f) for f in facts]
                if with_lines:
                    texts = [f"{t:<40} {f.where}".rstrip() for t, f in zip(texts, facts, strict=True)]
                lines.append(f"{title + ':':<12}" + "\n            ".join(texts))
        return "\n".join(lines)


def names_of_parameters(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Path, str]:
    """The user's names of the arguments that were passed."""
    function = getattr(fn, "forward", fn)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: dict[Path, str] = {("item", ("kwargs",), k): k for k in kwargs}
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    for i in range(len(args)):
        names["item", ("args",), i] = positional[i].name if i < len(positional) else f"{rest}[{i - len(positional)}]"
    names["fn",] = "self" if hasattr(fn, "forward") else getattr(fn, "__name__", "fn")
    return names


def path_text(path: Path, parameters: Mapping[Path, str]) -> str:
    """A path in the arguments as the user would write it: ``batch['ids']``."""
    known = parameters.get(path)
    if known is not None:
        return known
    kind: str = path[0]
    if kind == "item":
        return f"{path_text(path[1], parameters)}[{path[2]!r}]"
    if kind == "attr":
        return f"{path_text(path[1], parameters)}.{path[2]}"
    if kind == "object":
        return _object_text(path[1].value)
    return kind


def _object_text(value: Any) -> str:
    return getattr(value, "__qualname__", None) or type(value).__name__
