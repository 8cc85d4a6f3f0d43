"""Ints and floats among the arguments: the second different value makes one symbolic, and no value goes unseen."""

import copy
import math

import pytest
import thunder
import torch
from torch import nn

from speckey import SpecKeyCache, entries
from speckey.policies import AutomaticNumbers, ConstantNumbers, SymbolicNumbers
from tests.helpers import compiled, misses, same


def x(*shape):
    return torch.randn(shape, requires_grad=True)


def add(x, n):
    return x + n


def times_and_next(x, n):
    return x * n, n + 1


def prefix(x, n):
    return x[:, :n]


def window(x, start, length):
    return x[:, start : start + length]


def positions(x, start):
    return torch.arange(start, start + x.shape[1]) + x


def only_numbers(n, m):
    return n * m + 1


def branch(x, n):
    return x * 2 if n > 5 else x


def narrowed(x, n):
    return x.narrow(1, n, 2)


def filled(x, n):
    return torch.full((n, x.shape[1]), 2.0) + x[:1]


def viewed(x, n):
    return x.reshape(n, -1)


def summed(x, dim):
    return x.sum(dim)


def scaled(x, f):
    return x * f + f


def to_power(x, n):
    return x**n


def sized(x, size):
    return x.reshape(size) * 2


def padded(x, widths):
    return nn.functional.pad(x, widths)


def at_most(x, *numbers):
    return x + max(numbers)


def half(x, n):
    return x[:, : n // 2] * (n / 2), math.ceil(n / 2)


CASES = [
    (add, [3, 4, 5, -7, 0, 1], 2),
    (times_and_next, [3, 4, 5, 6], 2),
    (prefix, [3, 4, 5, 7], 2),
    (positions, [3, 4, 5, 7], 2),
    (branch, [3, 4, 5, 7, 8], 3),
    (narrowed, [3, 4, 5, 7, 8], 2),
    (filled, [3, 4, 5, 7, 8], 2),
    (viewed, [2, 5, 8, 10], 3),
    (summed, [0, 1, 0, 1], 2),
    (scaled, [0.5, 0.75, 1.0, -2.5], 2),
    (to_power, [2, 3, 4], 2),
    (sized, [(4, 20), (8, 10), (10, 8), (16, 5)], 2),
    (padded, [(1, 2), (2, 3), (3, 1), (0, 5)], 2),
]


@pytest.mark.parametrize(("fn", "values", "most"), CASES, ids=[c[0].__name__ for c in CASES])
def test_a_number_is_symbolic_from_the_second_value_on(fn, values, most):
    jfn = compiled(fn)
    for value in values:
        a = x(4, 20)
        result = same(jfn, fn, a, value)
        (a.grad,) = torch.autograd.grad((result[0] if isinstance(result, tuple) else result).sum(), a)
        b = a.detach().clone().requires_grad_()
        expected = fn(b, value)
        torch.testing.assert_close(
            a.grad, torch.autograd.grad((expected[0] if isinstance(expected, tuple) else expected).sum(), b)[0]
        )
    assert misses(jfn) <= most


def test_two_numbers_and_integer_results():
    jfn = compiled(only_numbers)
    for n, m in [(2, 3), (3, 4), (3, 5), (7, 8), (2, 3), (0, 1), (-4, 5)]:
        same(jfn, only_numbers, n, m)
    assert misses(jfn) == 2
    jfn = compiled(window)
    for start, length in [(0, 5), (1, 5), (2, 5), (3, 6), (4, 7)]:
        same(jfn, window, x(4, 20), start, length)
    assert misses(jfn) <= 3


def test_what_a_comparison_said_is_a_fact():
    jfn = compiled(prefix)
    for n in [3, 4, 7, 20, 25, -2, 0, -20, 19, 1]:
        same(jfn, prefix, x(4, 20), n)
    jfn = compiled(half)
    for n in range(12):
        same(jfn, half, x(2, 20), n)


def inner_tuples(x, widths):
    return x + widths[0][0], nn.functional.pad(x, (*widths[0], *widths[1]))


def total(x, size):
    return x * sum(size)


def is_known(x, size):
    return x * 2 if size == (8, 10) else x


def looked_up(x, size):
    return x * {(8, 10): 2.0, (4, 20): 3.0}.get(size, 1.0)


def written(x, size):
    return x * len(f"{size}")


def sorted_(x, size):
    return x * sorted(size)[0]


def reversed_(x, size):
    return x * size[::-1][0] + size[-1]


def in_list(x, size):
    return x * (1 if 8 in size else 2)


def least(x, size):
    return x * min(size)


def formatted(x, size):
    return x * len("%d by %d" % size)  # noqa: UP031


def unpacked(x, size):
    height, *width = size
    return x * height + width[0]


def hashed(x, size):
    return x * (hash(size) % 7)


def spread(x, size):
    return torch.zeros(*size).sum() + x * size[0]


def copied_(x, size):
    return x * copy.copy(size)[1]


@pytest.mark.parametrize(
    "fn",
    [
        total,
        is_known,
        looked_up,
        written,
        sorted_,
        reversed_,
        in_list,
        least,
        formatted,
        unpacked,
        hashed,
        spread,
        copied_,
        sized,
    ],
    ids=lambda fn: fn.__name__,
)
def test_no_number_in_a_tuple_goes_unseen(fn):
    jfn = compiled(fn)
    for size in [(4, 20), (8, 10), (10, 8), (16, 5), (8, 10), (5, 16), (4, 20), (80, 1)]:
        same(jfn, fn, x(4, 20), size)


def test_tuples_in_tuples_that_thunder_takes_as_a_whole():
    def pad(x, widths):
        return inner_tuples(x, widths)

    jfn = compiled(pad)
    for widths in [((1, 2), (3, 4)), ((2, 2), (3, 4)), ((2, 2), (5, 4)), ((0, 1), (1, 0)), ((2, 2), (0, 1))]:
        same(jfn, pad, x(4, 20), widths)


def test_a_tuple_that_a_list_holds_as_well():
    def fn(x, size, more):
        return x * size[0] + more[0][0]

    jfn = compiled(fn)
    for size in [(1, 2), (3, 4), (5, 6)]:
        same(jfn, fn, x(3), size, [size])
        same(jfn, fn, x(3), size, [(7, size[1])])


def test_numbers_in_lists_and_dicts_stay_constant():
    def fn(x, numbers, named):
        numbers.append(4)
        return x * numbers[0] + named["n"]

    jfn = compiled(fn)
    for n in (1, 2, 3):
        numbers = [n]
        torch.testing.assert_close(jfn(torch.ones(2), numbers, {"n": n}), torch.ones(2) * n + n)
    assert misses(jfn) == 3


def test_floats_that_are_equal_and_not_the_same():
    def fn(x, f):
        return x * f, torch.full((2,), f)

    jfn = compiled(fn)
    for f in [0.5, 1.0, 0.0, -0.0, math.inf, -math.inf, math.nan, 0.25]:
        result, expected = jfn(torch.ones(2), f), fn(torch.ones(2), f)
        for r, e in zip(result, expected, strict=True):
            assert r.numpy().tobytes() == e.numpy().tobytes() or math.isnan(f), f
            torch.testing.assert_close(r, e, equal_nan=True)

    def sign(x, f):
        return x * math.copysign(1.0, f)

    jfn = compiled(sign)
    for f in [0.5, 1.0, 0.0, -0.0, -3.0]:
        same(jfn, sign, torch.ones(2), f)


def test_types_are_told_apart():
    jfn = compiled(times_and_next)
    for n in [1, 2, 3, True, False, 1.0, 2.0, 3.0, 5, True]:
        same(jfn, times_and_next, torch.ones(3), n)


def test_integers_beyond_what_is_symbolic():
    def fn(x, n):
        return x + (n % 1000), n * 3, n / 3, -n

    jfn = compiled(fn)
    for n in [1, 2, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**53 + 1, 2**62]:
        same(jfn, fn, torch.ones(2), n)


def test_policies():
    def kinds(policy, values):
        jfn = thunder.jit(add, cache=SpecKeyCache(numbers=policy))
        for value in values:
            same(jfn, add, torch.ones(3), value)
        return misses(jfn)

    assert kinds(ConstantNumbers(), [1, 2, 3, 4, 2]) == 4
    assert kinds(AutomaticNumbers(), [1, 2, 3, 4, 2]) == 2
    assert kinds(SymbolicNumbers(), [1, 2, 3, 4, 2]) == 1
    for wrong in (SymbolicNumbers, "automatic", None):
        with pytest.raises(TypeError, match="numbers= expects a policy"):
            SpecKeyCache(numbers=wrong)


def test_a_number_that_cannot_be_symbolic_is_not_tried_again():
    def fn(x, n):
        return x * math.sqrt(n)

    jfn = compiled(fn)
    for n in (1.5, 2.5, 3.5, 4.5):
        same(jfn, fn, torch.ones(2), n)
    assert misses(jfn) == 4
    assert [bool(e.reason) for e in entries(jfn)] == [False, True, False, False]


class Attention(nn.Module):
    """One layer with a cache of keys and values, grown, written in place, or by index."""

    def __init__(self, way, dim=32, heads=4, longest=80):
        super().__init__()
        self.way, self.heads = way, heads
        self.embed, self.head = nn.Embedding(50, dim), nn.Linear(dim, 50)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.register_buffer("rotations", torch.randn(longest, dim // heads))

    def forward(self, tokens, keys, values, start):
        x = self.embed(tokens)
        batch, length, dim = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, dim // self.heads).transpose(1, 2) for t in self.qkv(x).split(dim, 2)
        )
        turn = self.rotations[start : start + length]
        q, k = q * turn, k * turn
        if self.way == "grown":
            keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
            k, v = keys, values
        elif self.way == "in place":
            keys[:, :, start : start + length] = k
            values[:, :, start : start + length] = v
            k, v = keys[:, :, : start + length], values[:, :, : start + length]
        else:
            where = torch.arange(start, start + length)
            keys, values = keys.index_copy(2, where, k), values.index_copy(2, where, v)
            k, v = keys[:, :, : start + length], values[:, :, : start + length]
        mask = torch.arange(k.shape[2])[None, :] <= torch.arange(start, start + length)[:, None]
        attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, dim))
        return self.head(x[:, -1]).argmax(-1), keys, values, start + length


def _decode(model, way, steps):
    tokens = torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(1))
    size = 0 if way == "grown" else 80
    keys, values, start, out = torch.zeros(2, 4, size, 8), torch.zeros(2, 4, size, 8), 0, []
    with torch.no_grad():
        for _ in range(steps):
            token, keys, values, start = model(tokens, keys, values, start)
            out.append(token)
            tokens = token[:, None]
    assert type(start) is int
    return torch.stack(out), start


@pytest.mark.parametrize("way", ["grown", "in place", "by index"])
def test_a_decode_loop_stops_compiling(way):
    torch.manual_seed(0)
    model = Attention(way)
    eager, jfn = copy.deepcopy(model), compiled(model)
    tokens, end = _decode(jfn, way, 64)
    expected, expected_end = _decode(eager, way, 64)
    assert torch.equal(tokens, expected)
    assert end == expected_end == 70
    assert misses(jfn) <= 3
