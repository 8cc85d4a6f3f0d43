"""Compile ahead of a call."""

import dataclasses

import pytest
import thunder
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import speckey
from speckey import SpecKeyCache, entries, warmup
from tests.helpers import compiled, same


def counts(jfn):
    return thunder.cache_hits(jfn), thunder.cache_misses(jfn), thunder.compile_stats(jfn).calls


def add(a, b):
    return a + b * a.shape[0]


def test_it_compiles_and_the_call_is_a_hit():
    jfn = compiled(add)
    entry = warmup(jfn, torch.randn(2, 3), b=torch.randn(3))
    assert (entries(jfn), counts(jfn), entry.hits) == ((entry,), (0, 0, 0), 0)
    assert warmup(jfn, torch.randn(5, 4), b=torch.randn(4)) is entry
    assert counts(jfn) == (0, 0, 0)
    same(jfn, add, torch.randn(7, 3), b=torch.randn(3))
    assert (counts(jfn), entry.hits) == ((1, 0, 1), 1)


def test_nothing_is_run():
    def fn(x):
        x.add_(1)
        return torch.rand(3) + x

    jfn = compiled(fn)
    x, state = torch.zeros(3), torch.get_rng_state()
    entry = warmup(jfn, x)
    assert torch.equal(x, torch.zeros(3))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    jfn(x)
    assert (torch.equal(x, torch.ones(3)), entry.hits) == (True, 1)


@pytest.mark.parametrize("grad", [False, True])
def test_meta_tensors_stand_for_real_ones_of_a_module(grad):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    module.eval()
    jfn = compiled(module)
    entry = warmup(jfn, torch.empty(5, 3, device="meta", requires_grad=grad))
    for batch in (5, 8):
        x = torch.randn(batch, 3, requires_grad=grad)
        out = same(jfn, module, x)
        out.sum().backward()
        x.grad = None
    assert (entries(jfn), counts(jfn), entry.kind) == ((entry,), (2, 0, 2), "symbolic")


def test_fake_tensors_stand_for_real_ones():
    jfn = compiled(add)
    with FakeTensorMode():
        a, b = torch.empty(2, 3), torch.empty(3)
        entry = warmup(jfn, a, b)
    assert warmup(jfn, a, b) is entry
    same(jfn, add, torch.randn(4, 3), torch.randn(3))
    assert (counts(jfn), entry.hits) == ((1, 0, 1), 1)


@dataclasses.dataclass
class Batch:
    ids: torch.Tensor
    scale: int


def test_meta_tensors_in_containers():
    def fn(batch, pair, options=None):
        return batch.ids * batch.scale + pair[0][0] + pair[1][0] + options["bias"]

    jfn = compiled(fn)

    def arguments(**where):
        shared = [torch.ones(3, **where)]
        return (Batch(torch.ones(2, 3, **where), 3), (shared, shared)), {"options": {"bias": torch.ones(1, **where)}}

    args, kwargs = arguments(device="meta")
    entry = warmup(jfn, *args, **kwargs)
    assert args[0].ids.device.type == "meta"  # the user's own is as it was
    args, kwargs = arguments()
    same(jfn, fn, *args, **kwargs)
    assert (entries(jfn), entry.hits) == ((entry,), 1)


def test_shapes_that_no_machine_has_memory_for():
    jfn = compiled(add)
    entry = warmup(jfn, torch.empty(1 << 20, 1 << 30, device="meta"), torch.empty(1 << 30, device="meta"))
    same(jfn, add, torch.randn(4, 3), torch.randn(3))
    assert entry.hits == 1


def test_writing_into_a_meta_tensor():
    def fn(x):
        x.mul_(2)
        return x + 1

    jfn = compiled(fn)
    entry = warmup(jfn, torch.empty(4, device="meta"))
    same(jfn, fn, torch.randn(6))
    assert entry.hits == 1


def test_with_an_exact_entry():
    jfn = thunder.jit(add, cache=SpecKeyCache(speckey.Exact()))
    entry = warmup(jfn, torch.empty(2, 3, device="meta"), torch.empty(3, device="meta"))
    assert (entry.kind, warmup(jfn, torch.ones(2, 3), torch.ones(3))) == ("exact", entry)
    assert warmup(jfn, torch.ones(3, 3), torch.ones(3)) is not entry
    same(jfn, add, torch.randn(2, 3), torch.randn(3))
    assert entry.hits == 1


def test_the_state_of_torch_counts():
    jfn = compiled(add)
    a, b = torch.randn(2, 3), torch.randn(3)
    with torch.no_grad():
        entry = warmup(jfn, a, b)
    assert warmup(jfn, a, b) is not entry
    assert len(entries(jfn)) == 2


SCALE = 2.0


def test_values_from_outside_count(monkeypatch):
    fn = lambda x: x * SCALE
    jfn = compiled(fn)
    entry = warmup(jfn, torch.randn(3))
    assert warmup(jfn, torch.randn(3)) is entry
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert warmup(jfn, torch.randn(3)) is not entry
    same(jfn, fn, torch.randn(4))
    assert counts(jfn) == (1, 0, 1)


def test_misuse():
    with pytest.raises(TypeError, match="compiled with cache=SpecKeyCache"):
        warmup(add, torch.randn(2, 3))
    jfn = compiled(add)
    with pytest.raises(TypeError):
        warmup(jfn, torch.randn(2, 3))  # b is missing
    with pytest.raises(RuntimeError):
        warmup(jfn, torch.randn(2, 3), torch.randn(5))
    assert entries(jfn) == ()
    jfn = compiled(lambda x, items: x * next(items))
    with pytest.raises(ValueError, match="serves one call only"):
        warmup(jfn, torch.ones(2), iter([1, 2]))
