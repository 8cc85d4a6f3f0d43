"""The two programs that speckey was written for, and what their entries say."""

import pytest
import thunder
import torch

from speckey import SpecKeyCache, entries


def branch(a, b):
    return a if tuple(a.shape) == (2, 2) else b


def add(a, b):
    return a + b


FIRST, SECOND = ((2, 2), (1,)), ((2, 1), (8,))


def _inputs(shapes, grad):
    return [torch.randn(shape, requires_grad=grad) for shape in shapes]


def _check(jfn, fn, shapes, grad):
    inputs = _inputs(shapes, grad)
    copies = [t.detach().clone().requires_grad_(grad) for t in inputs]
    result, expected = jfn(*inputs), fn(*copies)
    torch.testing.assert_close(result, expected)
    if grad:
        cotangent = torch.randn_like(expected)
        result.backward(cotangent)
        expected.backward(cotangent)
        for t, c in zip(inputs, copies, strict=True):
            if c.grad is None:
                assert t.grad is None or not t.grad.any()
            else:
                torch.testing.assert_close(t.grad, c.grad)


@pytest.mark.parametrize("grad", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("fn", [branch, add])
def test_the_second_call_misses_and_is_right(fn, grad):
    jfn = thunder.jit(fn, cache=SpecKeyCache())
    for count, shapes in enumerate([FIRST, SECOND], start=1):
        _check(jfn, fn, shapes, grad)
        assert (thunder.cache_hits(jfn), thunder.cache_misses(jfn)) == (0, count)
    for shapes in [FIRST, SECOND]:
        _check(jfn, fn, shapes, grad)
    assert (thunder.cache_hits(jfn), thunder.cache_misses(jfn)) == (2, 2)
    assert [e.kind for e in entries(jfn)] == ["symbolic", "symbolic"]
    assert [e.hits for e in entries(jfn)] == [1, 1]


def test_the_branch_is_in_the_key():
    jfn = thunder.jit(branch, cache=SpecKeyCache())
    for shapes in [FIRST, SECOND, ((3, 7), (5,))]:
        _check(jfn, branch, shapes, False)
    taken, second, first = (e.key for e in entries(jfn))
    assert [taken.names.fact(f) for f in taken.branches] == ["a.shape[0] == 2", "a.shape[1] == 2"]
    assert [second.names.fact(f) for f in second.branches] == ["a.shape[0] == 2", "a.shape[1] != 2"]
    assert [first.names.fact(f) for f in first.branches] == ["a.shape[0] != 2"]
    assert taken.branches[0].where == f"test_starting_programs.py:{branch.__code__.co_firstlineno + 1}"
    assert "branches:   a.shape[0] == 2\n" in str(taken)
    assert "a: float32[*, *] cpu" in str(taken)


def test_the_broadcast_pattern_is_in_the_key():
    jfn = thunder.jit(add, cache=SpecKeyCache())
    for shapes in [FIRST, SECOND, ((3, 4), (4,)), ((5, 6), (6,))]:
        _check(jfn, add, shapes, False)
    one, other, same = (e.key for e in entries(jfn))  # the last two calls share an entry
    assert [one.names.fact(f) for f in one.size_one] == [
        "a.shape[0] != 1",
        "a.shape[1] != 1",
        "b.shape[0] == 1",
    ]
    assert "a.shape[1] == 1" in [other.names.fact(f) for f in other.size_one]
    assert [same.names.fact(f) for f in same.broadcast] == ["a.shape[1] == b.shape[0]"]
    assert not one.branches
    assert not same.branches


def _decomposing_executor():
    """Runs ``torch.add`` as the prims ``broadcast_in_dim`` and ``add``: a stale size shows at once."""
    import thunder.torch as ltorch
    from thunder.clang.utils import compute_broadcast_shape
    from thunder.core import prims
    from thunder.extend import OperatorExecutor

    executor = OperatorExecutor("decomposed", version="1")

    def broadcast(a, shape, dims):
        expanded = [1] * len(shape)
        for source, target in enumerate(dims):
            expanded[target] = a.shape[source]
            assert a.shape[source] in (1, shape[target]), "broadcast to a stale size"
        return a.reshape(expanded).expand(tuple(shape)).clone()

    def add_same(a, b):
        assert a.shape == b.shape, f"operands were not broadcast: {tuple(a.shape)} and {tuple(b.shape)}"
        return torch.add(a, b)

    broadcast_op = executor.register_operator("decomposed_broadcast", like=prims.broadcast_in_dim, fn=broadcast)
    add_op = executor.register_operator("decomposed_add", like=prims.add, fn=add_same)

    def decompose(a, b, *, alpha=1):
        shape = compute_broadcast_shape(a.shape, b.shape)
        to_all = [broadcast_op(t, shape, tuple(range(len(shape) - t.ndim, len(shape)))) for t in (a, b)]
        return add_op(*to_all)

    executor.register_implementation(ltorch.add, execution_transform=decompose, checker=lambda *a, **k: True)
    return executor


@pytest.mark.parametrize("grad", [False, True], ids=["forward", "backward"])
def test_adding_is_right_when_the_decomposed_prims_are_run(grad):
    jfn = thunder.jit(add, cache=SpecKeyCache(), executors=[_decomposing_executor()])
    for shapes in [FIRST, SECOND, ((3, 4), (4,)), ((5, 6), (6,)), ((1, 6), (6,)), ((5, 1), (1,)), ((0, 3), (1,))] * 2:
        _check(jfn, add, shapes, grad)
    names = {b.sym.name for b in thunder.last_traces(jfn)[-1].bound_symbols}
    assert {"decomposed_add", "decomposed_broadcast"} <= names
    assert thunder.cache_misses(jfn) <= 7
