"""nanoGPT: what a compile costs, and fifty shapes from cold."""

import random
import time

import pytest
import torch
from thunder.tests.nanogpt_model import GPT, GPTConfig

from bench.ways import CONSTANT, DYNAMO, EAGER, SPECKEY, SYMBOLIC, compile_as, compiles


def gpt():
    torch.manual_seed(0)
    return GPT(GPTConfig(block_size=64, vocab_size=96, n_layer=2, n_head=2, n_embd=32, dropout=0.0))


@pytest.mark.benchmark(group="one compile of nanoGPT", min_rounds=3, warmup=False)
@pytest.mark.parametrize("mode", ["forward", "training"])
@pytest.mark.parametrize("way", [SPECKEY, CONSTANT])
def test_compile(benchmark, way, mode):
    model, tokens = gpt(), torch.randint(0, 96, (3, 17))

    def fresh():
        return (compile_as(way, model),), {}

    def first_call(compiled):
        if mode == "forward":
            with torch.no_grad():
                compiled(tokens)
        else:
            compiled(tokens)[0].sum().backward()
            model.zero_grad()

    benchmark.pedantic(first_call, setup=fresh, rounds=5)


@pytest.mark.benchmark(group="fifty shapes on nanoGPT, from cold")
@pytest.mark.parametrize("way", [EAGER, SPECKEY, CONSTANT, SYMBOLIC, DYNAMO])
def test_workload(benchmark, way):
    model, choose = gpt().eval(), random.Random(0)
    shapes = [(choose.randint(1, 16), choose.randint(2, 64)) for _ in range(50)]
    batches = [torch.randint(0, 96, shape) for shape in shapes]
    compiled = compile_as(way, model)

    def serve():
        for tokens in batches:
            compiled(tokens)

    start = time.perf_counter()
    with torch.no_grad():
        try:
            benchmark.pedantic(serve, rounds=1)
        except Exception as error:
            pytest.skip(f"{way} cannot: {type(error).__name__}: {str(error).splitlines()[0][:120]}")
    benchmark.extra_info["compiles"] = compiles(way, compiled)
    print(f"\n{way}: {time.perf_counter() - start:.1f} s, {compiles(way, compiled)} compiles")
