"""The state of torch around a call is part of the signature."""

import contextlib

import pytest
import torch

from tests.helpers import compiled, misses, same


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def default_device(device):
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def fn(x, w):
    return torch.matmul(x, w) + torch.ones(1) * torch.zeros(x.shape[0], 1)


CONTEXTS = {
    "plain": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "float64": lambda: default_dtype(torch.float64),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("grad", [False, True])
def test_each_state_has_entries_of_its_own(grad):
    jfn = compiled(fn)
    for _ in range(2):
        for context in CONTEXTS.values():
            for n in (2, 5):
                x, w = torch.randn(n, 3), torch.randn(3, 4, requires_grad=grad)
                with context():
                    result = jfn(x, w)
                    expected = fn(x, w)
                assert result.dtype == expected.dtype
                torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)
                assert result.requires_grad == expected.requires_grad
    assert misses(jfn) == len(CONTEXTS)


def test_the_default_device_is_noticed():
    def make(x):
        return torch.ones(3), x + 1

    jfn = compiled(make)
    same(jfn, make, torch.randn(2))
    with default_device("meta"):
        assert jfn(torch.randn(2, device="cpu"))[0].device.type == "meta"
    assert jfn(torch.randn(2))[0].device.type == "cpu"


def test_a_program_that_sets_the_grad_mode_leaves_it_set_on_hits_too():
    def turn_off(x):
        torch._C._set_grad_enabled(False)
        return x * 2

    jfn = compiled(turn_off)
    for n in (2, 3, 4):
        with torch.enable_grad():
            jfn(torch.randn(n))
            assert not torch.is_grad_enabled()
    assert misses(jfn) == 1


def test_no_grad_inside_the_program():
    def inside(x):
        with torch.no_grad():
            y = x * 2
        return y + x

    jfn = compiled(inside)
    for n in (2, 5, 2):
        x = torch.randn(n, requires_grad=True)
        jfn(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.ones(n))
        assert torch.is_grad_enabled()
