"""Whatever changes between two calls: arguments, the module, what it reads from outside, torch's state.

A long random walk; every result, and every gradient, is compared with eager's of the same moment.
"""

import contextlib
import copy
import random
import types

import pytest
import thunder
import torch
from torch import nn

from speckey import entries
from tests.helpers import assert_same, compiled

SCALE = 2.0
TABLE = {"bias": 1.0, "names": ["a", "b"]}


class Block(nn.Module):
    gain = 1.5

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.parts = nn.ModuleList([nn.Linear(4, 4), nn.Tanh()])
        self.register_buffer("shift", torch.ones(4))
        self.factor = 3
        self.options = {"twice": False, "sizes": (1, 2)}
        self.names = ["x"]
        self.extra = None

    def bend(self, x):
        return x * 0.5

    def forward(self, x, *more, flag=False, items=()):
        x = self.inner(x) * self.factor + self.shift
        for part in self.parts:
            x = part(x)
        if self.training:
            x = x + 0.25
        if self.options["twice"]:
            x = x * 2
        x = x + len(self.names) + self.options["sizes"][1]
        if self.extra is not None:
            x = x * self.extra
        if hasattr(self, "offset"):
            x = x - self.offset
        for m in more:
            x = x + m
        for item in items:
            x = x * (item.sum() if isinstance(item, torch.Tensor) else item)
        if flag:
            x = x.sum(0, keepdim=True)
        if x.shape[0] > 3:
            x = x[1:]
        return self.bend(x) * SCALE * self.gain + TABLE["bias"] + len(TABLE["names"]), x.shape[0]


def _set(obj, name, value):
    setattr(obj, name, value)


class Walk:
    def __init__(self, seed):
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.model = Block()
        self.kind = type("Block", (Block,), {})  # a class of its own, so that it can be patched
        self.model.__class__ = self.kind
        self.jfn = compiled(self.model)
        self.log = []

    def mutations(self):
        m, r = self.model, self.random
        number = r.choice([0.5, 2.0, 3.0])
        linear = r.choice([m.inner, m.parts[0]])
        return {
            "train": lambda: m.train(not m.training),
            "train a part": lambda: linear.train(not linear.training),
            "step": lambda: [p.data.add_(0.01) for p in m.parameters()],
            "swap data": lambda: _set(linear.weight, "data", torch.randn(4, 4)),
            "replace a parameter": lambda: _set(linear, "bias", nn.Parameter(torch.randn(4))),
            "delete a bias": lambda: _set(linear, "bias", None),
            "replace a submodule": lambda: _set(m, "inner", nn.Linear(4, 4)),
            "replace a part": lambda: m.parts.__setitem__(1, r.choice([nn.Tanh, nn.ReLU, nn.Identity])()),
            "append a part": lambda: m.parts.append(nn.ReLU()) if len(m.parts) < 4 else m.parts.__delitem__(3),
            "assign a state": lambda: m.load_state_dict(
                {k: v.clone() for k, v in m.state_dict().items()}, assign=True
            ),
            "requires_grad": lambda: linear.weight.requires_grad_(not linear.weight.requires_grad),
            "dtype": lambda: m.to(torch.float64 if m.shift.dtype == torch.float32 else torch.float32),
            "buffer in place": lambda: m.shift.mul_(number),
            "replace a buffer": lambda: _set(m, "shift", torch.full((4,), number, dtype=m.shift.dtype)),
            "reshape a buffer": lambda: _set(m, "shift", torch.full((r.choice([1, 4]),), number, dtype=m.shift.dtype)),
            "number": lambda: _set(m, "factor", r.choice([1, 2, True, 2.0, 3])),
            "option": lambda: m.options.__setitem__("twice", not m.options["twice"]),
            "nested tuple": lambda: m.options.__setitem__("sizes", (1, r.choice([2, 3]))),
            "list": lambda: m.names.append("y") if len(m.names) < 3 else m.names.clear(),
            "None or a number": lambda: _set(m, "extra", r.choice([None, 2, 0.5])),
            "an attribute comes or goes": lambda: (
                delattr(m, "offset") if hasattr(m, "offset") else _set(m, "offset", number)
            ),
            "class attribute": lambda: _set(self.kind, "gain", number),
            "class method": lambda: _set(self.kind, "bend", lambda self, x, n=number: x * n),
            "instance method": lambda: (
                m.__dict__.pop("bend", None)
                if "bend" in m.__dict__
                else _set(m, "bend", types.MethodType(lambda self, x: x - number, m))
            ),
            "a new dict": lambda: _set(m, "__dict__", dict(m.__dict__)),
            "a hook": self.hook,
            "another class": lambda: _set(
                m, "__class__", r.choice([self.kind, type("Other", (self.kind,), {"gain": number})])
            ),
            "a global": lambda: globals().__setitem__("SCALE", number),
            "an item of a global": lambda: TABLE.__setitem__("bias", number),
            "a list in a global": lambda: (
                TABLE["names"].append("c") if len(TABLE["names"]) < 3 else TABLE["names"].pop()
            ),
        }

    def hook(self):
        hooks = self.model.inner._forward_pre_hooks
        if hooks:
            hooks.clear()
        else:
            self.model.inner.register_forward_pre_hook(lambda module, args: (args[0] * 2,))

    def calls(self):
        """A few ways to call it, which come again and again: most calls should be hits."""
        r = self.random
        nothing = contextlib.nullcontext
        ways = [(r.choice([nothing, torch.no_grad]), {}, None, False), (nothing, {}, None, True)]
        for _ in range(2):
            environment = r.choice(
                [nothing, torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
            )
            kwargs = r.choice([{"flag": True}, {"flag": 1}, {"items": [2.0]}, {"items": (2, torch.ones(3))}, {}])
            ways.append((environment, kwargs, r.choice([None, (), (1,), (4,)]), r.random() < 0.5))
        return ways

    def arguments(self, kwargs, more, requires_grad):
        dtype = self.model.shift.dtype
        x = torch.randn(self.random.choice([1, 2, 3, 5, 6, 7]), 4, dtype=dtype, requires_grad=requires_grad)
        cast = lambda v: v.to(dtype) if isinstance(v, torch.Tensor) else v
        kwargs = {k: type(v)(map(cast, v)) if isinstance(v, (list, tuple)) else v for k, v in kwargs.items()}
        return (x, *([] if more is None else [torch.randn(more, dtype=dtype)])), kwargs

    def run(self, steps):
        ways = self.calls()
        for _ in range(steps):
            for name, mutate in self.random.sample(list(self.mutations().items()), self.random.choice([0, 1, 1, 2])):
                self.log.append(name)
                mutate()
            environment, *way = self.random.choice(ways)
            for _ in range(self.random.choice([1, 3])):
                args, kwargs = self.arguments(*way)
                if self.model.shift.dtype == torch.float64 and environment is not torch.no_grad:
                    environment = contextlib.nullcontext
                with environment():
                    expected = _outcome(self.model, args, kwargs)
                    found = _outcome(self.jfn, args, kwargs)
                self.log.append(f"call {[tuple(a.shape) for a in args]} {kwargs}")
                self.compare(found, expected)

    def compare(self, found, expected):
        if isinstance(expected, Exception) or isinstance(found, Exception):
            assert type(expected) is type(found), (self.log, expected, found)
            return
        try:
            assert_same(found, expected)
        except AssertionError as error:
            raise AssertionError(f"{error}\nafter {self.log}") from None


def _outcome(fn, args, kwargs):
    args, kwargs = copy.deepcopy((args, kwargs)) if not torch.is_inference_mode_enabled() else (args, kwargs)
    try:
        result, n = fn(*args, **kwargs)
    except RuntimeError as error:
        return error
    leaves = [a for a in args if a.requires_grad] if result.requires_grad and result.dtype != torch.bfloat16 else []
    return [result.detach(), n, *(torch.autograd.grad(result.sum(), leaves) if leaves else ())]


@pytest.fixture(autouse=True)
def _restore():
    global SCALE
    yield
    SCALE = 2.0
    TABLE.update(bias=1.0, names=["a", "b"])


@pytest.mark.usefixtures("both_ways")
def test_a_random_walk_agrees_with_eager():
    walk = Walk(0)
    walk.run(20)
    assert len(entries(walk.jfn)) > 5
    assert thunder.cache_hits(walk.jfn) > 5


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
def test_a_long_random_walk_agrees_with_eager(seed):
    Walk(seed).run(300)
