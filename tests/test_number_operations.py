"""Every operation on sizes and on integer, float and bool arguments, whole programs against eager."""

import math
import operator

import pytest
import thunder
import torch

import speckey
from speckey import SpecKeyCache
from tests.helpers import same

SIZES = {
    "negated": lambda n, m: -n + m * 3,
    "absolute": lambda n, m: (abs(n - m), abs(-n), abs(n - 1000), abs(n * 1.5 - m)),
    "difference": lambda n, m: (n - m, m - n, n - n),
    "powers": lambda n, m: (n**2, n**0, n**1, (n - m) ** 3, 2**n, n**m, n**-1, n**0.5),
    "floor": lambda n, m: (n // m, n // 2, -n // 3, n // -2, n // 2.5, (n * m) // n, 7 // n),
    "remainder": lambda n, m: (n % m, n % 3, -n % 3, n % -3, n % 2.5, divmod(n, m)),
    "quotient": lambda n, m: (n / m, n / 2, -n / 3, 1 / n),
    "whole": lambda n, m: (int(n / 2), int(-n / 2), int(n * 0.3), math.trunc(-n / 2), math.trunc(n)),
    "ceil and floor": lambda n, m: (math.ceil(n / 3), math.floor(-n / 3), math.ceil(n), math.floor(n * 0.7)),
    "round": lambda n, m: (round(n / 3), round(n), round(n * 0.7)),
    "bits": lambda n, m: (n & 3, n | 4, n ^ m, ~n, n << 1, n >> 1, 1 << (n % 5)),
    "bools": lambda n, m: ((n > 3) & (m > 3), (n > 3) | (m > 3), (n > 3) ^ (m > 3), (n > 3) ^ True, True ^ (n > 3)),
    "no bools": lambda n, m: (not n > 3, not (n > 3 and m > 3), (n > 3) & (n > 3), (n > 3) | False, bool(n - m)),
    "bools as numbers": lambda n, m: ((n > 3) + m, (n > 3) * 2, int(n > m), float(n > m), -(n > 3), abs(n > 3)),
    "floats": lambda n, m: (float(n), float(n) * 2, -float(n), abs(float(n) - m), bool(float(n) - m), float(n) == m),
    "compared floats": lambda n, m: (n / 2 > m, n / 2 >= 1.5, n * 0.5 == m, n / m < 1, not n / m < 1),
    "largest": lambda n, m: (max(n, m), min(n, m, 4), max(n, m / 2), min(n + m, 100), max(n, 1), sum((n, m), 1)),
    "chained": lambda n, m: (2 < n < 6, n < m < 9, n == m == 4, n + 3 >= 0, n - m >= -2),
    "products": lambda n, m: (math.prod((n, m, 2)), operator.mul(n, m), n * m * n, (n + 1) * (m - 1)),
    "nested": lambda n, m: ((n // 2) // 3, (n % 4) % 2, ((n + 7) // 8) * 8, -(-n // m), (n // 2) * 2 == n),
    "of math": lambda n, m: (math.sqrt(n), math.gcd(n, m), math.log2(n), math.isfinite(n), math.copysign(1, n - m)),
    "conversions": lambda n, m: (complex(n, m), str(n), f"{n:03d}", repr(m), hash(n), n.bit_length(), n.real),
}
SHAPES = [(3, 5), (4, 4), (6, 2), (2, 7), (3, 5)]


def _leaves(values):
    return values if isinstance(values, tuple) else (values,)


@pytest.mark.parametrize("kind", SIZES)
def test_numbers_computed_from_sizes(kind):
    compute = SIZES[kind]

    def fn(x):
        found = _leaves(compute(*x.shape))
        used = [v for v in found if isinstance(v, (int, float)) and not isinstance(v, bool)]
        for v in used:
            x = x + v
        return x, *found, *[v * 2 for v in used]

    jfn = thunder.jit(fn, cache=SpecKeyCache())
    for shape in SHAPES:
        same(jfn, fn, torch.zeros(shape, dtype=torch.float64))


@pytest.mark.parametrize("kind", SIZES)
def test_branches_on_numbers_computed_from_sizes(kind):
    compute = SIZES[kind]

    def fn(x):
        for v in _leaves(compute(*x.shape)):
            if v:
                x = x + 1
            if isinstance(v, (int, float)) and v > 3:
                x = x * 2
        return x

    jfn = thunder.jit(fn, cache=SpecKeyCache())
    for shape in SHAPES:
        same(jfn, fn, torch.ones(shape, dtype=torch.float64))


@pytest.mark.parametrize("kind", [k for k in SIZES if k != "conversions"])
def test_numbers_computed_from_arguments(kind):
    compute = SIZES[kind]

    def fn(x, n, m):
        found = _leaves(compute(n, m))
        for v in found:
            if isinstance(v, (int, float)):
                x = x + v
        return x, *found

    jfn = thunder.jit(fn, cache=SpecKeyCache(numbers=speckey.SymbolicNumbers()))
    for n, m in SHAPES:
        same(jfn, fn, torch.zeros(2, dtype=torch.float64), n, m)


@pytest.mark.parametrize("last", [9, 4])
def test_a_chain_of_equalities_with_more_questions_behind(last):
    def fn(x):
        n, m = x.shape
        for k in range(2, last):
            if n == k:
                return x + k
        return x * 2 if m > 4 else x * 3

    jfn = thunder.jit(fn, cache=SpecKeyCache())
    for _ in range(2):
        for n in range(2, 12):
            for m in (3, 6):
                same(jfn, fn, torch.randn(n, m))
    assert thunder.cache_misses(jfn) <= last + 1
