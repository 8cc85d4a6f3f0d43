"""On GPUs; and, without one, what of it can be told on tensors that have no data."""

import pytest
import thunder
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from speckey import SpecKeyCache, entries
from speckey.signature import describe, tensor_details
from tests.helpers import compiled, misses, same

SHAPES = [((2, 2), (1,)), ((2, 1), (8,)), ((3, 4), (4,)), ((5, 6), (6,))]


def branch(a, b):
    return a if tuple(a.shape) == (2, 2) else b


def add(a, b):
    return a + b


# -- without a GPU ---------------------------------------------------------------------------------------


_FAKE = FakeTensorMode()


def _fake(*shape, device):
    with _FAKE:
        return torch.empty(*shape, device=device)


DEVICES = ["cpu", "cuda:0", "cuda:1", "meta"]


def _answers(*tensors):
    return tuple(answer for _, answer in describe(tensors, {}).answers)


def test_the_device_and_its_index_are_part_of_the_signature():
    signatures = [_answers(_fake(2, 3, device=device)) for device in DEVICES]
    assert len(set(signatures)) == len(DEVICES)
    again = [_answers(_fake(2, 3, device=device)) for device in DEVICES]
    assert again == signatures


def test_details_of_tensors_on_gpus_are_told_apart():
    details = [tensor_details(_fake(2, 3, device=device)) for device in DEVICES]
    assert len(set(details)) == len(DEVICES)


def test_tensors_on_different_devices_in_one_call():
    pairs = [(a, b) for a in DEVICES for b in DEVICES]
    signatures = {_answers(_fake(2, device=a), _fake(2, device=b)) for a, b in pairs}
    assert len(signatures) == len(pairs)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [branch, add])
def test_starting_programs_on_meta(fn, grad):
    """Traced and found as on any device; the shapes that come out are eager's."""
    jfn = compiled(fn)
    for _ in range(2):
        for a, b in SHAPES:
            x = torch.empty(a, device="meta", requires_grad=grad)
            y = torch.empty(b, device="meta", requires_grad=grad)
            found, expected = jfn(x, y), fn(x, y)
            assert found.shape == expected.shape
            assert found.device == expected.device
            if grad:
                for out in (found, expected):
                    assert [g if g is None else g.shape for g in _gradients(out, x, y)] == [
                        g if g is None else g.shape for g in _gradients(expected, x, y)
                    ]
    assert misses(jfn) == 3
    assert {e.kind for e in entries(jfn)} == {"symbolic"}
    assert "meta" in str(entries(jfn)[0].key)


def _gradients(out, *inputs):
    return torch.autograd.grad(out, inputs, torch.empty_like(out), allow_unused=True, retain_graph=True)


def test_the_same_program_on_several_devices_has_an_entry_for_each():
    fn = lambda x: x * 2 + x.shape[0]
    jfn = compiled(fn)
    for n in (2, 5):
        for device in ("cpu", "meta"):
            assert jfn(torch.ones(n, device=device)).device.type == device
    same(jfn, fn, torch.randn(4))
    assert misses(jfn) == 2


# -- with one ----------------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [branch, add])
def test_starting_programs(fn, grad):
    jfn = compiled(fn)
    for _ in range(2):
        for a, b in SHAPES:
            x = torch.randn(a, device="cuda", requires_grad=grad)
            y = torch.randn(b, device="cuda", requires_grad=grad)
            found, expected = jfn(x, y), fn(x, y)
            torch.testing.assert_close(found, expected)
            if grad:
                for p, q in zip(_ones(found, x, y), _ones(expected, x, y), strict=True):
                    assert (p is None) == (q is None)
                    if p is not None:
                        torch.testing.assert_close(p, q)
    assert misses(jfn) <= 3


def _ones(out, *inputs):
    return torch.autograd.grad(out, inputs, torch.ones_like(out), allow_unused=True)


@pytest.mark.cuda
def test_mixed_devices():
    fn = lambda x, scale: x * scale + x.shape[0]
    jfn = compiled(fn)
    for _ in range(2):
        for n in (2, 5, 3):
            for device in ("cpu", "cuda"):
                x = torch.randn(n, device=device)
                torch.testing.assert_close(jfn(x, torch.tensor(2.0)), fn(x, torch.tensor(2.0)))
    assert misses(jfn) == 2


@pytest.mark.cuda
def test_the_index_of_the_device():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    fn = lambda x: x * 2
    jfn = compiled(fn)
    for n in (2, 3):
        for index in (0, 1):
            x = torch.randn(n, device=f"cuda:{index}")
            assert jfn(x).device == x.device
            torch.testing.assert_close(jfn(x), fn(x))
    assert misses(jfn) == 2


def _executor(name):
    found = next((e for e in thunder.get_all_executors() if e.name == name), None)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["nvfuser", "cudnn", "sdpa", "torchcompile"])
def test_executors(name):
    executor = _executor(name)

    def fn(q, k, v):
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return (y * 2 + q.shape[-2]).sum(-1) if q.shape[0] > 2 else y.sin()

    jfn = thunder.jit(fn, cache=SpecKeyCache(), executors=[executor, *thunder.get_default_executors()])
    for batch, length in [(2, 16), (4, 32), (1, 16), (3, 64), (2, 16)]:
        q, k, v = (
            torch.randn(batch, 2, length, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
        )
        found, expected = jfn(q, k, v), fn(q, k, v)
        torch.testing.assert_close(found, expected, rtol=3e-2, atol=3e-2)
        torch.testing.assert_close(
            torch.autograd.grad(found.sum(), [q, k, v]),
            torch.autograd.grad(expected.sum(), [q, k, v]),
            rtol=3e-2,
            atol=3e-2,
        )


@pytest.mark.cuda
def test_cuda_graphs():
    from thunder.transforms.cudagraph import CUDAGraphTransform

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).cuda()
    model.requires_grad_(False)
    transform = CUDAGraphTransform()
    jfn = thunder.jit(model, cache=SpecKeyCache(), transforms=[transform])
    for n in (2, 5, 2, 7, 5):
        x = torch.randn(n, 8, device="cuda")
        torch.testing.assert_close(jfn(x), model(x), rtol=1e-4, atol=1e-4)
    assert len(transform.cuda_graph_runner.cuda_graph_cache) >= 3


@pytest.mark.cuda
def test_autocast_and_streams():
    fn = lambda x, w: (x @ w).relu()
    jfn = compiled(fn)
    stream = torch.cuda.Stream()
    for n in (2, 5, 3):
        x, w = torch.randn(n, 8, device="cuda"), torch.randn(8, 4, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            found, expected = jfn(x, w), fn(x, w)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found = jfn(x, w)
        stream.synchronize()
        torch.testing.assert_close(found, fn(x, w))
    assert misses(jfn) == 2
