"""Expressions against brute force over small sizes."""

import itertools
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speckey import symbols as S

SIZES = [S.size(0, 0), S.size(0, 1), S.size(1, 0)]
NAMES = ["s0_0", "s0_1", "s1_0"]
ARITHMETIC = {
    S.add: operator.add,
    S.sub: operator.sub,
    S.mul: operator.mul,
    S.floordiv: operator.floordiv,
    S.mod: operator.mod,
}
COMPARISONS = {
    S.eq: operator.eq,
    S.ne: operator.ne,
    S.lt: operator.lt,
    S.le: operator.le,
    S.gt: operator.gt,
    S.ge: operator.ge,
}


def _leaf():
    sizes = st.integers(0, 2).map(lambda k: (SIZES[k], lambda e: e[k]))
    return sizes | st.integers(-4, 5).map(lambda c: (c, lambda e: c))


def _combine(children):
    def binary(op, a, b):
        if op in (S.floordiv, S.mod) and not isinstance(b[0], S.Expr) and b[0] == 0:
            b = (3, lambda e: 3)
        return op(a[0], b[0]), lambda e: ARITHMETIC[op](a[1](e), b[1](e))

    return st.builds(binary, st.sampled_from(list(ARITHMETIC)), children, children) | children.map(
        lambda a: (S.absolute(a[0]), lambda e: abs(a[1](e)))
    )


# (expression, the same as a function of the three sizes)
EXPRESSIONS = st.recursive(_leaf(), _combine, max_leaves=6)
PREDICATES = st.builds(
    lambda op, a, b: (op(a[0], b[0]), lambda e: COMPARISONS[op](a[1](e), b[1](e))),
    st.sampled_from(list(COMPARISONS)),
    EXPRESSIONS,
    EXPRESSIONS,
)


def _or_error(function):
    try:
        return function()
    except ZeroDivisionError:
        return ZeroDivisionError


@settings(max_examples=300, derandomize=True, deadline=None)
@given(EXPRESSIONS | PREDICATES)
def test_an_expression_has_the_value_of_what_it_was_built_from(pair):
    expr, function = pair
    for sizes in itertools.product(range(4), repeat=3):
        expected = _or_error(lambda sizes=sizes: function(sizes))
        if expected is ZeroDivisionError:
            continue  # that the divisor is not zero is a fact of its own
        assert S.evaluate(expr, dict(zip(NAMES, sizes, strict=True))) == expected, expr


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.lists(EXPRESSIONS | PREDICATES, min_size=1, max_size=6), st.tuples(*[st.integers(0, 4)] * 3))
def test_what_earlier_facts_imply_is_dropped_and_nothing_else(asked, traced):
    """All recorded outcomes hold exactly where the kept facts hold."""
    knowledge, kept, recorded = S.Knowledge(), [], []
    for expr, function in asked:
        outcome = _or_error(lambda function=function: function(traced))
        if outcome is ZeroDivisionError:
            continue
        recorded.append((function, outcome))
        for test, out in S.canonical_test(knowledge.simplify(expr), outcome):
            if isinstance(test, S.Expr):
                kept.append((test, out))
                knowledge.learn(test, out)
            else:
                assert test == out
    for sizes in itertools.product(range(5), repeat=3):
        named = dict(zip(NAMES, sizes, strict=True))
        expected = [_or_error(lambda f=f: f(sizes)) for f, _ in recorded]  # noqa: B023
        if ZeroDivisionError in expected:
            continue
        holds = all(got == out for got, (_, out) in zip(expected, recorded, strict=True))
        assert holds == all(_or_error(lambda t=t: S.evaluate(t, named)) == o for t, o in kept), (kept, sizes)  # noqa: B023


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (lambda a, b: S.eq(a, a), True),
        (lambda a, b: S.ge(a, 0), True),
        (lambda a, b: S.eq(a, -1), False),
        (lambda a, b: S.mod(S.mul(a, 32), 32), 0),
        (lambda a, b: S.floordiv(S.mul(a, b), b), SIZES[0]),
        (lambda a, b: S.floordiv(S.add(S.mul(a, 8), 3), 8), SIZES[0]),
        (lambda a, b: S.floordiv(S.floordiv(a, 2), 3), S.floordiv(SIZES[0], 6)),
        (lambda a, b: S.eq(S.mul(a, 2), 8), S.eq(SIZES[0], 4)),
        (lambda a, b: S.eq(S.mul(a, 2), 7), False),
        (lambda a, b: S.lt(a, 17), S.not_(S.ge(SIZES[0], 17))),
        (lambda a, b: S.eq(b, a), S.eq(SIZES[0], SIZES[1])),
        (lambda a, b: S.rounded("ceil", S.truediv(S.to_float(a), 1.0)), SIZES[0]),
        (lambda a, b: S.to_int(S.truediv(S.to_float(S.mul(a, 8)), 8.0)), SIZES[0]),
    ],
)
def test_tautologies_vanish_and_equal_things_look_equal(expr, expected):
    result = expr(SIZES[0], SIZES[1])
    assert result == expected
    assert type(result) is type(expected)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.integers(0, 3000), st.integers(1, 40), st.sampled_from(["ceil", "floor", "trunc"]))
def test_rounded_quotients_are_what_floats_give(a, b, function):
    import math

    expr = S.rounded(function, S.truediv(SIZES[0], b))
    assert S.evaluate(expr, {"s0_0": a}) == getattr(math, function)(a / b)
