"""What may vary: each policy's promise, and misuse."""

import pytest
import thunder
import torch

from speckey import SpecKeyCache, entries, thunder_hooks
from speckey.policies import AllDims, Automatic, Exact
from tests.helpers import compiled, misses, same


def add(a, b):
    return a + b, a.shape[0]


def _kinds(vary, shapes, fn=add):
    jfn = thunder.jit(fn, cache=SpecKeyCache(vary=vary))
    for shape in shapes:
        same(jfn, fn, torch.randn(shape), torch.randn(shape[1:]))
    return [e.kind for e in entries(jfn)]


SHAPES = [(2, 3), (4, 3), (5, 3), (2, 3), (6, 7)]


def test_all_dims_is_the_default():
    assert SpecKeyCache() == SpecKeyCache(vary=AllDims())
    assert _kinds(AllDims(), SHAPES) == ["symbolic"]


def test_exact_compiles_each_shape_once():
    assert _kinds(Exact(), SHAPES) == ["exact"] * 4


def test_automatic_frees_a_size_when_it_differs():
    jfn = thunder.jit(add, cache=SpecKeyCache(vary=Automatic()))
    for shape in SHAPES:
        same(jfn, add, torch.randn(shape), torch.randn(shape[1:]))
    assert [e.kind for e in entries(jfn)] == ["exact", "symbolic", "symbolic"]
    facts = [e.key.names.fact(f) for e in entries(jfn)[1:] for f in e.facts]
    assert "a.shape[1] == 3" in facts
    assert "a.shape[1] == 7" not in facts


def test_a_policy_of_ones_own_sees_names_and_sizes():
    asked = []

    class Batch:
        def is_free(self, tensor, dim, sizes):
            asked.append((tensor, dim, sorted(sizes)))
            return dim == 0

    fn = lambda batch, w: batch["x"] * w + batch["x"].shape[1]
    jfn = thunder.jit(fn, cache=SpecKeyCache(vary=Batch()))
    for n, m in [(2, 3), (4, 3), (4, 5), (9, 5)]:
        same(jfn, fn, {"x": torch.randn(n, m)}, torch.randn(m))
    assert misses(jfn) == 2
    assert asked[:3] == [("batch['x']", 0, [2]), ("batch['x']", 1, [3]), ("w", 0, [3])]
    assert ("batch['x']", 0, [2, 4]) in asked


def test_gradients_and_views_with_some_sizes_fixed():
    class First:
        def is_free(self, tensor, dim, sizes):
            return dim == 0

    def fn(a, b):
        pairs = a.reshape(a.shape[0], -1, 2) * b[:, : a.shape[1]].unsqueeze(2)[:, :1]
        return pairs.transpose(0, 1), a.numel()

    jfn = thunder.jit(fn, cache=SpecKeyCache(vary=First()))
    for n in (2, 5, 1, 7):
        a, b = torch.randn(n, 4, requires_grad=True), torch.randn(n, 4, requires_grad=True)
        found, expected = jfn(a, b), fn(a, b)
        torch.testing.assert_close(found[0], expected[0])
        assert found[1] == expected[1]
        grads = [torch.autograd.grad(out[0].square().sum(), [a, b]) for out in (found, expected)]
        torch.testing.assert_close(*grads)
    assert misses(jfn) == 2  # and one for a single row


def test_where_not_all_sizes_can_be_free_those_that_vary_are(monkeypatch):
    real = thunder_hooks.compile_program

    def refuse(jfn, fn, args, kwargs, tracing, groups):
        if (0, 1) in tracing.free:
            raise NotImplementedError("not with a free width")
        return real(jfn, fn, args, kwargs, tracing, groups)

    monkeypatch.setattr(thunder_hooks, "compile_program", refuse)
    jfn = compiled(add)
    for n in (3, 5, 2, 6, 4):
        same(jfn, add, torch.randn(n, 3), torch.randn(3))
    assert [e.kind for e in entries(jfn)] == ["exact", "symbolic"]
    assert entries(jfn)[1].reason == "NotImplementedError: not with a free width"
    same(jfn, add, torch.randn(3, 4), torch.randn(4))
    assert entries(jfn)[-1].kind == "exact"


@pytest.mark.parametrize("wrong", [AllDims, "all", None, 3])
def test_what_is_not_a_policy_is_refused(wrong):
    with pytest.raises(TypeError, match="expects a policy such as"):
        SpecKeyCache(vary=wrong)
