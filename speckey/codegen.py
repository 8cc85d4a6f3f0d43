"""The table as Python source: one function that walks the decision tree.

Questions that only one answer leads on from are plain ``if`` statements, two or three are told apart by
``if``, more by a dict of functions, so that the cost does not grow with their number.  A function and
those that its dicts lead to are units: a change of the tree makes those units anew in which it shows.

The text consists of fixed words, numbered names and the integers of predicates; everything else is
bound by name.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from speckey import signature, symbols, torch_private
from speckey.guards import PathCode, freeze
from speckey.logs import CODE
from speckey.signature import Question
from speckey.symbols import Expr
from speckey.table import MISS, Node

_MOST_NESTED = 12  # deeper blocks become functions of their own
_MOST_BY_IF = 3
_serial = itertools.count(1)


class Unit:
    """The function for a node; ``go(args, kwargs)`` is a result or ``MISS``.  Made when it is first called.

    ``watch`` is None, or called as ``watch(find, args, kwargs)`` in place of the function.
    """

    def __init__(self, node: Node, fn: Any, lock: threading.RLock) -> None:
        self.node = node
        self.fn = fn
        self.lock = lock
        self.source = ""
        self.watch: Callable[[Callable, tuple, dict], Any] | None = None
        self.name = f"<speckey table {next(_serial)}>"
        self.go: Callable[[tuple, dict], Any] = self._make
        node.unit = self
        weakref.finalize(self, linecache.cache.pop, self.name, None)

    def stale(self) -> None:
        self.go = self._make

    def _make(self, args: tuple, kwargs: dict) -> Any:
        with self.lock:
            writer = _Writer(self)
            writer.code.constants.update(MISS=MISS, fn=self.fn, **_NAMES)
            writer.node(self.node, writer.code, True)
            lines = ["def find(args, kwargs):", *writer.code.lines, " return MISS"]
            self.source = "\n".join(lines) + "\n"
            namespace = writer.code.constants
            exec(compile(self.source, self.name, "exec"), namespace)
            linecache.cache[self.name] = (len(self.source), None, self.source.splitlines(keepends=True), self.name)
            CODE.debug("%s\n%s", self.name, self.source)
            self.go = self._watched(namespace["find"])
        return self.go(args, kwargs)

    def _watched(self, find: Callable[[tuple, dict], Any]) -> Callable[[tuple, dict], Any]:
        watch = self.watch
        if watch is None:
            return find

        @functools.wraps(find)
        def watched(args: tuple, kwargs: dict) -> Any:
            return watch(find, args, kwargs)

        return watched


def source_of(unit: Unit) -> str:
    """The source of a unit and of all that it leads to, as far as calls have made it."""
    waiting, found = [unit], {}
    while waiting:
        unit = waiting.pop()
        if unit.name in found or not unit.source:
            continue
        found[unit.name] = f"# {unit.name}\n{unit.source}"
        for value in getattr(inspect.unwrap(unit.go), "__globals__", {}).values():
            if isinstance(value, Unit):
                waiting.append(value)
            elif isinstance(value, dict) and value and all(isinstance(u, Unit) for u in value.values()):
                waiting.extend(value.values())
    return "\n".join(found.values())


class Switch:
    """The children of a node by answer, as generated code finds them."""

    def __init__(self, node: Node, unit: Unit) -> None:
        self._above = unit
        self.units = {answer: self._unit(child) for answer, child in node.children.items()}

    def _unit(self, child: Node) -> Unit:
        return child.unit or Unit(child, self._above.fn, self._above.lock)  # type: ignore[return-value]

    def add(self, answer: Any, child: Node) -> None:
        self.units[answer] = self._unit(child)

    def drop(self, answer: Any) -> None:
        del self.units[answer]


_NAMES: dict[str, Any] = {
    "Tensor": torch.Tensor,
    "strided": torch.strided,
    "grad_mode": torch.is_grad_enabled,
    "inference_mode": torch.is_inference_mode_enabled,
    "default_dtype": torch.get_default_dtype,
    "default_device": signature.default_device,
    "default_device_may_differ": torch_private.default_device_may_differ,
    "autocast": signature.autocast,
    "keys": signature.keys,
    "bits": signature.bits,
    "same_as": signature.same_as,
    "is_ordinary": signature.is_ordinary,
    "has_no_gradient": signature.has_no_gradient,
    "tensor_details": signature.tensor_details,
    "extras": signature.extras,
    "summary": signature.summary,
    "has_fields_only": signature.has_fields_only,
    "Identity": signature.Identity,
    "freeze": freeze,
}

# How each question is put in code; {v} is the value.
_EXPRESSIONS = {
    "type": "type({v})",
    "length": "len({v})",
    "keys": "keys({v})",
    "value": "{v}",
    "bits": "bits({v})",
    "ordinary": "is_ordinary({v})",
    "dtype": "{v}.dtype",
    "device": "{v}.device",
    "requires grad": "{v}.requires_grad",
    "no gradient": "has_no_gradient({v})",
    "rank": "{v}.dim()",
    "details": "tensor_details({v})",
    "extras": "extras({v})",
    "summary": "summary({v})",
    "fields": "has_fields_only({v})",
    "identity": "Identity({v})",
    "content": "freeze({v})",
    "no grad sync": "no_grad_sync({v})",
    "grad mode": "grad_mode()",
    "inference mode": "inference_mode()",
    "default dtype": "default_dtype()",
    "default device": "default_device()",
    "autocast": "autocast()",
}


class _Learned:
    """The quick check of some tensors, taken over from the first ones that passed the slow one."""

    def __init__(self) -> None:
        self.check: Callable[..., bool] = lambda *tensors: False
        self._lessons = 8  # tensors may differ in ways that do not matter, and only the quick check sees

    def learn(self, *tensors: torch.Tensor) -> None:
        if self._lessons:
            self._lessons -= 1
            self.check = torch_private.tensor_check(tensors, sizes=False) or self.check


class _Writer:
    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.code = PathCode()

    # -- nodes -------------------------------------------------------------------------------------

    def node(self, node: Node, code: PathCode, last: bool, sizes: frozenset[tuple] = frozenset()) -> None:
        """Code for a node.  ``last``: nothing is left to try after it, so that it may return ``MISS``."""
        while True:
            if node.unit is not None and node.unit is not self.unit:
                self.call(f"{code.bind(node.unit)}.go", code, last)
                return
            node.switch = None
            alone = last and node.rest is None
            self.entries(node, code, alone and not node.children)
            if node.test is not None and node.children:
                if alone and len(node.children) == 1:
                    node, sizes = self.only_answer(node, code, sizes)
                    continue
                sizes = self.question(node, code, alone, sizes)
            if node.rest is None:
                return
            node = node.rest

    def entries(self, node: Node, code: PathCode, last: bool) -> None:
        if node.exact:
            paths = next(iter(next(iter(node.exact.values())))).tensor_paths
            shapes = "".join(f"{code.fetch(path)}.shape, " for path in paths)
            code.write(f"for e in reversed({code.bind(node.exact)}.get(({shapes}), ())):")
            self.call("e.run", code.nested(), False)
        if len(node.entries) > _MOST_BY_IF:
            code.write(f"for e in {code.bind(tuple(reversed(node.entries)))}:")
            self.call("e.run", code.nested(), False)
        else:
            for i, entry in enumerate(reversed(node.entries)):
                self.call(code.bind(entry.run), code, last and i == len(node.entries) - 1)

    @staticmethod
    def call(function: str, code: PathCode, last: bool) -> None:
        if last:
            code.write(f"return {function}(args, kwargs)")
        else:
            code.write(f"r = {function}(args, kwargs)")
            code.write("if r is not MISS: return r")

    def only_answer(self, node: Node, code: PathCode, sizes: frozenset[tuple]) -> tuple[Node, frozenset[tuple]]:
        """Return ``MISS`` for any other answer; the node to go on with."""
        run = _tensors_from(node)
        if run:
            return self.tensors(run, code), sizes
        ((answer, child),) = node.children.items()
        test = node.test
        if isinstance(test, Expr):
            value, sizes = self.value_of(test, node, code, sizes)
            code.write(f"if {_is_not(value, answer)}: return MISS")
        else:
            code.write(f"if {self.differs(test, answer, code)}: return MISS")
        return child, sizes

    def tensors(self, run: list[list[Node]], code: PathCode) -> Node:
        """Check some tensors in one go, and one by one where that fails."""
        names = [code.fetch(nodes[0].test.path) for nodes in run]
        learned = code.bind(_Learned())
        conditions = [f"not {learned}.check({', '.join(names)})"]
        slowly: list[str] = []
        for name, nodes in zip(names, run, strict=True):
            conditions.append(f"{name}.__dict__")
            for node in nodes:
                ((answer, _),) = node.children.items()
                if node.test.kind == "no gradient":
                    conditions.append(f"({name}.is_leaf and {name}.grad is not None)")
                slowly.append(self.differs(node.test, answer, code))
        code.write(f"if {' or '.join(conditions)}:")
        for condition in slowly:
            code.write(f" if {condition}: return MISS")
        code.write(f" {learned}.learn({', '.join(names)})")
        (child,) = run[-1][-1].children.values()
        return child

    def question(self, node: Node, code: PathCode, last: bool, sizes: frozenset[tuple]) -> frozenset[tuple]:
        """Several answers, or more to try after a wrong one."""
        test = node.test
        if isinstance(test, Expr):
            chain = _equalities(node)
            if chain:
                self.equalities(chain, code, last, sizes)
                return sizes
            value, sizes = self.value_of(test, node, code, sizes)
        elif len(node.children) > _MOST_BY_IF:
            value = self.expression(test, code)
        else:
            value = ""
        if len(node.children) > _MOST_BY_IF:
            node.switch = Switch(node, self.unit)
            self.switch(node.switch.units, value, code, last)
            return sizes
        word = "if"
        either = len(node.children) == 2 and all(type(a) is bool for a in node.children) and value != "v"
        for answer, child in node.children.items():
            if either and word == "elif":
                code.write("else:")
            elif isinstance(test, Expr):
                code.write(f"{word} {_is(value, answer)}:")
            else:
                code.write(f"{word} not ({self.differs(test, answer, code)}):")
            self.inner(child, code.nested(), last, sizes)
            word = "elif"
        return sizes

    def inner(self, node: Node, code: PathCode, last: bool, sizes: frozenset[tuple]) -> None:
        if code.indent > _MOST_NESTED and node.unit is None:
            Unit(node, self.unit.fn, self.unit.lock)
        before = len(code.lines)
        self.node(node, code, last, sizes)
        if last and not code.lines[-1].lstrip().startswith("return "):
            code.write("return MISS")
        elif len(code.lines) == before:
            code.write("pass")

    def switch(self, units: dict, value: str, code: PathCode, last: bool) -> None:
        code.write(f"u = {code.bind(units)}.get({value})")
        code.write("if u is not None:")
        self.call("u.go", code.nested(), last)

    def equalities(self, chain: list[Node], code: PathCode, last: bool, sizes: frozenset[tuple]) -> None:
        """``n == 1``, else ``n == 2``, else ...: a dict of what ``n`` may be."""
        variable, _ = symbols.split_equality(chain[0].test)
        units = {}
        for node in chain:
            if True in node.children:
                child = node.children[True]
                units[symbols.split_equality(node.test)[1]] = child.unit or Unit(child, self.unit.fn, self.unit.lock)
        value, sizes = self.value_of(variable, chain[0], code, sizes)
        self.switch(units, value, code, last)
        other = chain[-1].children.get(False)
        if other is not None:
            there = "v is not None and " if value == "v" else ""
            constants = code.bind(frozenset(symbols.split_equality(n.test)[1] for n in chain))
            code.write(f"elif {there}{value} not in {constants}:")
            self.inner(other, code.nested(), last, sizes)

    # -- questions ---------------------------------------------------------------------------------

    def value_of(
        self, test: Expr, node: Node, code: PathCode, sizes: frozenset[tuple]
    ) -> tuple[str, frozenset[tuple]]:
        """The text for an expression over sizes, which are given names first."""
        tensors = {("s", tensor) for tensor, _ in symbols.sizes_in(test)}
        numbers = {("n", number) for number in symbols.numbers_in(test)}
        entry = next(iter(node))
        for _, tensor in sorted(tensors - sizes):
            names = "".join(f"s{tensor}_{dim}, " for dim in range(entry.ranks[tensor]))
            code.write(f"{names}= {code.fetch(entry.tensor_paths[tensor])}.shape")
        for _, number in sorted(numbers - sizes):
            code.write(f"n{number} = {code.fetch(entry.number_paths[number])}")
        text = test.code
        if "/" in text or "%" in text:
            # One that makes no sense for these sizes has no answer: none of the children fits.
            code.write(f"try: v = {text}")
            code.write("except ArithmeticError: v = None")
            text = "v"
        return text, sizes | tensors | numbers

    def expression(self, question: Question, code: PathCode) -> str:
        if question.kind == "same as":
            others = "".join(f"{code.fetch(p)}, " for p in question.others)
            return f"same_as({code.fetch(question.path)}, ({others}))"
        value = code.fetch(question.path) if question.path else ""
        if question.kind == "no grad sync":
            code.constants["no_grad_sync"] = signature.ABOUT_VALUES["no grad sync"]
        return _EXPRESSIONS[question.kind].format(v=value)

    def differs(self, question: Question, answer: Any, code: PathCode) -> str:
        """The condition under which the answer is another one."""
        kind = question.kind
        if kind == "default device" and answer is None:
            return "default_device_may_differ() and default_device() is not None"
        if kind == "autocast" and answer is None:
            code.constants["autocast_is_on"] = torch_private.autocast_is_on()
            return "autocast_is_on() and autocast() is not None"
        if kind == "no grad sync" and not answer:
            return f"('use_ddp' in fn.__dict__ or 'use_fsdp' in fn.__dict__) and {self.expression(question, code)}"
        if kind == "same as" and answer is None and len(question.others) <= 8:
            value = code.fetch(question.path)
            return " or ".join(f"{value} is {code.fetch(p)}" for p in question.others)
        value = code.fetch(question.path) if question.path else ""
        if kind == "keys" and not answer:
            return value
        if kind == "ordinary" and answer:
            return f"{value}.layout is not strided or {value}.__dict__"
        if kind == "no gradient" and answer:
            return f"{value}.is_leaf and {value}.grad is not None"
        text = self.expression(question, code)
        if answer is True or answer is False:
            return f"{text} is not {answer}"
        if kind in ("length", "rank") or (kind == "value" and type(answer) is int):
            return f"{text} != {answer}"
        if kind in ("type", "dtype", "default dtype"):
            return f"{text} is not {code.bind(answer)}"
        return f"{text} != {code.bind(answer)}"


def _is_not(value: str, answer: Any) -> str:
    if answer is True or answer is False:
        if value == "v":
            return f"v is not {answer}"
        return f"not ({value})" if answer else value
    return f"{value} != {answer!r}"


def _is(value: str, answer: Any) -> str:
    if answer is True or answer is False:
        if value == "v":
            return f"v is {answer}"
        return value if answer else f"not ({value})"
    return f"{value} == {answer!r}"


def _tensors_from(node: Node) -> list[list[Node]]:
    """The nodes of tensors one after another, as long as only one answer leads on."""
    run: list[list[Node]] = []
    while True:
        nodes: list[Node] = []
        here: Node | None = node
        while here is not None and _is_plain_step(here):
            question = here.test
            if not isinstance(question, Question) or question.kind != _expected(nodes):
                break
            ((answer, child),) = here.children.items()
            if (question.kind == "type" and answer is not torch.Tensor) or (
                question.kind in ("ordinary", "no gradient") and answer is not True
            ):
                break
            nodes.append(here)
            here = child
            if question.kind == "rank":
                break
        if not nodes or nodes[-1].test.kind != "rank" or here is None:
            return run
        run.append(nodes)
        node = here
        if node.unit is not None:
            return run


def _is_plain_step(node: Node) -> bool:
    return len(node.children) == 1 and node.rest is None and not node.entries and not node.exact


def _expected(nodes: list[Node]) -> str:
    """The question about a tensor that comes after these."""
    if not nodes:
        return "type"
    kind = nodes[-1].test.kind
    if kind == "requires grad":
        return "no gradient" if True in nodes[-1].children else "rank"
    order = {"type": "ordinary", "ordinary": "dtype", "dtype": "device", "device": "requires grad"}
    return order.get(kind, "rank")


def _equalities(node: Node) -> list[Node]:
    """A chain of nodes that ask whether the same number is one constant after another."""
    chain: list[Node] = []
    variable = None
    here: Node | None = node
    while here is not None and isinstance(here.test, Expr) and (here is node or here.unit is None):
        split = symbols.split_equality(here.test)
        if split is None or (variable is not None and split[0] != variable):
            break
        if here is not node and (here.entries or here.exact):
            break
        if here.rest is not None:
            break
        variable = split[0]
        chain.append(here)
        here.switch = None
        here = here.children.get(False)
    return chain if len(chain) > _MOST_BY_IF else []

