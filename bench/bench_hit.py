"""One cached call of ``a + b``, by every way of compiling it."""

import pytest

import speckey

# isort: split
import thunder
import torch


def add(a, b):
    return a + b


WAYS = {
    "eager": lambda fn: fn,
    "thunder constant values": thunder.jit,
    "torch.compile dynamic": lambda fn: torch.compile(fn, dynamic=True, backend="eager"),
    "speckey": lambda fn: thunder.jit(fn, cache=speckey.SpecKeyCache()),
}


@pytest.mark.benchmark(group="hit on a + b")
@pytest.mark.parametrize("way", WAYS)
def test_hit(benchmark, way):
    torch.set_num_threads(1)
    compiled = WAYS[way](add)
    a, b = torch.randn(4, 5), torch.randn(5)
    compiled(a, b)
    compiled(torch.randn(6, 7), torch.randn(7))
    benchmark(compiled, a, b)
