"""Small models, and a walk over their input shapes that compares a compiled copy with an eager one at every call.

``python -m tests.models`` prints how many programs each model needs (``--cache constant`` for thunder's own cache).
"""

from __future__ import annotations

import argparse
import copy
import functools
import random
import time
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import speckey  # first: it makes thunder importable on torch 2.13

# isort: split
import thunder
import torch
import torch.nn.functional as F
from thunder.tests.llama2_model import ModelArgs, Transformer
from thunder.tests.nanogpt_model import GPT, GPTConfig
from torch import nn

VOCABULARY = 32
WIDTH = 16

WAYS = {
    "constant": thunder.jit,
    "symbolic": functools.partial(thunder.jit, cache="symbolic values"),
    "speckey": lambda fn: thunder.jit(fn, cache=speckey.SpecKeyCache()),
}


class Block(nn.Module):
    """LayerNorm and multi-head attention with a residual connection."""

    def __init__(self, width: int = WIDTH, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(batch, length, width))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
    )


def nanogpt() -> nn.Module:
    return GPT(GPTConfig(block_size=16, vocab_size=VOCABULARY, n_layer=1, n_head=2, n_embd=WIDTH, dropout=0.0))


def llama2() -> nn.Module:
    sizes = {"dim": WIDTH, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "multiple_of": 8, "max_seq_len": 16}
    return Transformer(ModelArgs(vocab_size=VOCABULARY, **sizes))


def _tokens(*shape: int) -> tuple[torch.Tensor]:
    return (torch.randint(VOCABULARY, shape),)


def _tokens_and_targets(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return _tokens(*shape) + _tokens(*shape)


def _squares(out, *inputs):
    return (out**2).mean()


def _next_token(logits, tokens, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Model(NamedTuple):
    build: Callable[[], nn.Module]
    inputs: Callable[..., tuple]  # shape -> arguments for inference
    training_inputs: Callable[..., tuple]
    loss: Callable  # (result, *inputs) -> scalar, computed outside of the compiled module
    shapes: tuple[tuple[int, ...], ...]


# (batch, length): batch 1, length 1, both equal, and each changing with the other fixed.
SEQUENCES = ((2, 8), (1, 5), (4, 4), (3, 8), (8, 8), (3, 1), (1, 16))
MODELS = {
    "mlp": Model(
        mlp,
        lambda batch: (torch.randn(batch, WIDTH),),
        lambda batch: (torch.randn(batch, WIDTH),),
        _squares,
        ((2,), (1,), (WIDTH,), (3,), (32,), (7,), (4,)),
    ),
    "attention": Model(
        Block, lambda *s: (torch.randn(*s, WIDTH),), lambda *s: (torch.randn(*s, WIDTH),), _squares, SEQUENCES
    ),
    "cnn": Model(
        cnn,
        lambda batch, height, width: (torch.randn(batch, 3, height, width),),
        lambda batch, height, width: (torch.randn(batch, 3, height, width),),
        _squares,
        # An odd side makes pooling drop a row; then batch equal to the channels and to the sides.
        ((2, 8, 8), (1, 8, 8), (3, 9, 12), (8, 8, 8), (4, 6, 10), (1, 7, 7)),
    ),
    "nanogpt": Model(nanogpt, _tokens, _tokens_and_targets, lambda out, *inputs: out[1], SEQUENCES),
    "llama2": Model(llama2, _tokens, _tokens_and_targets, _next_token, SEQUENCES),
}


class Call(NamedTuple):
    """One call: what the compiled module and the eager one gave, by name, and what it cost."""

    shape: tuple[int, ...]
    known: bool  # this shape was called before
    compiles: int
    actual: dict
    expected: dict


def _step(module: nn.Module, model: Model, inputs: tuple, training: bool) -> dict:
    """Result, gradients and buffers; a training step also updates the parameters, so that stale ones would show."""
    if not training:
        with torch.no_grad():
            return {"result": module(*inputs)}
    module.zero_grad()
    out = module(*inputs)
    model.loss(out, *inputs).backward()
    gradients = {name: parameter.grad.clone() for name, parameter in module.named_parameters()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= 0.01 * parameter.grad
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    return {"result": out, "gradients": gradients, "buffers": buffers}


def build(model: Model, jit: Callable, *, training: bool) -> tuple[nn.Module, nn.Module]:
    """A compiled module and an eager one with the same parameters."""
    torch.manual_seed(0)
    eager = model.build().train(training)
    return jit(copy.deepcopy(eager)), eager


def walk(model: Model, jfn: nn.Module, eager: nn.Module, shapes: tuple | None = None) -> Iterator[Call]:
    """Call both modules twice on each shape, in a shuffled order that is the same every time."""
    training = eager.training
    order = list(shapes or model.shapes) * 2
    random.Random(0).shuffle(order)
    seen = set()
    for shape in order:
        inputs = (model.training_inputs if training else model.inputs)(*shape)
        misses = thunder.cache_misses(jfn)
        actual = _step(jfn, model, inputs, training)
        expected = _step(eager, model, inputs, training)
        yield Call(shape, shape in seen, thunder.cache_misses(jfn) - misses, actual, expected)
        seen.add(shape)


def print_table(cache: str, names: list[str]) -> None:
    """Programs and seconds per model; does not check anything."""
    print(f"{'cache ' + cache:18} {'':8} {'shapes':>7} {'programs':>9} {'compiles':>9} {'seconds':>8}")
    for name in names:
        for training in (False, True):
            start = time.perf_counter()
            kind = "training" if training else "forward"
            try:
                jfn, eager = build(MODELS[name], WAYS[cache], training=training)
                calls = list(walk(MODELS[name], jfn, eager))
            except Exception as error:  # symbolic values cannot compile a module with parameters
                print(f"{name:18} {kind:8} {type(error).__name__}: {str(error).partition(chr(10))[0][:80]}")
                continue
            programs = len(thunder.compile_stats(jfn).interpreter_cache)
            print(
                f"{name:18} {kind:8} {len({call.shape for call in calls}):7} {programs:9} "
                f"{sum(call.compiles for call in calls):9} {time.perf_counter() - start:8.1f}",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", choices=WAYS, default="speckey")
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated (default: all)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print_table(options.cache, options.models.split(","))
