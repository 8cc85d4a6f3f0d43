"""Modules that change between calls: each result, gradient and buffer is eager's."""

import copy

import pytest
import thunder
import torch
from torch import nn

from speckey import SpecKeyCache, entries
from tests.helpers import compiled, misses, same


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.0)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.scale = 2.0
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x):
        x = self.drop(self.norm(self.first(x)))
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x * self.scale + self.shift


def _make():
    torch.manual_seed(1)
    module = Net()
    return module, copy.deepcopy(module), thunder.jit(module, cache=SpecKeyCache())


def _step(module, eager, jfn, batch, *, lr=0.1):
    x = torch.randn(batch, 3, dtype=next(eager.parameters()).dtype)
    result, expected = jfn(x), eager(x)
    torch.testing.assert_close(result, expected)
    if expected.requires_grad:
        result.sum().backward()
        expected.sum().backward()
    for (name, p), (_, q) in zip(module.named_parameters(), eager.named_parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, msg=lambda m: f"{name}: {m}")  # noqa: B023
            with torch.no_grad():
                p -= lr * p.grad
                q -= lr * q.grad
            p.grad = q.grad = None
    for (name, b), (_, c) in zip(module.named_buffers(), eager.named_buffers(), strict=True):
        torch.testing.assert_close(b, c, msg=lambda m: f"{name}: {m}")  # noqa: B023


def _swap_data(m):
    with torch.no_grad():
        m.first.weight.data = torch.full_like(m.first.weight, 0.25)


def _replace_parameter(m):
    m.first.weight = nn.Parameter(torch.full_like(m.first.weight, 0.5))


def _replace_buffer(m):
    m.shift = torch.full_like(m.shift, 3.0)


def _replace_module(m):
    torch.manual_seed(7)
    m.layers[1] = nn.Linear(4, 4)


def _grow(m):
    torch.manual_seed(8)
    m.layers.append(nn.Linear(4, 4))


def _hook(m):
    m.layers[0].register_forward_hook(lambda module, args, out: out * 2)


def _forward(m):
    m.layers[0].forward = lambda x: x + 1


CHANGES = {
    "eval": lambda m: m.eval(),
    "to float64": lambda m: m.to(torch.float64),
    "frozen parameter": lambda m: m.first.weight.requires_grad_(False),
    "all frozen": lambda m: m.requires_grad_(False),
    "swapped data": _swap_data,
    "replaced parameter": _replace_parameter,
    "replaced buffer": _replace_buffer,
    "replaced module": _replace_module,
    "grown list": _grow,
    "changed number": lambda m: setattr(m, "scale", 3.0),
    "exchanged module": lambda m: setattr(m, "drop", nn.Identity()),
    "forward hook": _hook,
    "forward on the instance": _forward,
    "loaded state": lambda m: m.load_state_dict({k: v * 0.5 for k, v in m.state_dict().items()}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed(name):
    module, eager, jfn = _make()
    for batch in (4, 6):
        _step(module, eager, jfn, batch)
    CHANGES[name](module)
    CHANGES[name](eager)
    for batch in (4, 5, 4):
        _step(module, eager, jfn, batch)


def test_going_back_is_a_hit():
    module, eager, jfn = _make()
    for mode in (True, False, True, False, True):
        module.train(mode)
        eager.train(mode)
        _step(module, eager, jfn, 4)
        _step(module, eager, jfn, 7)
    assert misses(jfn) == len(entries(jfn)) == 2


def test_replaced_parameters_of_the_same_kind_need_no_new_program():
    module, eager, jfn = _make()
    _step(module, eager, jfn, 4)
    for _ in range(3):
        for m in (module, eager):
            _replace_parameter(m)
        _step(module, eager, jfn, 5)
    assert misses(jfn) == 1


def test_an_optimizer_changes_parameters_in_place_without_a_miss():
    module, eager, jfn = _make()
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9) for m in (module, eager))
    for batch in (4, 5, 6, 7, 4):
        x = torch.randn(batch, 3)
        for m, optimizer in ((jfn, ours), (eager, theirs)):
            optimizer.zero_grad()
            m(x).square().mean().backward()
            optimizer.step()
        for p, q in zip(module.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p, q)
    assert misses(jfn) == 1


def test_tied_parameters_and_a_counter_in_the_module():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3, bias=False)
            self.b = nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls.add_(1)
            return self.b(self.a(x)) + self.calls

    module = Tied()
    eager, jfn = copy.deepcopy(module), thunder.jit(module, cache=SpecKeyCache())
    for batch in (2, 4, 3):
        x = torch.randn(batch, 3)
        torch.testing.assert_close(jfn(x), eager(x))
        torch.testing.assert_close(module.calls, eager.calls)
    assert misses(jfn) == 1


@pytest.mark.parametrize("becomes", ["a buffer", "a parameter", "shadowed"])
def test_a_name_that_becomes_something_else(becomes):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.full((4,), 2.0))
            self.register_buffer("b", torch.full((4,), 2.0))

        def forward(self, x):
            return x * self.w * self.b

    model, x = Two(), torch.randn(3, 4)
    jfn = compiled(model)
    same(jfn, model, x)
    if becomes == "a buffer":
        del model.w
        model.register_buffer("w", torch.full((4,), 9.0))
    elif becomes == "a parameter":
        del model.b
        model.b = nn.Parameter(torch.full((4,), 9.0))
    else:
        model.__dict__["w"] = torch.full((4,), 9.0)
    for n in (3, 5):
        same(jfn, model, torch.randn(n, 4))


class Residual(torch.nn.Module):
    """A residual network in small: sizes of one tensor come to another by several ways."""

    def __init__(self, channels=4, stride=1):
        super().__init__()
        self.first = torch.nn.Conv2d(channels, channels, 3, stride, 1)
        self.second = torch.nn.Conv2d(channels, channels, 3, 1, 1)
        self.down = torch.nn.Conv2d(channels, channels, 1, stride) if stride > 1 else None

    def forward(self, x):
        y = self.second(torch.relu(self.first(x)))
        return torch.relu(y + (x if self.down is None else self.down(x)))


def test_the_backward_of_residual_blocks_with_pooling_is_symbolic():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 7, 2, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.MaxPool2d(3, 2, 1),
        Residual(),
        Residual(stride=2),
        Residual(stride=2),
        Residual(stride=2),
        torch.nn.AdaptiveAvgPool2d((1, 1)),
        torch.nn.Flatten(1),
        torch.nn.Linear(4, 3),
    ).double()
    eager, jfn = copy.deepcopy(model), compiled(model)
    for shape in [(2, 3, 64, 96), (3, 3, 96, 64), (5, 3, 64, 64)]:
        x = torch.randn(shape, dtype=torch.float64)
        result, expected = jfn(x), eager(x)
        torch.testing.assert_close(result, expected)
        ours = torch.autograd.grad(result.pow(2).sum(), list(model.parameters()))
        torch.testing.assert_close(ours, torch.autograd.grad(expected.pow(2).sum(), list(eager.parameters())))
    assert all(e.kind == "symbolic" for e in entries(jfn))
