"""What may vary: each policy's promise, and misuse."""

import pytest
import thunder
import torch

from speckey import BoundsError, SpecKeyCache, entries, thunder_hooks
from speckey.policies import AllDims, Automatic, Dim, Dims, Divisible, Exact
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
        def dim(self, tensor, dim, sizes):
            asked.append((tensor, dim, sorted(sizes)))
            return Dim(free=dim == 0)

    fn = lambda batch, w: batch["x"] * w + batch["x"].shape[1]
    jfn = thunder.jit(fn, cache=SpecKeyCache(vary=Batch()))
    for n, m in [(2, 3), (4, 3), (4, 5), (9, 5)]:
        same(jfn, fn, {"x": torch.randn(n, m)}, torch.randn(m))
    assert misses(jfn) == 2
    assert asked[:3] == [("batch['x']", 0, [2]), ("batch['x']", 1, [3]), ("w", 0, [3])]
    assert ("batch['x']", 0, [2, 4]) in asked


def test_gradients_and_views_with_some_sizes_fixed():
    class First:
        def dim(self, tensor, dim, sizes):
            return Dim(free=dim == 0)

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


# -- bounds, names, divisors -----------------------------------------------------------------------


def jit(vary, fn=add):
    return thunder.jit(fn, cache=SpecKeyCache(vary=vary))


def facts(entry):
    return [entry.key.names.fact(f) for f in entry.facts]


def test_bounds_are_facts_that_spare_others():
    jfn = jit(Dims({"a": {0: Dim(min=2, max=64), 1: Dim(min=2)}, "b": {0: Dim(min=2)}}))
    for n in (2, 64, 7):
        same(jfn, add, torch.randn(n, 3), torch.randn(3))
    (entry,) = entries(jfn)
    assert entry.kind == "symbolic"
    assert facts(entry) == ["a.shape[0] >= 2", "a.shape[0] < 65", "a.shape[1] >= 2", "a.shape[1] == b.shape[0]"]
    assert entry.key.size_one == ()
    (free,) = entries(_called(jit(AllDims()), torch.randn(2, 3), torch.randn(3)))
    assert free.key.size_one  # which the bounds imply


def _called(jfn, *args):
    jfn(*args)
    return jfn


def test_outside_of_the_bounds_is_exact():
    jfn = jit(Dims({"a": {0: Dim(min=2, max=64)}}))
    for n in (3, 65, 66, 1, 65, 5):
        same(jfn, add, torch.randn(n, 3), torch.randn(3))
    assert [e.kind for e in entries(jfn)] == ["symbolic", "exact", "exact", "exact"]
    assert entries(jfn)[1].reason == "a.shape[0] is 65, outside of 2 to 64"
    assert entries(jfn)[1].shapes == ((65, 3), (3,))


def test_outside_of_the_bounds_is_an_error():
    jfn = jit(Dims({"a": {0: Dim(min=2, max=64, outside="error")}}))
    for _ in range(2):
        with pytest.raises(BoundsError, match=r"a.shape\[0\] is 65, outside of 2 to 64, as SpecKeyCache"):
            jfn(torch.randn(65, 3), torch.randn(3))
        same(jfn, add, torch.randn(64, 3), torch.randn(3))
    assert (len(entries(jfn)), misses(jfn), thunder.cache_hits(jfn)) == (1, 1, 1)
    jfn = jit(Dims({"a": {0: Dim(min=2, outside="error")}}))
    with pytest.raises(BoundsError, match="is 1, outside of at least 2"):
        jfn(torch.randn(1, 3), torch.randn(3))


def test_static_dimensions_and_the_rest():
    jfn = jit(Dims({"a": {1: Dim(free=False)}}))
    for shape in [(2, 3), (4, 3), (4, 5), (6, 5)]:
        same(jfn, add, torch.randn(shape), torch.randn(shape[1:]))
    assert len(entries(jfn)) == 2
    assert "a.shape[1] == 3" in facts(entries(jfn)[0])
    jfn = jit(Dims({"a": {0: Dim()}}, rest=Exact()))
    for shape in [(2, 3), (4, 3), (4, 5), (6, 5)]:
        same(jfn, add, torch.randn(shape), torch.randn(shape[1:]))
    assert len(entries(jfn)) == 2
    assert "b.shape[0] == 3" in facts(entries(jfn)[0])


def matmul(x, batch):
    return x * batch["ids"][:, None], x.shape[0]


def test_dimensions_of_one_name_are_equal_which_is_one_fact():
    named = {"x": {0: "batch"}, "batch['ids']": {0: Dim(min=2, name="batch")}}
    jfn = jit(Dims(named), matmul)
    for n in (2, 5, 9):
        same(jfn, matmul, torch.randn(n, 3), {"ids": torch.randn(n)})
    (entry,) = entries(jfn)
    assert "x.shape[0] == batch['ids'].shape[0]" in facts(entry)
    same(jfn, matmul, torch.randn(1, 3), {"ids": torch.randn(4)})
    assert entries(jfn)[1].kind == "exact"
    assert entries(jfn)[1].reason == "x.shape[0] is 1 and batch['ids'].shape[0] is 4, both named 'batch'"
    named["x"][0] = Dim(name="batch", outside="error")
    jfn = jit(Dims(named), matmul)
    same(jfn, matmul, torch.randn(4, 3), {"ids": torch.randn(4)})
    with pytest.raises(BoundsError, match=r"x.shape\[0\] is 1 and batch\['ids'\].shape\[0\] is 4, both named 'batch'"):
        jfn(torch.randn(1, 3), {"ids": torch.randn(4)})


def test_a_name_that_one_fixed_dimension_shares_is_a_fact_too():
    fn = lambda a, b: (a * 2, b * 2)
    jfn = jit(Dims({"a": {0: Dim(free=False, name="n")}, "b": {0: "n"}}), fn)
    same(jfn, fn, torch.randn(4), torch.randn(4))
    same(jfn, fn, torch.randn(4), torch.randn(5))
    assert [e.kind for e in entries(jfn)] == ["symbolic", "exact"]


def test_bounds_hold_where_not_all_sizes_can_be_free(monkeypatch):
    real = thunder_hooks.compile_program

    def refuse(jfn, fn, args, kwargs, tracing, groups):
        if (0, 1) in tracing.free:
            raise NotImplementedError("not with a free width")
        return real(jfn, fn, args, kwargs, tracing, groups)

    monkeypatch.setattr(thunder_hooks, "compile_program", refuse)
    fn = lambda a: a.sum() if len(a.shape) == 2 else a
    jfn = jit(Dims({"a": {0: Dim(max=6), 1: Dim(max=6)}}), fn)
    for n in (3, 5, 2, 7, 8):
        same(jfn, fn, torch.randn(n, 3))
    assert [e.kind for e in entries(jfn)] == ["exact", "symbolic", "exact", "exact"]


def test_divisible_sizes_have_a_program_of_their_own():
    jfn = jit(Divisible(by=4, dims={"a": [1]}))
    for n in (8, 12, 5, 4, 7, 9):
        same(jfn, add, torch.randn(2, n), torch.randn(n))
    assert [facts(e)[0] for e in entries(jfn)] == ["a.shape[1] % 4 == 0", "a.shape[1] % 4 != 0"]
    assert [e.kind for e in entries(jfn)] == ["symbolic"] * 2
    jfn = jit(Divisible(4, rest=Dims({"a": {0: Dim(max=8)}}, rest=Exact())))
    same(jfn, add, torch.randn(4, 3), torch.randn(3))
    assert facts(entries(jfn)[0])[:2] == ["a.shape[0] < 9", "a.shape[0] % 4 == 0"]
    assert "a.shape[1] % 4" not in str(facts(entries(jfn)[0]))


def test_an_aligned_size_needs_no_question_about_its_remainder():
    fn = lambda a: a.reshape(a.shape[0] // 4, 4) if a.shape[0] % 4 == 0 else a
    jfn = jit(Divisible(8, dims={"a": [0]}), fn)
    same(jfn, fn, torch.randn(16))
    same(jfn, fn, torch.randn(24))
    assert len(entries(jfn)) == 1


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({"c": {0: "n"}}, "Dims mentions 'c', which is no tensor of this call; its tensors are: .*, 'x'$"),
        ({"batch['idz']": {0: "n"}}, "Dims mentions \"batch\\['idz'\\]\", which is no tensor"),
        ({"batch": {0: "n"}}, "Dims mentions 'batch', which is no tensor"),
        ({"x": {2: "n"}}, "Dims mentions dimension 2 of 'x', which has 2"),
        ({"x": {0: "n"}, "args[0]": {0: "n"}}, "Dims mentions 'args\\[0\\]'"),
    ],
)
def test_names_that_do_not_exist_are_an_error_of_the_first_call(tensors, text):
    for policy in (Dims(tensors), Divisible(2, rest=Dims(tensors)), Dims({}, rest=Dims(tensors))):
        jfn = jit(policy, matmul)
        with pytest.raises(ValueError, match=text):
            jfn(torch.randn(4, 3), {"ids": torch.randn(4)})
        assert misses(jfn) == 0
    with pytest.raises(ValueError, match="Divisible mentions 'c', which is no tensor"):
        jit(Divisible(2, {"c": [0]}), matmul)(torch.randn(4, 3), {"ids": torch.randn(4)})


def test_arguments_that_a_call_does_not_have_may_come_later():
    def fn(x, mask=None, **more):
        return x if mask is None else x * mask

    jfn = jit(Dims({"mask": {0: Dim(max=3)}, "other": {0: "n"}}), fn)
    same(jfn, fn, torch.randn(2))
    same(jfn, fn, torch.randn(2), None)
    same(jfn, fn, torch.randn(2), torch.randn(2))
    same(jfn, fn, torch.randn(4), mask=torch.randn(4))
    assert [e.kind for e in entries(jfn)][-1] == "exact"
    with pytest.raises(ValueError, match="Dims mentions dimension 0 of 'other', which has 0"):
        jfn(torch.randn(2), other=torch.tensor(3.0))
    leaf = torch.ones(2, requires_grad=True)
    leaf.grad = torch.ones(2)
    same(jfn, fn, torch.randn(2), leaf)  # of fixed size, but there


def test_names_are_those_of_forward():
    module = torch.nn.Linear(3, 2)
    jfn = thunder.jit(module, cache=SpecKeyCache(Dims({"input": {0: Dim(min=2, max=9)}})))
    for n in (2, 9, 4):
        same(jfn, module, torch.randn(n, 3))
    assert facts(entries(jfn)[0])[:2] == ["input.shape[0] >= 2", "input.shape[0] < 10"]
    with pytest.raises(ValueError, match="mentions 'x'"):
        thunder.jit(module, cache=SpecKeyCache(Dims({"x": {0: "n"}})))(torch.randn(2, 3))


def test_what_a_policy_of_ones_own_returns_is_checked():
    class Old:
        def dim(self, tensor, dim, sizes):
            return True

    with pytest.raises(TypeError, match=r"Old.dim\(\) is to return a speckey.policies.Dim, got True"):
        jit(Old())(torch.randn(2), torch.randn(2))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"free": 1}, TypeError, r"Dim\(free=...\) expects True or False"),
        ({"min": -1}, ValueError, "at least 0"),
        ({"min": 1.0}, TypeError, r"Dim\(min=...\) expects an int"),
        ({"min": True}, TypeError, "expects an int"),
        ({"min": 5, "max": 4}, ValueError, "at least min=5, got 4"),
        ({"max": "4"}, TypeError, "expects an int"),
        ({"divisor": 0}, ValueError, "at least 1"),
        ({"name": ""}, TypeError, "expects a name"),
        ({"name": 3}, TypeError, "expects a name"),
        ({"outside": "raise"}, ValueError, "expects 'exact' or 'error', got 'raise'"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        Dim(**options)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Dims(["x"]), TypeError, "Dims expects a dict such as"),
        (lambda: Dims({"x": [0]}), TypeError, "Dims expects a dict for 'x'"),
        (lambda: Dims({"x": {0: True}}), TypeError, "expects a Dim or a name for dimension 0 of 'x', got True"),
        (lambda: Dims({"x": {"0": "n"}}), TypeError, "expects dimensions of 'x' as ints"),
        (lambda: Dims({"x": {-1: "n"}}), ValueError, "counted from 0, got -1"),
        (lambda: Dims({3: {0: "n"}}), TypeError, "expects names of arguments"),
        (lambda: Dims({}, rest=Exact), TypeError, r"Dims\(rest=...\) expects a policy"),
        (lambda: Divisible(1), ValueError, "at least 2"),
        (lambda: Divisible("16"), TypeError, "expects an int"),
        (lambda: Divisible(2, ["x"]), TypeError, "expects a dict such as"),
        (lambda: Divisible(2, {"x": 1}), TypeError, "expects a list of dimensions for 'x'"),
        (lambda: Divisible(2, {"x": [-1]}), ValueError, "counted from 0"),
        (lambda: Divisible(2, rest=None), TypeError, r"Divisible\(rest=...\) expects a policy"),
    ],
)
def test_policies_that_make_no_sense_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()
