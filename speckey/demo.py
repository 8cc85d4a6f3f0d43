"""The demo: a small language model on sentences of many lengths, with and without speckey.

Every result is compared with eager torch; a difference ends the demo.
"""

from __future__ import annotations

import argparse
import copy
import math
import re
import sys
import time
from collections.abc import Callable
from pydoc_data.topics import topics
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import nn

import speckey
from speckey.report import describe_entry
from speckey.thunder_import import thunder

# (batch, length); one sentence alone, one token alone, and as many sentences as words among them.
SHAPES = [(4, 12), (7, 19), (3, 30), (1, 16), (8, 8), (5, 23), (2, 41), (6, 9), (12, 27), (10, 14), (9, 33)]
VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 512, 48, 64, 4, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3 * HEADS, width // HEADS).transpose(1, 2)
        q, k, v = heads.chunk(3, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A GPT of two blocks: tokens (batch, length) to logits (batch, length, vocabulary), and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> Any:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits = self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def sentences() -> list[list[int]]:
    """The sentences of Python's own help texts as lists of word numbers below ``VOCABULARY``."""
    text = " ".join(topics[name] for name in sorted(topics))
    words = [s.split() for s in re.split(r"(?<=[.:])\s+", text)]
    counts: dict[str, int] = {}
    for word in (w for s in words for w in s):
        counts[word] = counts.get(word, 0) + 1
    common = sorted(counts, key=lambda w: (-counts[w], w))[: VOCABULARY - 1]
    number = {word: i + 1 for i, word in enumerate(common)}  # 0 is every other word
    return [[number.get(w, 0) for w in s] for s in words]


def batches(shapes: list[tuple[int, int]] = SHAPES) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and the tokens that follow them, each (batch, length), for every shape."""
    every, result = sentences(), []
    for batch, length in shapes:
        fitting = [s[: length + 1] for s in every if len(s) > length]
        rows = torch.tensor([fitting[(i * 7) % len(fitting)] for i in range(batch)])
        result.append((rows[:, :-1].contiguous(), rows[:, 1:].contiguous()))
    return result


class Difference(AssertionError):
    """A compiled result that is not eager's."""


def compare(what: str, result: torch.Tensor, expected: torch.Tensor) -> None:
    try:
        torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-5)
    except AssertionError as error:
        raise Difference(f"{what} differs from eager:\n{error}") from None


@attrs.define
class Run:
    """One model, compiled, beside an eager copy that takes the same steps."""

    compiled: Any
    module: nn.Module
    eager: nn.Module

    @classmethod
    def start(cls, compile_: Callable[[nn.Module], Any]) -> Run:
        torch.manual_seed(0)
        module = Model()
        eager = copy.deepcopy(module)
        return cls(compile_(module), module, eager)

    def forward(self, tokens: torch.Tensor) -> tuple[float, bool]:
        """Seconds that it took, and whether it was compiled for this call."""
        with torch.no_grad():
            logits, seconds, missed = self._timed(lambda: self.compiled(tokens))
            compare(f"forward on {tuple(tokens.shape)}: logits", logits, self.eager(tokens))
        return seconds, missed

    def train(self, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[float, bool]:
        def step(model: Any, module: nn.Module) -> torch.Tensor:
            loss = model(tokens, targets)[1]
            loss.backward()
            return loss.detach()

        loss, seconds, missed = self._timed(lambda: step(self.compiled, self.module))
        where = f"training on {tuple(tokens.shape)}"
        compare(f"{where}: loss", loss, step(self.eager, self.eager))
        for (name, p), q in zip(self.module.named_parameters(), self.eager.parameters(), strict=True):
            compare(f"{where}: gradient of {name}", p.grad, q.grad)
            with torch.no_grad():
                p -= 0.1 * p.grad
                q -= 0.1 * q.grad
            p.grad = q.grad = None
            compare(f"{where}: {name} after the step", p, q)
            with torch.no_grad():
                q.copy_(p)  # so that rounding does not add up
        return seconds, missed

    def _timed(self, call: Callable[[], Any]) -> tuple[Any, float, bool]:
        before, start = thunder.cache_misses(self.compiled), time.perf_counter()
        result = call()
        return result, time.perf_counter() - start, thunder.cache_misses(self.compiled) > before


@attrs.define
class Totals:
    compiles: int = 0
    seconds: float = 0.0
    hits: list[float] = attrs.field(factory=list)

    def add(self, seconds: float, missed: bool) -> str:
        self.compiles += missed
        self.seconds += seconds
        if not missed:
            self.hits.append(seconds)
        return f"{'compile' if missed else 'hit':>8} {_time(seconds):>9}"

    def line(self, name: str) -> str:
        hit = _time(sorted(self.hits)[len(self.hits) // 2]) if self.hits else "none"
        return f"{name:<22}{len(SHAPES):>7}{self.compiles:>10}{_time(self.seconds):>12}{hit:>14}"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def with_speckey() -> tuple[Totals, Any]:
    run, totals = Run.start(lambda m: thunder.jit(m, cache=speckey.SpecKeyCache())), Totals()
    print(f"{'batch x length':>16}   {'forward':>17}   {'training step':>17}")
    for tokens, targets in batches():
        shape = f"{tokens.shape[0]} x {tokens.shape[1]}"
        forward = totals.add(*run.forward(tokens))
        print(f"{shape:>16}   {forward}", end="", flush=True)
        print(f"   {totals.add(*run.train(tokens, targets))}")
    return totals, run.compiled


def with_constant_values() -> Totals:
    run, totals = Run.start(thunder.jit), Totals()
    start = time.perf_counter()
    for done, (tokens, targets) in enumerate(batches()):
        print(
            f"\rthe same under constant values: shape {done + 1} of {len(SHAPES)}, "
            f"{time.perf_counter() - start:.0f} s so far",
            end="",
            file=sys.stderr,
            flush=True,
        )
        totals.add(*run.forward(tokens))
        totals.add(*run.train(tokens, targets))
    print(file=sys.stderr)
    return totals


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m speckey", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave out the comparison with thunder's default cache")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    print("A small GPT on sentences of Python's help texts, each shape once forward and once for training.\n")
    try:
        ours, compiled = with_speckey()
        print("\nEvery result was eager's. The entries:\n")
        for entry in speckey.entries(compiled):
            print("\n".join(describe_entry(entry)) + "\n")
        theirs = None if options.quick else with_constant_values()
    except Difference as difference:
        print(f"\n\nFAILED: {difference}", file=sys.stderr)
        return 1
    print(f"{'cache':<22}{'shapes':>7}{'compiles':>10}{'all calls':>12}{'median hit':>14}")
    print(ours.line("SpecKeyCache()"))
    if theirs is not None:
        print(theirs.line('"constant values"'))
        print(f"\n{math.floor(theirs.seconds / ours.seconds)} times faster in all.")
    return 0
