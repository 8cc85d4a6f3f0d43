"""One call that is served from the cache."""

import math

import pytest
import torch

from bench.ways import CONSTANT, DYNAMO, SPECKEY, SYMBOLIC, compile_as


def add(a, b):
    return a + b


@pytest.mark.benchmark(group="hit on a + b")
def test_a_plus_b(benchmark, way):
    compiled = compile_as(way, add)
    a, b = torch.randn(4, 5), torch.randn(5)
    compiled(a, b)
    compiled(torch.randn(6, 7), torch.randn(7))
    compiled(a, b)
    benchmark(compiled, a, b)


def ten(a, b, c, batch, pair, k, *, scale, mode, mask=None, options=None):
    x = a + b * scale
    if mode == "sub":
        x = x - c
    x = x * batch["w"] + batch["more"][0] + pair[1]
    return x if mask is None else x * mask + k + options["shift"]


@pytest.mark.benchmark(group="hit on ten arguments with nested containers")
def test_ten_arguments(benchmark, way):
    compiled = compile_as(way, ten)

    def arguments(n, m):
        t = lambda: torch.randn(n, m)
        return (t(), t(), t(), {"w": t(), "more": [t(), 3]}, (1, t()), 2), {
            "scale": 0.5,
            "mode": "sub",
            "mask": t(),
            "options": {"shift": 1.0},
        }

    for shape in [(4, 5), (6, 7), (4, 5)]:
        args, kwargs = arguments(*shape)
        compiled(*args, **kwargs)
    benchmark(lambda: compiled(*args, **kwargs))


def by_dimension(x):
    return x * math.sqrt(x.shape[0])  # a plain number in the program: another size is another entry


def by_signature(x, n):
    return x * n


@pytest.mark.benchmark(group="hit against number of entries")
@pytest.mark.parametrize("which", ["oldest", "newest"])
@pytest.mark.parametrize("entries", [1, 8, 64, 512])
@pytest.mark.parametrize("by", ["dimension", "signature"])
@pytest.mark.parametrize("way", [SPECKEY, CONSTANT, SYMBOLIC, DYNAMO])
def test_number_of_entries(benchmark, way, by, entries, which):
    if way != SPECKEY and entries > 8:
        pytest.skip("one after another: the trend shows, and compiling takes long")
    if way == SYMBOLIC and by == "dimension":
        pytest.skip("wrong: reuses the first entry")
    fn = by_dimension if by == "dimension" else by_signature
    compiled = compile_as(way, fn)
    calls = [(torch.ones(2 + i),) if by == "dimension" else (torch.ones(3), 2 + i) for i in range(entries)]
    for args in calls:
        compiled(*args)
    args = calls[0 if which == "oldest" else -1]
    for _ in range(3):
        compiled(*args)
    benchmark(compiled, *args)
