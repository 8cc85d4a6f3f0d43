"""Operators that thunder takes over from torch as they are: symbolic sizes go through torch's fake kernels."""

import itertools
import operator

import pytest
import sympy
import thunder
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thunder.core.proxies import IntegerProxy
from thunder.extend import OperatorExecutor

from speckey import SpecKeyCache, entries, from_sympy, symbols, torch_private
from speckey.recorder import Recorder
from tests.helpers import assert_same, compiled, misses, same

CASES = {
    "addmm": (lambda b, x, w: torch.addmm(b, x, w), lambda n, m: [(m,), (n, 4), (4, m)]),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 1).exp().sum(0), lambda n, m: [(n, m)]),
    "repeat_interleave": (lambda x: torch.repeat_interleave(x, 2, 1).reshape(-1), lambda n, m: [(n, m)]),
    "pixel_shuffle": (lambda x: torch.nn.functional.pixel_shuffle(x, 2) * 2, lambda n, m: [(2, 8, n, m)]),
    "min": (lambda x: torch.min(x, torch.full_like(x, 0.5)), lambda n, m: [(n, m)]),
    "roll": (lambda x: torch.roll(x, 1, 1) * x, lambda n, m: [(n, m)]),
    "cdist": (lambda x, y: torch.cdist(x, y), lambda n, m: [(n, 4), (m, 4)]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("plain", [False, True], ids=["symbolic", "plain"])
def test_one_program_for_many_sizes(name, plain):
    fn, shapes = CASES[name]
    jfn = compiled(fn)
    sizes = [(3, 5), (6, 7), (9, 8), (4, 11), (1, 6), (5, 1)]

    def run():
        for n, m in sizes[: 3 if plain else None]:
            args = [torch.randn(s, requires_grad=True) for s in shapes(n, m)]
            result = same(jfn, fn, *args)
            grads = torch.autograd.grad(result.sum(), args)
            torch.testing.assert_close(grads, torch.autograd.grad(fn(*args).sum(), args))

    if plain:
        with torch_private.plain_way():
            run()
    else:
        run()
        assert misses(jfn) <= 4
        assert all(e.kind == "symbolic" for e in entries(jfn))


def test_what_torch_refuses_is_refused():
    def fn(x, y):
        return torch.addmm(torch.zeros(3), x, y)

    jfn, plain = compiled(fn), thunder.jit(fn)
    same(jfn, fn, torch.ones(2, 4), torch.ones(4, 3))
    bad = torch.ones(2, 5), torch.ones(4, 3)
    with pytest.raises(Exception) as expected:  # noqa: PT011
        plain(*bad)
    with pytest.raises(type(expected.value)):
        jfn(*bad)


s, t = sympy.symbols("s t", integer=True)
A, B = symbols.size(0, 0), symbols.size(0, 1)
TERMS = st.recursive(
    st.sampled_from([s, t, sympy.Integer(1), sympy.Integer(2), sympy.Integer(3)]),
    lambda terms: st.builds(
        lambda op, a, b: op(a, b),
        st.sampled_from([lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a - b, sympy.Max, sympy.Min]),
        terms,
        terms,
    ),
    max_leaves=6,
)
_ORDERS = [sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge]
RELATIONS = st.builds(
    lambda op, a, b: op(a, b), st.sampled_from(_ORDERS), TERMS, TERMS
)


@settings(max_examples=200, deadline=None)
@given(TERMS | RELATIONS)
def test_terms_mean_the_same(term):
    value = from_sympy.value_of(term, {s: A, t: B})
    for n, m in itertools.product(range(5), repeat=2):
        expected = eval(str(term), {"Max": max, "Min": min, "Eq": operator.eq, "Ne": operator.ne}, {"s": n, "t": m})
        assert symbols.evaluate(value, {"s0_0": n, "s0_1": m}) == expected, (term, value)


@settings(max_examples=200, deadline=None)
@given(st.lists(RELATIONS, min_size=1, max_size=6), st.integers(0, 5), st.integers(0, 5))
def test_facts_that_are_dropped_are_implied_by_those_that_stay(relations, n, m):
    here = {"s0_0": n, "s0_1": m}
    recorder, asked = Recorder(here), []
    for relation in relations:
        value = from_sympy.value_of(relation, {s: A, t: B})
        outcome = symbols.evaluate(value, here)
        recorder.truth(value, outcome)
        asked.append((value, outcome))
    recorder.settle()
    for i, j in itertools.product(range(7), repeat=2):
        sizes = {"s0_0": i, "s0_1": j}
        if all(symbols.evaluate(f.test, sizes) == f.outcome for f in recorder.facts):
            for value, outcome in asked:
                assert symbols.evaluate(value, sizes) == outcome, (recorder.facts, value, sizes)


def test_programs_that_compute_the_same_are_one():
    def fn(x):
        if x.shape[0] > 5:
            y = x * 2
        elif x.shape[0] == 3:
            y = x * 3
        else:
            y = x * 2
        return y.sum(0)

    jfn = compiled(fn)
    for n in (2, 7, 3, 8, 4):
        x = torch.ones(n, 2, requires_grad=True)
        same(jfn, fn, x).sum().backward()
        assert torch.equal(x.grad, torch.full((n, 2), 3.0 if n == 3 else 2.0))
    first, second, third = (e.program.entry for e in entries(jfn))
    assert first.computation_fn is second.computation_fn is not third.computation_fn
    assert first.backward_fn is second.backward_fn is not third.backward_fn


def test_modules_made_while_tracing_after_torch_compile():
    from torch._dynamo.mutation_guard import install_generation_tagging_init

    install_generation_tagging_init()

    def fn(x):
        return torch.nn.ReLU()(x) * 2

    jfn = compiled(fn)
    for n in (3, 4, 5):
        same(jfn, fn, torch.randn(n))
    assert misses(jfn) == 1


def _strided():
    """Tensors of the same key and of other strides, and others."""
    for n in (3, 5):
        yield torch.randn(n, 4, 4)
        yield torch.randn(n, 4, 4).mT
        yield torch.randn(4, n, 4).transpose(0, 1)
        yield torch.zeros(n, 9, 4)[:, 2:6]


# What an operator says of its inputs when the program runs is not in the key.
RUNTIME_NUMBERS = {
    "returned": lambda x, y: (x * 2, x.is_contiguous()),
    "computed with": lambda x, y: (x * 2, x.is_contiguous() + 1),
    "times a size": lambda x, y: (x * 2, x.is_contiguous() * x.shape[0]),
    "times a tensor": lambda x, y: x * x.is_contiguous(),
    "in a list": lambda x, y: (x * 2, [x.is_contiguous(), x.element_size()]),
    "a bound": lambda x, y: x[:, : x.element_size() - 2],
    "an order": lambda x, y: (x * 2, x.dim_order()),
    "of the mode": lambda x, y: (x * 2, x.is_inference()),
    "of two tensors": lambda x, y: (x * 2, x.is_set_to(y), x.is_same_size(y)),
}


@pytest.mark.parametrize("name", RUNTIME_NUMBERS)
@pytest.mark.parametrize("backwards", [False, True])
def test_numbers_that_operators_compute_when_the_program_runs(name, backwards):
    jfn = compiled(RUNTIME_NUMBERS[name])
    inputs = list(_strided())
    with torch.inference_mode():
        inputs.append(torch.randn(5, 4, 4))
    for x in reversed(inputs) if backwards else inputs:
        for y in (torch.randn(3, 4, 4), x):
            assert_same(jfn(x, y), RUNTIME_NUMBERS[name](x, y))


def test_a_branch_on_what_an_operator_says_takes_no_program_for_each_size():
    def fn(x):
        if not x.is_contiguous():
            x = x.contiguous()
        return x * 2

    jfn = compiled(fn)
    for x in _strided():
        same(jfn, fn, x)
    assert misses(jfn) == 1


READ_RUNTIME_NUMBERS = {
    "an int": lambda x: x * int(x.is_contiguous()),
    "a range": lambda x: x * sum(1 for _ in range(x.element_size())),
    "a key": lambda x: x * {True: 1, False: 2}[x.is_contiguous()],
    "a comparison": lambda x: x * 2 if x.element_size() < x.shape[0] else x * 3,
}


@pytest.mark.parametrize("name", READ_RUNTIME_NUMBERS)
def test_what_is_read_of_a_number_that_an_operator_computes_is_what_a_fresh_compile_reads(name):
    fn = READ_RUNTIME_NUMBERS[name]
    jfn = compiled(fn)
    for x in _strided():
        torch.testing.assert_close(jfn(x), thunder.jit(fn, cache="constant values")(x))


def test_numbers_that_an_operator_of_an_executor_computes():
    executor = OperatorExecutor("of_strides")
    stride = executor.register_operator("stride", meta=lambda x: IntegerProxy(value=1), fn=lambda x: x.stride(0))

    def fn(x):
        n = stride(x)
        return x * n, n, n + 1

    jfn = thunder.jit(fn, cache=SpecKeyCache(), executors=[executor, *thunder.get_default_executors()])
    for x in _strided():
        n = x.stride(0)
        assert_same(jfn(x), (x * n, n, n + 1))


def test_numbers_at_any_depth_of_what_an_operator_returns():
    """thunder cannot print a program with such an operator, whatever becomes of its number."""
    executor = OperatorExecutor("of_strides_in_dicts")
    strides = executor.register_operator(
        "strides", meta=lambda x: {"all": [{"n": IntegerProxy(value=1)}]}, fn=lambda x: {"all": [{"n": x.stride(0)}]}
    )

    def fn(x):
        return x * 2, strides(x)["all"][0]["n"] + 1

    options = {"executors": [executor, *thunder.get_default_executors()]}
    jfn = thunder.jit(fn, cache=SpecKeyCache(), **options)
    for x in _strided():
        with pytest.raises(SyntaxError):
            thunder.jit(fn, cache="constant values", **options)(x)
        with pytest.raises(SyntaxError):
            jfn(x)
    assert not entries(jfn)


def _same_size(x, y):
    return x * 2 if x.is_same_size(y) else x * 3


def _not_same_size(x, y):
    return x * 2 if not x.is_same_size(y) else x * 3


@pytest.mark.parametrize("fn", [_same_size, _not_same_size])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_branch_on_what_an_operator_says_of_sizes(fn, backwards):
    shapes = [((3, 4), (3, 4)), ((5, 4), (3, 4)), ((5, 4), (5, 4)), ((4, 4), (4, 4)), ((6, 4), (6, 5)), ((1, 4), (4,))]
    jfn = compiled(fn)
    for a, b in reversed(shapes) if backwards else shapes:
        same(jfn, fn, torch.randn(a), torch.randn(b))


def test_a_branch_on_what_an_operator_of_an_executor_says_of_sizes():
    executor = OperatorExecutor("of_sizes")
    long = executor.register_operator(
        "long", meta=lambda x: IntegerProxy(value=bool(x.shape[0] > 4)), fn=lambda x: x.shape[0] > 4
    )

    def fn(x):
        return x * 2 if long(x) else x * 3

    jfn = thunder.jit(fn, cache=SpecKeyCache(), executors=[executor, *thunder.get_default_executors()])
    for n in (3, 4, 5, 6, 2, 9):
        x = torch.randn(n, 3)
        torch.testing.assert_close(jfn(x), x * 2 if n > 4 else x * 3)
    assert misses(jfn) == 2
