"""Expressions over the sizes of input tensors: build, canonicalize, print as Python.

Every expression is built in canonical form, and its identity is its Python source (``code``): two
expressions with equal code are equal.  Plain Python numbers stand for constants.  Sizes are
non-negative integers, which is what makes most of the facts that tracing collects vanish here.
Knows nothing of thunder or torch.

Integer expressions are polynomials over *atoms* (a size, a floor division, a remainder, ...);
predicates are ``p == 0`` and ``p >= 0`` over such polynomials, or their negation.
"""

from __future__ import annotations

import enum
import functools
import math
import operator
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union

import attrs

INF = math.inf


@attrs.frozen(eq=False, repr=False, slots=True)
class Expr:
    """One canonical expression.

    ``code`` is Python over the names ``s{tensor}_{dim}`` (and ``math``); ``kind`` is the Python type
    of its value; ``low`` and ``high`` bound an integer atom from sizes being non-negative alone.
    """

    code: str
    kind: type
    op: str
    args: tuple[Any, ...]
    low: float = -INF
    high: float = INF

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and self.code == other.code

    def __hash__(self) -> int:
        return hash(self.code)

    def __repr__(self) -> str:
        return self.code


Value = Union[Expr, int, float, bool]  # noqa: UP007  (Python 3.10 evaluates this)
Monomial = tuple[Expr, ...]
Polynomial = dict[Monomial, int]


class Unsupported(Exception):
    """The expression language has no exact word for this; the caller must use the concrete value."""


def size(tensor: int, dim: int) -> Expr:
    """The size of dimension ``dim`` of the ``tensor``-th tensor argument: an integer >= 0."""
    return Expr(f"s{tensor}_{dim}", int, "size", (tensor, dim), 0, INF)


NUMBER_LIMIT = 2**31  # integers beyond are not made symbolic


def number(index: int, kind: type) -> Expr:
    """The ``index``-th number among the arguments, an int or a float; ``in_range`` must hold of an int."""
    if kind is int:
        return Expr(f"n{index}", int, "number", (index,), -NUMBER_LIMIT, NUMBER_LIMIT - 1)
    return Expr(f"n{index}", kind, "number", (index,))


def is_free_number(value: int | float) -> bool:
    """Whether a number may be symbolic; not a number (nan) is equal to nothing, so that no fact holds of it."""
    return -NUMBER_LIMIT <= value < NUMBER_LIMIT


def in_range(number: Value) -> Value:
    """Whether an integer argument lies within the bounds that are taken for granted of it."""
    if not isinstance(number, Expr):
        return -NUMBER_LIMIT <= number < NUMBER_LIMIT
    return Expr(f"{-NUMBER_LIMIT} <= {number.code} < {NUMBER_LIMIT}", bool, "in range", (number,))


def kind_of(value: Value) -> type:
    return value.kind if isinstance(value, Expr) else type(value)


def sizes_in(value: Value) -> frozenset[tuple[int, int]]:
    """The (tensor, dim) pairs that an expression reads."""
    return frozenset(leaf.args for leaf in _leaves(value) if leaf.op == "size")


def numbers_in(value: Value) -> frozenset[int]:
    """Which of the numbers among the arguments an expression reads."""
    return frozenset(leaf.args[0] for leaf in _leaves(value) if leaf.op == "number")


@functools.lru_cache(maxsize=65536)
def _leaves(value: Value) -> frozenset[Expr]:
    if not isinstance(value, Expr):
        return frozenset()
    if value.op in _LEAVES:
        return frozenset([value])
    return frozenset().union(*map(_leaves, _children(value)))


_LEAVES = ("size", "number")


def _children(expr: Expr) -> Iterable[Value]:
    if expr.op == "poly":
        for monomial, _ in expr.args:
            yield from monomial
    elif expr.op not in _LEAVES:
        yield from expr.args


# -- polynomials -----------------------------------------------------------------------------------


def _polynomial(value: Value) -> Polynomial:
    if not isinstance(value, Expr):
        return {(): int(value)} if value else {}
    if value.op == "poly":
        return dict(value.args)
    if value.kind is bool:
        return {(_bool_as_int(value),): 1}
    return {(value,): 1}


def _bool_as_int(expr: Expr) -> Expr:
    return Expr(f"int({expr.code})", int, "int", (expr,), 0, 1)


def _from_polynomial(terms: Polynomial) -> Value:
    items = tuple(sorted(((m, c) for m, c in terms.items() if c), key=_term_order))
    if not items:
        return 0
    if len(items) == 1:
        monomial, coefficient = items[0]
        if not monomial:
            return coefficient
        if coefficient == 1 and len(monomial) == 1:
            return monomial[0]
    return Expr(_sum_code(items), int, "poly", items)


def _term_order(item: tuple[Monomial, int]) -> tuple[bool, int, list[tuple[int, str]]]:
    # Constants last, so that the first term decides the sign of a predicate.
    monomial, _ = item
    return (not monomial, len(monomial), [(len(atom.code), atom.code) for atom in monomial])


def _atom_order(atom: Expr) -> tuple[int, str]:
    return (len(atom.code), atom.code)


def _term_code(monomial: Monomial, coefficient: int) -> str:
    factors = [atom.code if _is_simple(atom) else f"({atom.code})" for atom in monomial]
    if coefficient != 1 or not factors:
        factors.insert(0, str(coefficient))
    return "*".join(factors)


def _is_simple(atom: Expr) -> bool:
    return atom.op in ("size", "number", "int", "call", "larger")


def _sum_code(items: Iterable[tuple[Monomial, int]]) -> str:
    out = ""
    for monomial, coefficient in items:
        if not out:
            out = _term_code(monomial, coefficient)
        elif coefficient < 0:
            out += " - " + _term_code(monomial, -coefficient)
        else:
            out += " + " + _term_code(monomial, coefficient)
    return out or "0"


def _add(a: Polynomial, b: Polynomial, scale: int = 1) -> Polynomial:
    out = dict(a)
    for monomial, coefficient in b.items():
        out[monomial] = out.get(monomial, 0) + scale * coefficient
    return {m: c for m, c in out.items() if c}


def _multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    out: Polynomial = {}
    for m1, c1 in a.items():
        for m2, c2 in b.items():
            monomial = tuple(sorted(m1 + m2, key=_atom_order))
            out[monomial] = out.get(monomial, 0) + c1 * c2
    return {m: c for m, c in out.items() if c}


def _is_integer(value: Value) -> bool:
    return kind_of(value) in (int, bool)


# -- what is known ---------------------------------------------------------------------------------


class Knowledge:
    """What the facts recorded so far say: equalities as substitutions, bounds, and outcomes.

    Used to drop a fact that earlier facts of the same key imply.  Only facts that the key keeps may be
    learned, so whatever is dropped is implied by what a lookup evaluates.
    """

    def __init__(self) -> None:
        self._equal: dict[Expr, Value] = {}
        self._low: dict[Expr, float] = {}
        self._high: dict[Expr, float] = {}
        self._unequal: dict[Expr, set[int]] = {}
        self._nonnegative: list[Polynomial] = []
        self._outcome: dict[Expr, object] = {}
        self._memo: dict[Expr, Value] = {}

    def low(self, atom: Expr) -> float:
        return max(atom.low, self._low.get(atom, -INF))

    def high(self, atom: Expr) -> float:
        return min(atom.high, self._high.get(atom, INF))

    def outcome(self, test: Expr) -> object | None:
        return self._outcome.get(test)

    def simplify(self, value: Value) -> Value:
        """The same value, rewritten with everything that is known."""
        if not isinstance(value, Expr):
            return value
        known = self._memo.get(value)
        if known is None:
            known = self._memo[value] = self._simplify(value)
        return known

    def _simplify(self, expr: Expr) -> Value:
        if expr in self._outcome:
            return self._outcome[expr]  # type: ignore[return-value]
        if expr in self._equal:
            return self._equal[expr]
        if expr.op in _LEAVES:
            return expr
        if expr.op == "poly":
            total: Polynomial = {}
            for monomial, coefficient in expr.args:
                term: Polynomial = {(): coefficient}
                for atom in monomial:
                    term = _multiply(term, _polynomial(self.simplify(atom)))
                total = _add(total, term)
            result = _from_polynomial(total)
        else:
            result = _BUILD[expr.op](expr, [self.simplify(arg) for arg in expr.args], self)
        if isinstance(result, Expr) and result != expr:
            if result in self._outcome:
                return self._outcome[result]  # type: ignore[return-value]
            return self._equal.get(result, result)
        return result

    def is_nonnegative(self, terms: Polynomial) -> bool:
        """Whether a polynomial is, by its bounds or as one that is and something more."""
        return bounds(_from_polynomial(terms), self)[0] >= 0 or any(
            bounds(_from_polynomial(_add(terms, known, -1)), self)[0] >= 0 for known in self._nonnegative
        )

    def learn(self, test: Expr, outcome: object) -> None:
        """Take ``test`` having come out as ``outcome`` for granted from now on."""
        self._memo.clear()
        self._outcome[test] = outcome
        if test.op == "eq0":
            terms = _polynomial(test.args[0])
            if outcome:
                self._learn_zero(terms)
            else:
                self._learn_nonzero(terms)
        elif test.op == "ge0":
            terms = _polynomial(test.args[0])
            self._nonnegative.append(terms if outcome else _add({(): -1}, terms, -1))
            single = _single_atom(terms)
            if single:
                atom, constant = single
                if outcome:
                    self._raise_low(atom, -constant)
                else:
                    self._high[atom] = min(self.high(atom), -constant - 1)
                    self._pin(atom)
        elif test.kind is int and isinstance(outcome, int):
            self._learn_zero(_add(_polynomial(test), {(): outcome} if outcome else {}, -1))

    def _learn_nonzero(self, terms: Polynomial) -> None:
        single = _single_atom(terms)
        if single:
            atom, constant = single
            self._unequal.setdefault(atom, set()).add(-constant)
            self._raise_low(atom, self.low(atom))

    def _raise_low(self, atom: Expr, low: float) -> None:
        low = max(low, self.low(atom))
        while low in self._unequal.get(atom, ()):
            low += 1
        self._low[atom] = low
        self._pin(atom)

    def _pin(self, atom: Expr) -> None:
        if self.low(atom) == self.high(atom):
            self._substitute(atom, int(self.low(atom)))

    def _learn_zero(self, terms: Polynomial) -> None:
        # Solve for the most complicated atom that occurs once, linearly, with coefficient 1 or -1.
        counts: dict[Expr, int] = {}
        for monomial in terms:
            for atom in monomial:
                counts[atom] = counts.get(atom, 0) + 1
        candidates = [
            monomial[0]
            for monomial, coefficient in terms.items()
            if len(monomial) == 1 and abs(coefficient) == 1 and counts[monomial[0]] == 1
        ]
        for atom in sorted(candidates, key=_atom_order, reverse=True):
            rest = {m: -c * terms[(atom,)] for m, c in terms.items() if m != (atom,)}
            value = _from_polynomial(rest)
            if not _contains(value, atom):
                low, high = self.low(atom), self.high(atom)
                self._substitute(atom, value)
                if isinstance(value, Expr) and value.op != "poly":
                    self._raise_low(value, low)
                    if high < self.high(value):
                        self._high[value] = high
                        self._pin(value)
                return

    def _substitute(self, atom: Expr, value: Value) -> None:
        self._memo.clear()
        self._equal[atom] = value
        for other, old in list(self._equal.items()):
            if other != atom and _contains(old, atom):
                self._equal[other] = self.simplify(old)
        self._memo.clear()


def _single_atom(terms: Polynomial) -> tuple[Expr, int] | None:
    """``(atom, c)`` when the polynomial is ``atom + c``."""
    rest = {m: c for m, c in terms.items() if m}
    if len(rest) == 1:
        (monomial, coefficient) = next(iter(rest.items()))
        if len(monomial) == 1 and coefficient == 1:
            return monomial[0], terms.get((), 0)
    return None


@functools.lru_cache(maxsize=65536)
def _contains(value: Value, atom: Expr) -> bool:
    if not isinstance(value, Expr):
        return False
    return value == atom or any(_contains(child, atom) for child in _children(value))


_NOTHING = Knowledge()


def bounds(value: Value, knowledge: Knowledge = _NOTHING) -> tuple[float, float]:
    """Lower and upper bound of an integer expression (infinite where unknown)."""
    low = high = 0.0
    for monomial, coefficient in _polynomial(value).items():
        lo = hi = 1.0
        for atom in monomial:
            a, b = knowledge.low(atom), knowledge.high(atom)
            corners = [_times(lo, a), _times(lo, b), _times(hi, a), _times(hi, b)]
            lo, hi = min(corners), max(corners)
        if coefficient < 0:
            lo, hi = hi, lo
        low += _times(coefficient, lo)
        high += _times(coefficient, hi)
    return low, high


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


# -- arithmetic ------------------------------------------------------------------------------------


def add(a: Value, b: Value) -> Value:
    if _is_integer(a) and _is_integer(b):
        return _from_polynomial(_add(_polynomial(a), _polynomial(b)))
    return _float_op("+", a, b)


def sub(a: Value, b: Value) -> Value:
    if _is_integer(a) and _is_integer(b):
        return _from_polynomial(_add(_polynomial(a), _polynomial(b), -1))
    return _float_op("-", a, b)


def mul(a: Value, b: Value) -> Value:
    if _is_integer(a) and _is_integer(b):
        return _from_polynomial(_multiply(_polynomial(a), _polynomial(b)))
    return _float_op("*", a, b)


def neg(a: Value) -> Value:
    if _is_integer(a):
        return sub(0, a)
    return _float_call("neg", a)


def truediv(a: Value, b: Value) -> Value:
    """``a / b``.  Raises ZeroDivisionError when evaluated with ``b == 0``."""
    return _float_op("/", a, b)


def power(a: Value, exponent: int) -> Value:
    """``a ** exponent`` for an integer ``a`` and a constant ``0 <= exponent <= 8``."""
    if not _is_integer(a) or type(exponent) is not int or not 0 <= exponent <= 8:
        raise Unsupported("power")
    result: Value = 1
    for _ in range(exponent):
        result = mul(result, a)
    return result


def floordiv(a: Value, b: Value, knowledge: Knowledge = _NOTHING) -> Value:
    """``a // b`` as Python has it, for ``b != 0`` (the caller keeps that as a fact of its own)."""
    if not (_is_integer(a) and _is_integer(b)):
        raise Unsupported("floor division of floats")
    whole, rest = _divide(_polynomial(a), _polynomial(b))
    if not rest:
        return _from_polynomial(whole)
    if not isinstance(b, Expr) and b < 0:
        return floordiv(neg(a), -b, knowledge)
    rest, divisor = _cancel(rest, b)
    remaining = _from_polynomial(rest)
    low, high = bounds(remaining, knowledge)
    divisor_low, _ = bounds(divisor, knowledge)
    if low >= 0 and high < divisor_low:
        return _from_polynomial(whole)
    if not isinstance(remaining, Expr) and not isinstance(divisor, Expr):
        return _from_polynomial(_add(whole, {(): int(remaining // divisor)}))
    if isinstance(remaining, Expr) and remaining.op == "//" and _both_positive(remaining.args[1], divisor, knowledge):
        return add(_from_polynomial(whole), floordiv(remaining.args[0], mul(remaining.args[1], divisor), knowledge))
    low, high = bounds(remaining)  # those of an atom hold whatever is known
    divisor_low, _ = bounds(divisor)
    bound_low = 0 if low >= 0 and divisor_low > 0 else -INF
    bound_high = high if low >= 0 and divisor_low > 0 else INF
    if not isinstance(divisor, Expr) and low > -INF:
        bound_low = low // divisor
    if not isinstance(divisor, Expr) and high < INF:
        bound_high = high // divisor
    atom = Expr(f"{_operand(remaining)} // {_operand(divisor)}", int, "//", (remaining, divisor), bound_low, bound_high)
    return add(_from_polynomial(whole), atom)


def mod(a: Value, b: Value, knowledge: Knowledge = _NOTHING) -> Value:
    """``a % b`` as Python has it, for ``b != 0`` (the caller keeps that as a fact of its own)."""
    if not (_is_integer(a) and _is_integer(b)):
        raise Unsupported("remainder of floats")
    _, rest = _divide(_polynomial(a), _polynomial(b))
    remaining = _from_polynomial(rest)
    if not isinstance(remaining, Expr) and not isinstance(b, Expr):
        return remaining % b
    if not rest:
        return 0
    low, high = bounds(remaining, knowledge)
    divisor_low, divisor_high = bounds(b, knowledge)
    if low >= 0 and high < divisor_low:
        return remaining
    low, high = bounds(remaining)  # those of an atom hold whatever is known
    divisor_low, divisor_high = bounds(b)
    positive = divisor_low > 0
    return Expr(
        f"{_operand(remaining)} % {_operand(b)}",
        int,
        "%",
        (remaining, b),
        0 if positive else -INF,
        min(divisor_high - 1, high if low >= 0 else INF) if positive else INF,
    )


def _both_positive(a: Value, b: Value, knowledge: Knowledge) -> bool:
    return bounds(a, knowledge)[0] > 0 and bounds(b, knowledge)[0] > 0


def _divide(a: Polynomial, b: Polynomial) -> tuple[Polynomial, Polynomial]:
    """``(q, r)`` with ``a == q * b + r``, taking out of ``a`` every term that ``b`` divides exactly."""
    if len(b) != 1:
        if b and a:
            # a == c * b for an integer c?
            lead = next(iter(b))
            factor = a.get(lead, 0) // b[lead]
            if factor and not _add(a, b, -factor):
                return {(): factor}, {}
        return {}, dict(a)
    ((divisor, coefficient),) = b.items()
    whole: Polynomial = {}
    rest: Polynomial = {}
    for monomial, c in a.items():
        left = list(monomial)
        try:
            for atom in divisor:
                left.remove(atom)
        except ValueError:
            rest[monomial] = c
            continue
        if not divisor:  # by a constant: keep the remainder of each coefficient
            quotient, remainder = divmod(c, coefficient)
            if quotient:
                whole[monomial] = quotient
            if remainder:
                rest[monomial] = remainder
        elif c % coefficient == 0:
            whole[tuple(left)] = c // coefficient
        else:
            rest[monomial] = c
    return whole, rest


def _cancel(rest: Polynomial, divisor: Value) -> tuple[Polynomial, Value]:
    """Divide both sides of a floor division by their common positive integer factor."""
    terms = _polynomial(divisor)
    common = math.gcd(*rest.values(), *terms.values())
    if common <= 1:
        return rest, divisor
    return {m: c // common for m, c in rest.items()}, _from_polynomial({m: c // common for m, c in terms.items()})


def _operand(value: Value) -> str:
    if isinstance(value, Expr):
        return value.code if _is_simple(value) else f"({value.code})"
    return repr(value) if value >= 0 else f"({value!r})"


def to_int(a: Value) -> Value:
    if not isinstance(a, Expr):
        return int(a)
    if a.kind is int:
        return a
    if a.kind is bool:
        return _bool_as_int(a)
    exact = _as_integer(a)
    if exact is None and a.op == "float_op" and a.args[0] == "/":
        exact = _exact_quotient("trunc", a.args[1], a.args[2])
    return Expr(f"int({a.code})", int, "int", (a,)) if exact is None else exact


def to_float(a: Value) -> Value:
    return _float_call("float", a) if kind_of(a) is not float else a


def to_bool(a: Value) -> Value:
    if kind_of(a) is bool:
        return a
    if _is_integer(a):
        return not_(eq(a, 0))
    if not isinstance(a, Expr):
        return bool(a)
    return not_(_compare("==", a, 0.0))


def rounded(function: str, a: Value) -> Value:
    """``math.ceil``, ``math.floor``, ``math.trunc`` or ``round`` of a number: an integer."""
    if _is_integer(a):
        return to_int(a)
    if not isinstance(a, Expr):
        raise Unsupported(function)
    exact = _as_integer(a)
    if exact is not None:
        return exact
    if a.op == "float_op" and a.args[0] == "/":
        quotient = _exact_quotient(function, a.args[1], a.args[2])
        if quotient is not None:
            return quotient
    return Expr(f"{_ROUND[function]}({a.code})", int, "call", (function, a))


def _exact_quotient(function: str, a: Value, b: Value) -> Value | None:
    """``ceil(a / b)`` and the like of integers as a floor division.

    The two agree as long as a < 2**52, where a float still tells a / b from the integers next to it.
    """
    numerator, divisor = _as_integer(a), _as_integer(b)
    if numerator is None or not is_exact_as_float(numerator) or not isinstance(divisor, int) or divisor <= 0:
        return None
    if function == "floor" or (function == "trunc" and bounds(numerator)[0] >= 0):
        return floordiv(numerator, divisor)
    if function == "ceil":
        return neg(floordiv(neg(numerator), divisor))
    return None


def is_exact_as_float(integer: Value) -> bool:
    """Whether an integer expression stays below 2**52, where floats tell integers apart.

    Sizes and their products do: they count elements of tensors.  What has numbers in it must have bounds.
    """
    with_numbers = {
        monomial: coefficient
        for monomial, coefficient in _polynomial(integer).items()
        if any(map(numbers_in, monomial))
    }
    return max(map(abs, bounds(_from_polynomial(with_numbers)))) < 2**51


def _as_integer(value: Value) -> Value | None:
    """The integer that a number is for certain (``float(n)``, ``2.0``, ``float(8 * n) / 8.0``)."""
    if _is_integer(value):
        return value
    if not isinstance(value, Expr):
        return int(value) if isinstance(value, float) and value.is_integer() else None
    exact = _integer_of_float(value)
    return exact if exact is not None and is_exact_as_float(exact) else None


def _integer_of_float(value: Expr) -> Value | None:
    if value.op == "float_call" and value.args[0] == "float":
        return _as_integer(value.args[1])
    if value.op == "float_op":
        op, *operands = value.args
        a, b = map(_as_integer, operands)
        if a is not None and b is not None:
            if op in _EXACT_OPS:
                return _EXACT_OPS[op](a, b)
            whole, rest = _divide(_polynomial(a), _polynomial(b)) if op == "/" and b != 0 else ({}, {(): 1})
            if not rest:
                return _from_polynomial(whole)
    return None


_EXACT_OPS: dict[str, Callable[[Value, Value], Value]] = {
    "+": lambda a, b: add(a, b),
    "-": lambda a, b: sub(a, b),
    "*": lambda a, b: mul(a, b),
}


_ROUND = {"ceil": "math.ceil", "floor": "math.floor", "trunc": "math.trunc", "round": "round"}


def absolute(a: Value, knowledge: Knowledge = _NOTHING) -> Value:
    if _is_integer(a):
        low, high = bounds(a, knowledge)
        if low >= 0:
            return to_int(a)
        if high <= 0:
            return neg(a)
        low, high = bounds(a)  # those of an atom hold whatever is known
        return Expr(f"abs({to_int(a)!r})", int, "abs", (a,), 0, max(-low, high))
    return _float_call("abs", a)


def maximum(a: Value, b: Value, knowledge: Knowledge = _NOTHING) -> Value:
    """``max(a, b)`` of integers."""
    return _larger("max", a, b, knowledge)


def minimum(a: Value, b: Value, knowledge: Knowledge = _NOTHING) -> Value:
    """``min(a, b)`` of integers."""
    return _larger("min", a, b, knowledge)


def _larger(function: str, a: Value, b: Value, knowledge: Knowledge) -> Value:
    if not (_is_integer(a) and _is_integer(b)):
        raise Unsupported(f"{function} of floats")
    low, high = bounds(sub(a, b), knowledge)
    if low >= 0 or high <= 0:
        return to_int(a if (low >= 0) == (function == "max") else b)
    a, b = sorted((to_int(a), to_int(b)), key=lambda v: _operand(v))
    (a_low, a_high), (b_low, b_high) = bounds(a), bounds(b)  # those of an atom hold whatever is known
    choose = max if function == "max" else min
    code = f"{function}({_bare(a)}, {_bare(b)})"
    return Expr(code, int, "larger", (function, a, b), choose(a_low, b_low), choose(a_high, b_high))


def _bare(value: Value) -> str:
    return value.code if isinstance(value, Expr) else repr(value)


def _float_op(op: str, a: Value, b: Value) -> Value:
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        raise Unsupported("constants need no expression")
    return Expr(f"{_number(a)} {op} {_number(b)}", float, "float_op", (op, a, b))


def _float_call(function: str, a: Value) -> Value:
    text = _number(a)
    return Expr(f"-{text}" if function == "neg" else f"{function}({text})", float, "float_call", (function, a))


def _number(value: Value) -> str:
    if isinstance(value, Expr):
        return value.code if _is_simple(value) else f"({value.code})"
    if isinstance(value, float) and not math.isfinite(value):
        raise Unsupported("infinite constant")
    return f"({value!r})"


# -- predicates ------------------------------------------------------------------------------------


def eq(a: Value, b: Value, knowledge: Knowledge = _NOTHING) -> Value:
    if _is_integer(a) and _is_integer(b):
        for one, other in ((a, b), (b, a)):
            if isinstance(one, Expr) and one.op == "larger":
                simpler = _larger_equals(one, other, knowledge)
                if simpler is not None:
                    return simpler
        return _eq0(_add(_polynomial(a), _polynomial(b), -1), knowledge)
    return _compare("==", a, b)


def _larger_equals(larger: Expr, value: Value, knowledge: Knowledge) -> Value | None:
    """``max(1, n) == n`` is ``n >= 1``, and ``max(1, n) == 5`` is ``n == 5``."""
    function, *operands = larger.args
    order = ge if function == "max" else le
    for one, other in (operands, reversed(operands)):
        if one == value:
            return order(value, other, knowledge)
        if not isinstance(one, Expr) and not isinstance(value, Expr):
            beyond = value > one if function == "max" else value < one
            return eq(other, value, knowledge) if beyond else False
    return None


def ne(a: Value, b: Value, knowledge: Knowledge = _NOTHING) -> Value:
    return not_(eq(a, b, knowledge))


def ge(a: Value, b: Value, knowledge: Knowledge = _NOTHING) -> Value:
    if _is_integer(a) and _is_integer(b):
        return _ge0(_add(_polynomial(a), _polynomial(b), -1), knowledge)
    return _compare(">=", a, b)


def gt(a: Value, b: Value, knowledge: Knowledge = _NOTHING) -> Value:
    if _is_integer(a) and _is_integer(b):
        return ge(sub(a, b), 1, knowledge)
    return _compare(">", a, b)


def lt(a: Value, b: Value, knowledge: Knowledge = _NOTHING) -> Value:
    return gt(b, a, knowledge)


def le(a: Value, b: Value, knowledge: Knowledge = _NOTHING) -> Value:
    return ge(b, a, knowledge)


def _eq0(terms: Polynomial, knowledge: Knowledge) -> Value:
    if not any(terms):
        return not terms.get((), 0)
    constant = terms.get((), 0)
    common = math.gcd(*(c for m, c in terms.items() if m))
    if constant % common:
        return False
    terms = {m: c // common for m, c in terms.items()}
    expr = _from_polynomial(terms)
    if any(knowledge.is_nonnegative(_add({(): -1}, terms, sign)) for sign in (1, -1)):  # positive, or negative
        return False
    single = _single_atom(terms)
    if single and -single[1] in knowledge._unequal.get(single[0], ()):
        return False
    if _leading(terms) < 0:
        terms = {m: -c for m, c in terms.items()}
        expr = _from_polynomial(terms)
    return Expr(_relation(terms, "=="), bool, "eq0", (expr,))


def _ge0(terms: Polynomial, knowledge: Knowledge) -> Value:
    if not any(terms):
        return terms.get((), 0) >= 0
    common = math.gcd(*(c for m, c in terms.items() if m))
    terms = {m: c // common for m, c in terms.items()}  # floors the constant, as integers allow
    terms = {m: c for m, c in terms.items() if c}
    if knowledge.is_nonnegative(terms):
        return True
    if knowledge.is_nonnegative(_add({(): -1}, terms, -1)):
        return False
    if _leading(terms) < 0:
        terms = _add({m: -c for m, c in terms.items()}, {(): 1}, -1)
        return not_(Expr(_relation(terms, ">="), bool, "ge0", (_from_polynomial(terms),)))
    return Expr(_relation(terms, ">="), bool, "ge0", (_from_polynomial(terms),))


def _leading(terms: Polynomial) -> int:
    return min(((m, c) for m, c in terms.items() if m), key=_term_order)[1]


def _relation(terms: Polynomial, op: str) -> str:
    items = sorted(terms.items(), key=_term_order)
    left = [(m, c) for m, c in items if c > 0]
    right = [(m, -c) for m, c in items if c < 0]
    if all(not m for m, _ in left):  # 'x + 3 >= 0' reads better than '3 >= -x'
        left, right = items, []
    return f"{_sum_code(left)} {op} {_sum_code(right)}"


def _compare(op: str, a: Value, b: Value) -> Value:
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        raise Unsupported("constants need no expression")
    exact_a, exact_b = _as_integer(a), _as_integer(b)
    if exact_a is not None and exact_b is not None:
        return {"==": eq, ">=": ge, ">": gt}[op](exact_a, exact_b)
    return Expr(f"{_number(a)} {op} {_number(b)}", bool, "compare", (op, a, b))


def not_(a: Value) -> Value:
    if not isinstance(a, Expr):
        return not a
    if a.op == "not":
        inner: Value = a.args[0]
        return inner
    return Expr(f"not ({a.code})", bool, "not", (a,))


def and_(a: Value, b: Value) -> Value:
    if kind_of(a) is not bool or kind_of(b) is not bool:
        raise Unsupported("bitwise operations on integers")
    if not isinstance(a, Expr):
        return b if a else False
    if not isinstance(b, Expr):
        return a if b else False
    if a == b:
        return a
    return Expr(f"({a.code}) & ({b.code})", bool, "and", (a, b))


def or_(a: Value, b: Value) -> Value:
    if kind_of(a) is not bool or kind_of(b) is not bool:
        raise Unsupported("bitwise operations on integers")
    return not_(and_(not_(a), not_(b)))


def xor(a: Value, b: Value) -> Value:
    if kind_of(a) is not bool or kind_of(b) is not bool:
        raise Unsupported("bitwise operations on integers")
    if not isinstance(a, Expr):
        return not_(b) if a else b
    if not isinstance(b, Expr):
        return not_(a) if b else a
    return Expr(f"({a.code}) ^ ({b.code})", bool, "xor", (a, b))


# How each kind of expression is rebuilt from simplified arguments.
_BUILD: Mapping[str, Callable[[Expr, list[Any], Knowledge], Value]] = {
    "//": lambda e, a, k: floordiv(a[0], a[1], k),
    "%": lambda e, a, k: mod(a[0], a[1], k),
    "int": lambda e, a, k: to_int(a[0]),
    "abs": lambda e, a, k: absolute(a[0], k),
    "larger": lambda e, a, k: _larger(a[0], a[1], a[2], k),
    "call": lambda e, a, k: rounded(a[0], a[1]) if isinstance(a[1], Expr) else _constant(e, a),
    "float_op": lambda e, a, k: _float_op(*a) if _any_expr(a) else _constant(e, a),
    "float_call": lambda e, a, k: _float_call(*a) if _any_expr(a) else _constant(e, a),
    "compare": lambda e, a, k: _compare(*a) if _any_expr(a) else _constant(e, a),
    "eq0": lambda e, a, k: _rebuilt_eq0(a[0], k),
    "ge0": lambda e, a, k: ge(a[0], 0, k),
    "in range": lambda e, a, k: in_range(a[0]),
    "not": lambda e, a, k: not_(a[0]),
    "and": lambda e, a, k: and_(a[0], a[1]),
    "xor": lambda e, a, k: xor(a[0], a[1]),
}


def _rebuilt_eq0(value: Value, knowledge: Knowledge) -> Value:
    """``value == 0``, with what ``eq`` knows of its two sides."""
    for monomial, coefficient in _polynomial(value).items():
        if len(monomial) == 1 and monomial[0].op == "larger" and abs(coefficient) == 1:
            rest = mul(-coefficient, sub(value, mul(coefficient, monomial[0])))
            return eq(monomial[0], rest, knowledge)
    return eq(value, 0, knowledge)


_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_OPERATIONS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "call": {"ceil": math.ceil, "floor": math.floor, "trunc": math.trunc, "round": round},
    "float_call": {"neg": operator.neg, "float": float, "abs": abs},
    "float_op": _ARITHMETIC,
    "compare": {"==": operator.eq, ">=": operator.ge, ">": operator.gt},
}


def _any_expr(args: list[Any]) -> bool:
    return any(isinstance(a, Expr) for a in args)


def _constant(expr: Expr, args: list[Any]) -> Value:
    """The value of an operation whose arguments have all become constants."""
    op, *operands = args
    value: Value = _OPERATIONS[expr.op][op](*operands)
    return value


# -- facts -----------------------------------------------------------------------------------------


def split_equality(test: Value) -> tuple[Value, int] | None:
    """``(n, 5)`` for the test ``n == 5``; None for any other."""
    if not isinstance(test, Expr) or test.op != "eq0":
        return None
    terms = _polynomial(test.args[0]).copy()
    constant = -terms.pop((), 0)
    if not terms:
        return None
    if _leading(terms) < 0:
        terms, constant = {m: -c for m, c in terms.items()}, -constant
    return _from_polynomial(terms), constant


def canonical_test(value: Value, outcome: object) -> list[tuple[Value, object]]:
    """The tests, each with its outcome, that together say that ``value`` came out as ``outcome``.

    A negation is stripped, a conjunction that held is taken apart, and the value of an integer is
    stated of its polynomial without constant term or common factor.
    """
    if not isinstance(value, Expr):
        return [(value, outcome)]
    if value.op == "not":
        return canonical_test(value.args[0], not outcome)
    if value.op == "and" and outcome:
        return canonical_test(value.args[0], True) + canonical_test(value.args[1], True)
    if value.op == "int" and kind_of(value.args[0]) is bool:
        return canonical_test(value.args[0], bool(outcome))
    if value.op == "poly" and isinstance(outcome, int):
        terms = _polynomial(value)
        constant = terms.pop((), 0)
        common = math.gcd(*terms.values()) * (1 if _leading(terms) > 0 else -1)
        left = outcome - constant
        if left % common == 0:
            return canonical_or_same(_from_polynomial({m: c // common for m, c in terms.items()}), left // common)
    return [(value, outcome)]


def canonical_or_same(value: Value, outcome: object) -> list[tuple[Value, object]]:
    if isinstance(value, Expr) and value.op != "poly":
        return canonical_test(value, outcome)
    return [(value, outcome)]


class Part(enum.IntEnum):
    """The part of a key that a fact belongs to."""

    SIZE_ONE = 0
    BROADCAST = 1
    BRANCHES = 2


def part(test: Expr) -> Part:
    """Which part of the key a canonical test belongs to: ``n == 1``, ``n == m`` of two sizes, or any other."""
    if test.op == "eq0":
        terms = _polynomial(test.args[0])
        sizes = [m for m in terms if len(m) == 1 and m[0].op == "size"]
        if len(sizes) == len([m for m in terms if m]):
            if len(sizes) == 1 and terms.get(()) == -1 and abs(terms[sizes[0]]) == 1:
                return Part.SIZE_ONE
            if len(sizes) == 2 and () not in terms and sum(terms.values()) == 0:
                return Part.BROADCAST
    return Part.BRANCHES


# -- evaluation ------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16384)
def _compiled(code: str) -> types.CodeType:
    return compile(code, "<speckey expression>", "eval")


_GLOBALS = {
    "__builtins__": {},
    "math": math,
    "int": int,
    "float": float,
    "abs": abs,
    "round": round,
    "max": max,
    "min": min,
}


def evaluate(value: Value, sizes: Mapping[str, int]) -> object:
    """The value for concrete sizes, given by name (``s0_1``).  Raises what Python raises."""
    if not isinstance(value, Expr):
        return value
    return eval(_compiled(value.code), _GLOBALS, sizes)  # code is built here, from integers and fixed words
