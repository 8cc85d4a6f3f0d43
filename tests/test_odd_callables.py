"""Callables without a signature, calls inside a tracing, recipes by name, and what reports say of them."""

import collections

import pytest
import thunder
import torch
from torch import nn

import speckey
from speckey import SpecKeyCache, entries, explain
from speckey.report import describe_entry
from tests.helpers import compiled, misses, same


def test_a_builtin_without_a_signature():
    jfn = compiled(torch.add)
    for shape in [(2, 3), (4, 5), (2, 3)]:
        same(jfn, torch.add, torch.randn(shape), torch.randn(shape))
    assert misses(jfn) == 1
    assert entries(jfn)[0].hits == 2


def test_a_compiled_module_inside_a_compiled_function():
    inner = compiled(nn.Linear(3, 3))

    def fn(x):
        return inner(x) * 2

    jfn = compiled(fn)
    for n in (2, 5, 7):
        x = torch.randn(n, 3)
        torch.testing.assert_close(jfn(x), inner(x) * 2)
    assert misses(jfn) == 1


def test_a_recipe_by_name():
    from speckey import thunder_hooks

    found = thunder_hooks.recipe_with_options(nn.Linear(2, 2), "auto", {"cache": SpecKeyCache()})
    assert isinstance(found.setup_config()["cache"], SpecKeyCache)
    assert thunder_hooks.recipe_with_options(nn.Linear(2, 2), "no such recipe", {}) == "no such recipe"


def test_an_entry_is_described_in_lines(capsys):
    jfn = thunder.jit(lambda x: x * 2, cache=SpecKeyCache(vary=speckey.Exact()))
    jfn(torch.ones(3))
    jfn(torch.ones(3))
    lines = describe_entry(entries(jfn)[0])
    assert lines[0].startswith("[1] exact, 1 hit, compiled in ")
    assert "    shapes:     (3,)" in lines


def test_a_remainder_by_zero_is_a_reason():
    def fn(x):
        n, m = x.shape
        return x * 2 if m and n % m == 0 else x * 3

    jfn = compiled(fn)
    for shape in [(4, 2), (6, 3), (4, 0), (5, 2), (4, 2)]:
        same(jfn, fn, torch.randn(shape))


def test_named_tuples_with_attributes_of_their_own():
    class Sizes(collections.namedtuple("Base", "a b")):
        pass

    def fn(pair):
        return pair.a + pair.b

    jfn = thunder.jit(fn, cache=SpecKeyCache(verify=True))
    for n in (2, 3):
        pair = Sizes(torch.ones(n), torch.ones(n))
        pair.extra = "kept"
        try:
            expected = thunder.jit(fn)(pair)
        except Exception as error:  # thunder's own refusal
            with pytest.raises(type(error)):
                jfn(pair)
        else:
            torch.testing.assert_close(jfn(pair), expected)


def test_complex_and_tensor_constants_are_guarded():
    global FACTOR, WEIGHT
    FACTOR, WEIGHT = 1j, torch.ones(2)

    def fn(x):
        return x * FACTOR.imag + WEIGHT

    jfn = compiled(fn)
    x = torch.randn(3, 2)
    torch.testing.assert_close(jfn(x), fn(x))
    FACTOR = 2j
    torch.testing.assert_close(jfn(x), fn(x))
    WEIGHT = torch.zeros(2)
    torch.testing.assert_close(jfn(x), fn(x))
    WEIGHT = nn.Parameter(torch.ones(2))
    torch.testing.assert_close(jfn(x), fn(x))
    FACTOR = 3.0
    torch.testing.assert_close(jfn(x), fn(x))


def test_many_equalities_are_reported_as_a_ladder(capsys):
    def fn(x):
        for k in (3, 5, 7, 9, 11):
            if x.shape[0] == k:
                return x * k
        return x

    jfn = compiled(fn)
    for n in (3, 5, 7, 9, 11, 4, 3, 11):
        same(jfn, fn, torch.randn(n))
    explain(jfn)
    text = capsys.readouterr().out
    assert all(f"x.shape[0] == {k}" in text for k in (3, 5, 7, 9, 11))
