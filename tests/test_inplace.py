"""Writing into arguments and into memory that arguments share."""

import pytest
import thunder
import torch

from tests.helpers import compiled, misses, same


def write(a, b):
    a.add_(b)
    return a * 2


def test_an_argument_is_written_on_every_call():
    jfn = compiled(write)
    for n in (2, 5, 2):
        same(jfn, write, torch.randn(n, 3), torch.randn(n, 3))
    assert misses(jfn) == 1


def test_arguments_that_share_memory_are_told_apart_where_anything_is_written():
    """thunder merges them, which shows in gradients (and more): what it would do afresh is what counts."""

    def fn(a, b):
        c = a * 1
        c *= b
        return c, c**2

    def gradients(f, shared):
        a = torch.arange(1.0, 4.0, requires_grad=True)
        b = a if shared else torch.arange(2.0, 5.0, requires_grad=True)
        outputs = f(a, b)
        return torch.autograd.grad(outputs, [a] if shared else [a, b], [torch.ones(3)] * 2)

    jfn = compiled(fn)
    for shared in (False, True, False, True):
        for found, fresh in zip(gradients(jfn, shared), gradients(thunder.jit(fn), shared), strict=True):
            torch.testing.assert_close(found, fresh)
    assert misses(jfn) == 2


@pytest.mark.parametrize("n", [2, 4])
def test_arguments_that_share_memory_have_entries_of_their_own(n):
    jfn = compiled(write)
    same(jfn, write, torch.randn(n), torch.randn(n))
    for _ in range(2):
        x, y = torch.ones(n), torch.ones(n)
        torch.testing.assert_close(jfn(x, x), write(y, y))
        torch.testing.assert_close(x, y)
    same(jfn, write, torch.randn(n), torch.randn(n))
    assert misses(jfn) == 2


def test_a_view_of_an_argument_is_written():
    def fn(a):
        a[0].mul_(a.shape[0])
        return a.sum()

    jfn = compiled(fn)
    for n in (2, 5, 2):
        x, y = torch.ones(n, 3), torch.ones(n, 3)
        torch.testing.assert_close(jfn(x), fn(y))
        torch.testing.assert_close(x, y)


def test_empty_tensors_share_nothing():
    jfn = compiled(write)
    for n in (0, 3, 0):
        same(jfn, write, torch.randn(2, n), torch.randn(2, n))
    assert misses(jfn) <= 2


@pytest.mark.parametrize("shape", [(3, 4), (0, 0, 2)])
def test_a_backward_in_which_nothing_depends_on_the_result(shape):
    def fn(x, y):
        v = x * 1
        v.add_(x.shape[-1])
        return y * x.shape[0], x.sum()

    def only_outside(x, y):
        v = x * 1
        v.add_(x.shape[-1])
        return y * x.shape[0]

    for f in (fn, only_outside):
        jfn = compiled(f)
        for more in (0, 1):
            x = torch.randn(shape[0] + more, *shape[1:], requires_grad=True)
            result = same(jfn, f, x, torch.randn(1, *shape[1:]))
            outputs = result if isinstance(result, tuple) else (result,)
            (grad,) = torch.autograd.grad(
                [o.sum() for o in outputs if o.requires_grad], [x], allow_unused=True
            ) if any(o.requires_grad for o in outputs) else (None,)
            expected = torch.ones_like(x) if f is fn else torch.zeros_like(x)
            torch.testing.assert_close(torch.zeros_like(x) if grad is None else grad, expected)
