"""How many programs random functions need over sizes from 3 to 40, no two of them equal.

    python -m bench.fewness [--programs 200] [--first 0]

Takes programs of ``tests.program_fuzz`` whose inputs have no dimension of size 0 or 1, and calls each with
up to six consistent choices of other sizes.  The grammar of those is made to find wrong hits: most of its
programs turn a size into text, a key of a dict or a loop at some place, which takes a program for each size
whoever compiles it.  They are left out here unless ``--all`` is given.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import speckey  # first: it makes thunder importable on torch 2.13

# isort: split
import thunder
import torch

from tests.program_fuzz import Call, Combo, Program, TensorSpec, compare, generate, load, outcome

# What needs the value of a size, and so a program for each: text, keys of sets and dicts, loops, exceptions.
_NEEDS_VALUES = re.compile(
    r"""str\(|f'|f"|%|format|hash|set\(|\bin \{|\bget\(|range\(|try:|raise|\{|divmod|copysign|<<|>>"""
)


def _resized(value: Any, sizes: dict[int, int]) -> Any:
    if isinstance(value, TensorSpec):
        return TensorSpec(tuple(sizes[n] for n in value.shape), value.dtype, value.grad)
    if isinstance(value, (list, tuple)):
        return type(value)(_resized(v, sizes) for v in value)
    if isinstance(value, dict):
        return {k: _resized(v, sizes) for k, v in value.items()}
    return value


def _shapes(value: Any) -> Iterator[tuple[int, ...]]:
    if isinstance(value, TensorSpec):
        yield value.shape
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _shapes(v)
    elif isinstance(value, dict):
        yield from _shapes(list(value.values()))


def _over_sizes(program: Program, rng: random.Random) -> Program | None:
    """The program with one combo of its own in six choices of sizes, as far as eager accepts them."""
    for combo in program.combos:
        shapes = list(_shapes([combo.args, combo.kwargs]))
        distinct = sorted(set(itertools.chain(*shapes)))
        if not distinct or min(distinct) < 2 or max(map(len, shapes)) > 3:
            continue
        choices = [dict(zip(distinct, rng.sample(range(3, 41), len(distinct)), strict=True)) for _ in range(6)]
        combos = tuple(Combo(_resized(combo.args, c), _resized(combo.kwargs, c)) for c in choices)
        candidate = _with_combos(program, combos)
        fn = load(candidate.source())
        good = [c for i, c in enumerate(combos) if outcome(fn, candidate, Call(i, 0)).raised is None]
        if len(good) >= 3:
            return _with_combos(program, tuple(good))
    return None


def _with_combos(program: Program, combos: tuple[Combo, ...]) -> Program:
    calls = tuple(Call(i, 0) for i in range(len(combos)))
    return Program(program.seed, program.params, program.body, program.returns, program.form, combos, calls)


def _graphs(fn: Callable) -> tuple[Callable, Callable[[], int]]:
    torch._dynamo.reset()
    graphs = 0

    def backend(graph: torch.fx.GraphModule, inputs: list) -> Callable:
        nonlocal graphs
        graphs += 1
        return graph.forward

    return torch.compile(fn, dynamic=True, backend=backend), lambda: graphs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--all", action="store_true", help="also programs that turn sizes into text, keys or loops")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    totals = dict.fromkeys(["programs", "shapes", "speckey", "constant values", "torch.compile", "wrong"], 0)
    left_out = 0
    for seed in itertools.count(options.first):
        if totals["programs"] == options.programs:
            break
        program = _over_sizes(generate(seed), random.Random(seed))
        if program is None or not (options.all or _NEEDS_VALUES.search(program.source()) is None):
            continue
        fn = load(program.source())
        constant, ours = thunder.jit(fn), thunder.jit(fn, cache=speckey.SpecKeyCache())
        theirs, graphs = _graphs(fn)
        expected = [outcome(fn, program, call) for call in program.calls]
        found = [[outcome(way, program, call) for call in program.calls] for way in (constant, ours, theirs)]
        if any(o.raised for o in found[0]):  # thunder cannot trace it
            left_out += 1
            continue
        totals["programs"] += 1
        totals["shapes"] += len(program.combos)
        totals["constant values"] += thunder.cache_misses(constant)
        totals["speckey"] += thunder.cache_misses(ours)
        totals["torch.compile"] += graphs()
        totals["wrong"] += sum(
            compare(e, o) is not None and compare(c, o) is not None
            for e, c, o in zip(expected, found[0], found[1], strict=True)
        )
        if totals["programs"] % 20 == 0:
            print(totals, flush=True)
    print(f"{left_out} programs left out, which thunder cannot trace")
    for way in ("speckey", "constant values", "torch.compile"):
        print(f"{way:<16} {totals[way]:>5} programs, {totals[way] / totals['shapes']:.2f} per shape")


if __name__ == "__main__":
    main()
