"""Many threads, one callable or many; callables inside of one another."""

import random
import threading
import time
import warnings

import pytest
import thunder
import torch

from speckey import entries, thunder_hooks
from speckey.cache import table_of
from tests.helpers import assert_same, compiled, misses, same
from tests.program_fuzz import WAYS, generate, load, outcome
from tests.program_fuzz import compare as compare_outcomes

DEADLINE = 120  # seconds, after which threads count as locked up


def in_threads(*jobs, deadline=DEADLINE):
    """Run all at once; raises what the first of them raised."""
    errors, start = [], threading.Barrier(len(jobs))

    def work(job):
        try:
            start.wait()
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    end = time.monotonic() + deadline
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other"
    for error in errors:
        raise error


def assert_no_duplicates(jfn):
    table = table_of(jfn)
    keys = [(e.kind, e.key.signature, e.key.facts, e.shapes_only, e.aliases, tuple(e.guards)) for e in table.entries]
    assert len(set(keys)) == len(keys)
    assert {id(e) for e in table._tree} == {id(e) for e in table.entries}
    assert table.calls == table.hits + table.slow_calls


def branch(x, w):
    y = x @ w
    return y * 2 if x.shape[0] > 4 else y.cos() - x.shape[0]


def gradients(fn, x, w):
    out = fn(x, w)
    return out, torch.autograd.grad(out.float().sum(), [x, w])


@pytest.mark.parametrize("shapes", [[2], [2, 6, 3, 7, 5]])
def test_one_cold_callable(shapes):
    jfn = compiled(branch)
    inputs = [(torch.randn(n, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)) for n in shapes]
    expected = [gradients(branch, *values) for values in inputs]

    def job(order):
        def calls():
            for i in order:
                assert_same(gradients(jfn, *inputs[i]), expected[i])

        return calls

    rng = random.Random(0)
    orders = [rng.sample(range(len(shapes)), len(shapes)) * 3 for _ in range(8)]
    in_threads(*map(job, orders))
    assert misses(jfn) == min(len(shapes), 2)
    assert thunder.cache_hits(jfn) == 8 * 3 * len(shapes) - misses(jfn)
    assert_no_duplicates(jfn)


MODES = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


def test_one_callable_under_different_modes():
    jfn = compiled(branch)

    def job(mode, seed):
        def calls():
            generator = torch.Generator().manual_seed(seed)
            for n in (2, 6, 3, 7) * 3:
                x = torch.randn(n, 3, generator=generator).requires_grad_(mode != "inference")
                w = torch.randn(3, 2, generator=generator)
                with MODES[mode]():
                    found, expected = jfn(x, w), branch(x, w)
                    grad_mode = torch.is_grad_enabled()
                assert found.dtype == expected.dtype
                assert found.requires_grad == expected.requires_grad
                torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
                assert grad_mode == (mode in ("grad", "autocast"))
                assert torch.is_grad_enabled()

        return calls

    in_threads(*(job(mode, seed) for seed in range(2) for mode in MODES))
    assert misses(jfn) == 2 * len(MODES)
    assert_no_duplicates(jfn)


def test_many_callables_and_thunders_own_beside_them():
    def job(number):
        fn = lambda x: (x * number).sum(0) + x.shape[0] if x.shape[0] > 4 else x - number
        plain = number % 3 == 0
        jfn = thunder.jit(fn) if plain else compiled(fn)

        def calls():
            for n in (2, 6, 3, 7):
                same(jfn, fn, torch.ones(n, 2))
            assert thunder.cache_misses(jfn) == (4 if plain else 2)

        return calls

    in_threads(*map(job, range(9)))


def test_backward_in_another_thread():
    jfn = compiled(branch)
    outs = []
    for n in (2, 6, 3):
        x = torch.randn(n, 3, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        w = torch.randn(3, 2)
        outs.append((jfn(x, w), x, branch(y, w), y))

    def job(found, x, expected, y):
        def run():
            found.sum().backward()
            expected.sum().backward()
            torch.testing.assert_close(x.grad, y.grad)

        return run

    in_threads(*(job(*values) for values in outs))


def test_a_module_trained_by_threads_that_hit_while_another_compiles():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    jfn = compiled(model)
    jfn(torch.randn(2, 3))

    def hits():
        for n in range(2, 40):
            x = torch.randn(n, 3)
            torch.testing.assert_close(jfn(x), model(x))

    def compiles():
        x = torch.randn(1, 3, requires_grad=True)
        torch.testing.assert_close(jfn(x), model(x))

    in_threads(hits, hits, compiles, compiles)
    assert misses(jfn) == 2
    assert_no_duplicates(jfn)


# -- callables inside of one another -------------------------------------------------------------------


def test_called_while_another_is_traced():
    inner = lambda x: x.sum(0) if x.shape[0] > 4 else x * 2
    jinner = compiled(inner)
    outer = lambda x: jinner(x) + jinner(x[:3]).sum()
    eager = lambda x: inner(x) + inner(x[:3]).sum()
    for warm in (False, True):
        if warm:
            jinner(torch.randn(2, 3)), jinner(torch.randn(6, 3))
        jouter = compiled(outer)
        for n in (3, 6, 4, 7):
            same(jouter, eager, torch.randn(n, 3))
        assert misses(jouter) <= 3
    same(jinner, inner, torch.randn(3, 3))


def test_a_compiled_module_inside_a_module():
    class Outer(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x) * 2 if x.shape[0] > 3 else self.inner(x)

    linear = torch.nn.Linear(3, 3)
    eager = Outer(linear)
    outer = Outer(compiled(linear))
    for n in (2, 5, 1, 4):
        x = torch.randn(n, 3)
        torch.testing.assert_close(outer(x), eager(x))


def test_called_by_something_that_is_not_traced():
    """While one is traced, what an opaque function calls is answered by the program itself."""
    inner = lambda x: x * 3
    jinner = compiled(inner)
    found = []

    def outside():
        found.append(jinner(torch.ones(2)))
        return 2

    helper = thunder.core.interpreter.make_opaque(outside)
    jfn = compiled(lambda x: x * helper())
    torch.testing.assert_close(jfn(torch.ones(3)), torch.full((3,), 2.0))
    torch.testing.assert_close(found[0], torch.full((2,), 3.0))
    same(jinner, inner, torch.ones(4))
    assert thunder_hooks._tracing.get() is None


def test_called_in_the_backward_of_another():
    inner = compiled(lambda g: g * 5)
    fn = lambda x: x * 2
    jfn = compiled(fn)
    for n in (2, 3, 1):
        x = torch.randn(n, requires_grad=True)
        out = jfn(x)
        out.register_hook(inner)
        out.sum().backward()
        torch.testing.assert_close(x.grad, torch.full((n,), 10.0))


def test_recursion():
    def fn(x):
        return x + 1 if x.shape[0] < 2 else jfn(x[1:]).sum() + x

    def eager(x):
        return x + 1 if x.shape[0] < 2 else eager(x[1:]).sum() + x

    jfn = compiled(fn)
    for n in (1, 3, 2, 4, 3, 1):
        same(jfn, eager, torch.randn(n))


def test_two_that_call_each_other_from_threads():
    """Each compiles the other's program inside of its own: neither waits for the other's lock."""

    def make(other):
        return lambda x, depth: x * 2 if depth == 0 else other[0](x, depth - 1) + x.shape[0]

    first, second = [], []
    first.append(compiled(make(second)))
    second.append(compiled(make(first)))

    def job(start, eager_depth):
        def calls():
            for n in (2, 3, 1):
                x = torch.ones(n)
                torch.testing.assert_close(start[0](x, eager_depth), x * 2 + eager_depth * n)

        return calls

    in_threads(*(job(start, depth) for start in (first, second) for depth in (1, 2, 3)))


# -- stress --------------------------------------------------------------------------------------------


def stress(seconds, threads, programs, seed=0):
    """Calls of random programs from many threads, each compared with eager; the numbers of calls and of entries.

    Three programs of four have met their shapes before, so that hits run beside compiles.
    """
    known, rng = [], random.Random(seed)
    number = 1000 * seed
    warnings.simplefilter("ignore")
    while len(known) < programs:
        program = generate(number)
        number += 1
        fn = load(program.source())
        jfn = WAYS["speckey"](fn)
        try:
            right = [
                call
                for call in program.calls[:12]
                if outcome(fn, program, call).raised is None
                and compare_outcomes(outcome(fn, program, call), outcome(thunder.jit(fn), program, call)) is None
            ]
        except Exception:  # neither compiles nor compares
            continue
        if right:
            if len(known) % 4:
                for call in right:
                    outcome(jfn, program, call)
            known.append((program, fn, jfn, right))
    end = time.monotonic() + seconds
    counts = [0] * threads

    def job(index):
        mine = random.Random(rng.random())

        def calls():
            while time.monotonic() < end:
                program, fn, jfn, right = mine.choice(known)
                call = mine.choice(right)
                difference = compare_outcomes(outcome(fn, program, call), outcome(jfn, program, call))
                assert difference is None, f"{difference}\n{program.source()}\n{call}"
                counts[index] += 1

        return calls

    in_threads(*map(job, range(threads)), deadline=seconds + DEADLINE)
    for _, _, jfn, _ in known:
        assert_no_duplicates(jfn)
    return sum(counts), sum(len(entries(jfn)) for _, _, jfn, _ in known)


@pytest.mark.long
def test_stress():
    calls, made = stress(seconds=30, threads=8, programs=50)
    print(f"{calls} calls, {made} entries")
    assert calls >= 300  # about two thousand on two idle cores
    assert made > 50
