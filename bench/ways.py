"""The ways to compile that the benchmarks compare, each in the same run."""

from __future__ import annotations

import speckey

# isort: split
import thunder
import torch

SPECKEY = "speckey"
CONSTANT = "thunder constant values"
SYMBOLIC = "thunder symbolic values"
DYNAMO = "torch.compile dynamic"
EAGER = "eager"

WAYS = {
    EAGER: lambda fn: fn,
    SPECKEY: lambda fn: thunder.jit(fn, cache=speckey.SpecKeyCache()),
    CONSTANT: lambda fn: thunder.jit(fn),
    SYMBOLIC: lambda fn: thunder.jit(fn, cache="symbolic values"),
    DYNAMO: lambda fn: torch.compile(fn, dynamic=True, backend="eager"),
}


def compile_as(way, fn):
    torch._dynamo.reset()
    return WAYS[way](fn)


def compiles(way, compiled) -> int | None:
    """How many programs it holds, where one can ask."""
    return thunder.cache_misses(compiled) if way in (SPECKEY, CONSTANT, SYMBOLIC) else None
