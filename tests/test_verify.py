"""Checking results against a program compiled afresh: it finds a wrong program, and changes nothing else."""

import copy
import dataclasses
import math
import random

import pytest
import thunder
import torch

import speckey
from speckey import MismatchError, SpecKeyCache, check, entries
from speckey.verify import _difference
from tests.helpers import compiled, same


@dataclasses.dataclass
class Pair:
    a: int
    b: int


def counts(jfn):
    return thunder.cache_hits(jfn), thunder.cache_misses(jfn), thunder.compile_stats(jfn).calls


def verified(fn, **options):
    return thunder.jit(fn, cache=SpecKeyCache(verify=True, **options))


def add(a, b):
    return a + b


def swap_program(jfn, other, *args):
    """Let the only entry of ``jfn`` run the program of another function."""
    other = thunder.jit(other, cache=SpecKeyCache(numbers=speckey.SymbolicNumbers()))
    other(*args)
    (ours,), (theirs,) = entries(jfn), entries(other)
    ours.program, ours.run = theirs.program, theirs.run
    jfn._speckey_table.unit.stale()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda a, b: a - b, "result: Tensor-likes are not close"),
        (lambda a, b: (a + b).double(), "dtype"),
        (lambda a, b: (a + b, 1), "result is a tuple, should be a Tensor"),
        (lambda a, b: (a + b).sum(0), "shape"),
        (lambda a, b: a + b + torch.ones(3), "not close"),
        (lambda a, b: (a + b).detach() + 0 * a, "gradients"),
    ],
)
def test_a_wrong_program_is_found(wrong, text):
    jfn = verified(add)
    args = torch.randn(2, 3, requires_grad=True), torch.randn(3)
    same(jfn, add, *args)
    swap_program(jfn, wrong, *args)
    args = torch.randn(4, 3, requires_grad=True), torch.randn(3)
    with pytest.raises(MismatchError, match=text) as caught:
        jfn(*args)
    assert "entry 1 of add is wrong for shapes (4, 3), (3,)" in str(caught.value)
    assert "The entry's key:\nsignature:  a: float32[*, *] cpu, requires_grad" in str(caught.value)
    assert caught.value.entry is entries(jfn)[0]
    with pytest.raises(MismatchError):
        jfn(*args)  # and again


def test_a_program_that_leaves_something_else_in_its_arguments_is_found():
    def fn(a):
        a.add_(1)
        return 3

    def wrong(a):
        a.add_(2)
        return 3

    jfn = verified(fn)
    a = torch.zeros(3)
    jfn(a)
    swap_program(jfn, wrong, torch.zeros(3))
    with pytest.raises(MismatchError, match=r"arguments after the call\[0\]\[0\]"):
        jfn(a)
    torch.testing.assert_close(a, torch.ones(3))  # neither program ran on it


def test_a_right_program_is_served_and_counted_as_ever(monkeypatch):
    jfn, plain = verified(add), compiled(add)
    compiles = []
    run_first = jfn._speckey_table.run_first
    monkeypatch.setattr(jfn._speckey_table, "run_first", lambda *a: compiles.append(a) or run_first(*a))
    for n in (2, 3, 3, 4, 2):
        args = torch.randn(n, 3), torch.randn(3)
        same(jfn, add, *args)
        plain(*args)
        assert counts(jfn) == counts(plain)
    assert len(compiles) == 1 + 3  # the call's own, and for each shape
    assert [e.hits for e in entries(jfn)] == [e.hits for e in entries(plain)]


def test_random_numbers_are_as_without():
    def fn(x):
        return torch.nn.functional.dropout(x, 0.5) + torch.rand(x.shape)

    jfn, plain = verified(fn), compiled(fn)
    torch.manual_seed(3)
    expected = [plain(torch.ones(n)) for n in (4, 5, 6, 5)]
    states = torch.get_rng_state(), random.getstate()
    torch.manual_seed(3)
    found = [jfn(torch.ones(n)) for n in (4, 5, 6, 5)]
    torch.testing.assert_close(found, expected)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_a_number_drawn_while_tracing_is_found():
    jfn = verified(lambda x: x * random.random())
    jfn(torch.ones(3))
    state = random.getstate()
    with pytest.raises(MismatchError):
        jfn(torch.ones(4))
    assert random.getstate() == state


def test_nan_equals_nan_and_tolerances_count():
    jfn = verified(lambda x: x / x)
    for n in (2, 3, 4):
        assert jfn(torch.zeros(n)).isnan().all()
    jfn = compiled(add)
    args = torch.ones(2, 3), torch.ones(3)
    jfn(*args)
    swap_program(jfn, lambda a, b: a + b + 1e-3, *args)
    with check(jfn, rtol=0, atol=1e-2):
        jfn(*args)
    with check(jfn), pytest.raises(MismatchError):
        jfn(*args)
    jfn(*args)  # checked no more


def test_it_can_be_switched_on_and_off():
    jfn = compiled(add)
    args = torch.ones(2, 3), torch.ones(3)
    jfn(*args)
    swap_program(jfn, lambda a, b: a - b, *args)
    jfn(*args)
    checking = check(jfn)
    with pytest.raises(MismatchError):
        jfn(*args)
    checking.stop()
    jfn(*args)
    speckey.explain(jfn, code=True)


def test_writes_reach_the_users_tensors_once():
    def fn(a, pair):
        a.mul_(2)
        return pair[0].add_(pair[1])

    jfn, plain = verified(fn), compiled(fn)
    for n in (2, 3, 4):
        same(jfn, fn, torch.randn(n), (torch.randn(n), torch.randn(n)))
        one, other = torch.ones(2 * n), torch.ones(2 * n)
        for _ in range(3):  # with memory that is shared
            torch.testing.assert_close(jfn(one[:n], (one[:n], one[n:])), plain(other[:n], (other[:n], other[n:])))
            torch.testing.assert_close(one, other)


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.line = torch.nn.Linear(3, 2)
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        self.total.add_(x.detach().sum(0))
        return self.line(self.norm(x))


def test_state_of_a_module_is_written_once_and_gradients_are_not_gathered():
    model = Counting()
    eager = copy.deepcopy(model)
    jfn = verified(model)
    buffers = dict(model.named_buffers())
    for n in (4, 5, 6, 5):
        x = torch.randn(n, 3, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        out, expected = jfn(x), eager(y)
        torch.testing.assert_close(out, expected)
        out.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
        for (name, ours), theirs in zip(model.named_buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs, msg=name)
            assert ours is buffers[name] or name == "norm.num_batches_tracked"
        for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_what_cannot_run_on_copies_is_served_with_a_warning(caplog):
    other = torch.zeros(3)

    def fn(x):
        other.add_(x.sum())
        return x * 2

    jfn = verified(fn)
    for n in (2, 3, 3):
        jfn(torch.ones(n))
    torch.testing.assert_close(other, torch.full((3,), 8.0))
    assert "entry 1 is not checked: it may write to other tensors" in caplog.text


def test_no_grad_and_grad_mode_that_a_program_leaves_behind():
    def fn(x):
        torch.set_grad_enabled(False)
        return x * 2

    jfn = verified(fn)
    for n in (2, 3):
        assert torch.is_grad_enabled()
        jfn(torch.ones(n, requires_grad=True))
        assert not torch.is_grad_enabled()
        torch.set_grad_enabled(True)
    jfn = verified(add)
    with torch.no_grad():
        for n in (2, 3):
            same(jfn, add, torch.ones(n, 2, requires_grad=True), torch.ones(2))


def test_misuse():
    with pytest.raises(TypeError, match="compiled with cache=SpecKeyCache"):
        check(add)
    jfn = compiled(add)
    with pytest.raises(ValueError, match="both rtol= and atol="):
        check(jfn, rtol=1e-3)
    with pytest.raises(ValueError, match=r"rtol=...\) expects a number of at least 0"):
        check(jfn, rtol=-1.0, atol=0.0)


def test_each_new_value_of_a_free_number_is_checked():
    def fn(x, n):
        return x * n

    jfn = thunder.jit(fn, cache=SpecKeyCache(verify=True, numbers=speckey.SymbolicNumbers()))
    for n in (2, 3, 3):
        same(jfn, fn, torch.ones(3), n)
    swap_program(jfn, lambda x, n: x * 3, torch.ones(3), 3)
    jfn(torch.ones(3), 3)
    with pytest.raises(MismatchError):
        jfn(torch.ones(3), 4)


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (1, 1.0, "it is a int, should be a float"),
        (1, 2, "it is 1, should be 2"),
        (math.nan, math.nan, ""),
        ("a", "b", "it is 'a', should be 'b'"),
        ([1], [1, 2], "it has 1 items, should have 2"),
        ([1, [2]], [1, [3]], "it[1][0] is 2, should be 3"),
        ({"a": 1}, {"b": 1}, "it has keys ['a'], should have ['b']"),
        ({"a": 1}, {"a": 2}, "it['a'] is 1, should be 2"),
        (Pair(1, 2), Pair(1, 3), "it.b is 2, should be 3"),
        (torch.ones(1, requires_grad=True), torch.ones(1), "it.requires_grad is True, should be False"),
        (torch.ones(1), torch.zeros(1), "it: Tensor-likes are not close"),
        (object(), object(), ""),
    ],
)
def test_the_first_difference_is_named(one, other, text):
    found = _difference("it", one, other, {})
    assert found.startswith(text) if text else not found


def test_a_call_that_fails_in_both_ways_is_the_users():
    jfn = verified(lambda x, i: x[i])
    jfn(torch.randn(5), torch.tensor([1, 4]))
    with pytest.raises(IndexError):
        jfn(torch.randn(3), torch.tensor([1, 4, 2]))
