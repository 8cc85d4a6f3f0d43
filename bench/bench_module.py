"""Modules: what checking parameters costs, and a training step."""

import pytest
import torch
from torch import nn

from bench.ways import CONSTANT, EAGER, SPECKEY, SYMBOLIC, compile_as


def chain(parameters):
    """As many parameters, in linear layers that compute next to nothing."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(parameters // 2)])


def bare_computation(model, x):
    """The compiled program alone, which is what is left when looking it up costs nothing."""
    import inspect

    import speckey
    from speckey import thunder_hooks

    compiled = compile_as(SPECKEY, model)
    compiled(x)
    entry = speckey.entries(compiled)[0].program.entry
    inputs, _ = thunder_hooks.run_prologue(compiled, entry, (x,), {})
    computation = inspect.unwrap(entry.computation_fn)
    return lambda _: computation(*inputs)


@pytest.mark.benchmark(group="module with many parameters")
@pytest.mark.parametrize("parameters", [10, 100, 1000])
@pytest.mark.parametrize("way", [EAGER, SPECKEY, CONSTANT, "torch.compile dynamic", "bare computation"])
def test_parameters(benchmark, way, parameters):
    if parameters == 1000 and way == "torch.compile dynamic":
        pytest.skip("takes minutes to compile")
    model, x = chain(parameters), torch.randn(3, 4)
    with torch.no_grad():
        compiled = bare_computation(model, x) if way == "bare computation" else compile_as(way, model)
        for _ in range(4):
            compiled(x)
        benchmark(compiled, x)


@pytest.mark.benchmark(group="training step")
def test_training_step(benchmark, way):
    if way == SYMBOLIC:
        pytest.skip("does not compile modules with parameters")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    compiled = compile_as(way, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(8, 16)

    def step():
        optimizer.zero_grad()
        compiled(x).square().mean().backward()
        optimizer.step()

    for _ in range(3):
        step()
    benchmark(step)
