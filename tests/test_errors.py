"""Calls that eager rejects, programs that raise, and what is left of them."""

import threading

import pytest
import thunder
import torch

from speckey import SpecKeyCache, entries, thunder_hooks
from tests.helpers import compiled, misses, same


def product(a, b):
    return a @ b + 1


def test_a_shape_that_eager_rejects_is_rejected_every_time_and_nothing_is_cached():
    jfn, plain = compiled(product), thunder.jit(product)
    good, bad = (torch.randn(2, 3), torch.randn(3, 4)), (torch.randn(2, 3), torch.randn(5, 4))
    same(jfn, product, *good)
    with pytest.raises(Exception) as expected:  # noqa: PT011 (which one is thunder's choice)
        plain(*bad)
    for _ in range(3):
        with pytest.raises(expected.type):
            jfn(*bad)
        same(jfn, product, *good)
        same(jfn, product, torch.randn(7, 3), torch.randn(3, 5))
    assert len(entries(jfn)) == 1
    assert len(thunder.compile_stats(jfn).interpreter_cache) == 1


def test_rejected_on_the_first_call():
    jfn = compiled(product)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            jfn(torch.randn(2, 3), torch.randn(5, 4))
    assert not entries(jfn)
    same(jfn, product, torch.randn(2, 3), torch.randn(3, 4))


@pytest.mark.parametrize("error", [ValueError, KeyError, ZeroDivisionError])
def test_the_programs_own_error_reaches_the_user(error):
    def fn(x):
        if x.shape[0] > 3:
            raise error("too many")
        return x + 1

    jfn = compiled(fn)
    same(jfn, fn, torch.randn(2))
    for _ in range(2):
        with pytest.raises(error):
            jfn(torch.randn(5))
    same(jfn, fn, torch.randn(3))
    assert len(entries(jfn)) == 1


def test_a_caught_error_that_depends_on_a_size():
    def fn(x):
        try:
            n = 6 // (x.shape[0] - 3)
        except ZeroDivisionError:
            n = 100
        try:
            m = [10, 20, 30][x.shape[0]]
        except IndexError:
            m = -1
        return x + n, m

    jfn = compiled(fn)
    for size in (1, 2, 3, 4, 5, 3, 2, 1):
        same(jfn, fn, torch.randn(size))


def _no_hook_is_active():
    return thunder_hooks._tracing.get() is None


def test_an_exception_inside_tracing_leaves_no_hook_active():
    seen = []

    def fn(x):
        seen.append(threading.get_ident())
        raise ValueError("inside")

    def other_thread():
        outcome.append(_no_hook_is_active())
        outcome.append(torch.equal(plain(torch.ones(2)), torch.full((2,), 2.0)))

    jfn, plain = compiled(fn), thunder.jit(lambda x: x * 2)
    for _ in range(2):
        with pytest.raises(ValueError, match="inside"):
            jfn(torch.ones(2))
        assert _no_hook_is_active()
    outcome = []
    thread = threading.Thread(target=other_thread)
    thread.start()
    thread.join()
    assert outcome == [True, True]
    torch.testing.assert_close(plain(torch.ones(3)), torch.full((3,), 2.0))


def test_the_hooks_of_one_thread_are_not_seen_by_another():
    inside, leave = threading.Event(), threading.Event()
    outcome = []

    def wait():
        inside.set()
        assert leave.wait(60)
        return 1

    class Slow(torch.nn.Module):
        def forward(self, x):
            return x * wait()

    def other():
        assert inside.wait(60)
        outcome.append(_no_hook_is_active())
        plain = thunder.jit(lambda x: x + x.shape[0])
        outcome.append(torch.equal(plain(torch.zeros(3)), torch.full((3,), 3.0)))
        leave.set()

    thread = threading.Thread(target=other)
    thread.start()
    jfn = thunder.jit(Slow(), cache=SpecKeyCache())
    torch.testing.assert_close(jfn(torch.ones(2)), torch.ones(2))
    thread.join()
    assert outcome == [True, True]


def test_what_thunder_cannot_do_with_free_sizes_gets_an_exact_entry(monkeypatch):
    real = thunder_hooks.compile_program

    def refuse(jfn, fn, args, kwargs, tracing, groups):
        if tracing.symbolic:
            raise NotImplementedError("not with free sizes")
        return real(jfn, fn, args, kwargs, tracing, groups)

    monkeypatch.setattr(thunder_hooks, "compile_program", refuse)
    fn = lambda x: x * 2
    jfn = compiled(fn)
    for n in (2, 3, 2, 3):
        same(jfn, fn, torch.randn(n))
    assert [e.kind for e in entries(jfn)] == ["exact", "exact"]
    assert "NotImplementedError: not with free sizes" in entries(jfn)[0].reason
    assert misses(jfn) == 2


@pytest.mark.parametrize("fails", ["first run", "hit"])
def test_a_symbolic_program_that_fails_when_run_is_made_exact(monkeypatch, fails):
    from speckey import dispatch

    def refuse(*inputs):
        raise RuntimeError("a kernel said no")

    fn = lambda x: x * 2
    jfn = compiled(fn)
    if fails == "hit":
        same(jfn, fn, torch.randn(2))
        monkeypatch.setitem(entries(jfn)[0].run.__globals__, "compute", refuse)
    real = dispatch.Table.run_first

    def run(self, call, entry):
        return real(self, call, entry) if entry.kind == "exact" else refuse()

    monkeypatch.setattr(dispatch.Table, "run_first", run)
    same(jfn, fn, torch.randn(3))
    assert entries(jfn)[-1].kind == "exact"
    assert "a kernel said no" in entries(jfn)[-1].reason
    before = misses(jfn)
    same(jfn, fn, torch.randn(3))
    assert misses(jfn) == before


def test_a_program_that_changes_the_default_dtype_is_refused_as_by_thunder():
    def fn(x):
        torch.set_default_dtype(torch.float64)
        return torch.ones(x.shape[0]) + x

    jfn = compiled(fn)
    try:
        for jitted in (jfn, thunder.jit(fn), jfn):
            torch.set_default_dtype(torch.float32)
            with pytest.raises(RuntimeError, match="Default dtype is changed"):
                jitted(torch.randn(2))
    finally:
        torch.set_default_dtype(torch.float32)
    assert not entries(jfn)


def test_an_exception_that_the_program_raises_itself_is_a_branch():
    def fn(x):
        try:
            if x.shape[0] > 5:
                raise ValueError(x.shape[1])
            y = x * 2
        except ValueError as error:
            y = x * error.args[0]
        return y

    jfn = compiled(fn)
    for shape in [(3, 4), (7, 4), (4, 5), (8, 5), (9, 6), (2, 7), (9, 4)]:
        same(jfn, fn, torch.randn(shape))
    assert all(e.kind == "symbolic" for e in entries(jfn))
    assert len(entries(jfn)) <= 4
