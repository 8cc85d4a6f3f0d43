"""Reads of symbolic numbers: unknown ones are facts; each known one generalizes, and would be caught."""

import itertools
import math
import operator

import pytest
import thunder
import torch

from speckey import entries, symbols, thunder_hooks
from speckey.recorder import Inconsistent, Recorder
from tests.helpers import compiled, misses, same


def _facts(jfn):
    return [e.key.names.fact(f) for e in entries(jfn) for f in e.facts]


def _calls(fn, *sizes, rest=(3,)):
    jfn = compiled(fn)
    for n in sizes:
        same(jfn, fn, torch.randn(n, *rest))
    return jfn


# Every way a program can get at a plain number is a fact about the expression that was read.
DECIDING = {
    "index": lambda x: [x, x + 1, x + 2, x + 3, x + 4, x + 5][x.shape[0]],
    "range": lambda x: sum(range(x.shape[0])) + x,
    "dict": lambda x: x + {2: 1, 3: 2}.get(x.shape[0], 0),
    "set": lambda x: x + len({x.shape[0], 3}),
    "text": lambda x: x + len(f"{x.shape[0]:>4}") + len(str(x.shape[0])) + len(repr(x.shape[0])),
    "math": lambda x: x * math.sqrt(x.shape[0]),
    "float power": lambda x: x * x.shape[0] ** -0.5,
    "shift": lambda x: x + (x.shape[0] << 1) + (1 << x.shape[0]),
    "method": lambda x: x + x.shape[0].bit_length(),
    "round": lambda x: x + round(x.shape[0] / 4),
    "divmod": lambda x: x + divmod(x.shape[0], 2)[1],
    "bits": lambda x: x + (x.shape[0] & 1) + (x.shape[0] | 4),
    "percent": lambda x: x + len("%d" % x.shape[0]),
    "hash": lambda x: x + hash(x.shape[0]) % 7,
    "in": lambda x: x + (x.shape[0] in (2, 4)),
    "sorted": lambda x: x + sorted([x.shape[0], 3, x.shape[1]])[0],
    "list times": lambda x: x + len([0] * x.shape[0]),
    "gcd": lambda x: x + math.gcd(x.shape[0], 4),
}


@pytest.mark.parametrize("name", DECIDING)
def test_a_read_number_is_a_fact(name):
    jfn = _calls(DECIDING[name], 2, 3, 4, 5, 2, 3)
    assert {e.kind for e in entries(jfn)} == {"symbolic"}, [e.reason for e in entries(jfn)]
    assert _facts(jfn)


def test_an_expression_that_is_read_is_the_fact_not_the_sizes_in_it():
    def fn(x):
        return x + [0, 1, 2, 3][x.shape[0] * x.shape[1] % 4]

    jfn = compiled(fn)
    for n, m in [(3, 5), (5, 3), (7, 5), (9, 7)]:  # remainders 3, 3, 3, 3
        same(jfn, fn, torch.randn(n, m))
    assert misses(jfn) == 1


def test_a_branch_costs_one_entry_a_side():
    def fn(x):
        return x * 2 if x.shape[0] > 16 else x * 3

    jfn = _calls(fn, 2, 40, 16, 17, 3, 100)
    assert misses(jfn) == 2
    assert "x.shape[0] <= 16" in _facts(jfn)


def test_truth_of_a_size_is_whether_it_is_zero():
    jfn = _calls(lambda x: x + 1 if x.shape[0] else x - 1, 2, 5, 0, 7)
    assert misses(jfn) == 2


def test_isinstance_and_type_see_an_int():
    def fn(x):
        assert isinstance(x.shape[0], int)
        assert type(x.shape[0]) is int
        assert isinstance(x.shape[0] / 2, float)
        assert type(x.shape[0] > 1) is bool
        assert x.shape[0].__class__ is int
        return x * 2

    jfn = _calls(fn, 2, 3, 4)
    assert misses(jfn) == 1


# -- reads that compute: each generalizes, and each would be noticed if it did not ---------------------


def test_arange_over_a_size_generalizes():
    jfn = _calls(lambda x: torch.arange(x.shape[0]) * 2, 2, 5, 9)
    assert misses(jfn) == 1


def test_an_infinite_stop_is_still_refused():
    # Only integers are finite for certain: a float that a program computes is not.
    def fn(x):
        return torch.arange(0.0, x.shape[0] / 2 * math.inf)

    jfn = compiled(fn)
    with pytest.raises(Exception, match="non-finite"):
        jfn(torch.randn(2))
    assert not entries(jfn)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x.shape[0] // 3, -x.shape[0] // 3, x.shape[0] % 3, -x.shape[0] % 3, x + 1),
        lambda x: (math.ceil(x.shape[0] / 3), math.floor(x.shape[0] / 3), int(x.shape[0] / 3), x + 1),
        lambda x: (int(x.shape[0]), float(x.shape[0]), abs(3 - x.shape[0]), x.shape[0] ** 2, x + 1),
        lambda x: (x.shape[0] / 4, x.shape[0] * 0.5, len(x), x.numel(), x.size(), x + 1),
        lambda x: x.reshape(-1, 3).sum(0) / x.shape[0],
        lambda x: torch.cat([x, x[: x.shape[0] // 2]]).view(-1),
        lambda x: x[x.shape[0] // 2 :].mean() + torch.zeros(x.shape[0], x.shape[1]).sum(),
    ],
)
def test_arithmetic_on_sizes_generalizes(fn):
    jfn = _calls(fn, 6, 8, 9, 10, 23)
    assert misses(jfn) < 5
    assert {e.kind for e in entries(jfn)} == {"symbolic"}


def test_numbers_printed_in_comments_of_a_trace_are_no_facts():
    jfn = _calls(lambda x: x * x.shape[0] + x.shape[1], 4, 7)
    text = str(thunder.last_traces(jfn)[0])
    assert "i0" in text
    assert misses(jfn) == 1


def test_a_number_returned_twice_is_no_fact():
    jfn = _calls(lambda x: (x.shape[0], x.shape[0], x.shape, x.shape[0] * 2, x.shape[0] * 2, x + 1), 4, 7)
    assert misses(jfn) == 1


@pytest.mark.parametrize("table", ["_COMPUTING", "_HASHING", "_FINITE"])
def test_every_known_reader_has_a_reason(table):
    rows = getattr(thunder_hooks, table)
    assert rows
    assert all(reason for reason in rows.values())


def test_an_unknown_reader_of_thunders_is_a_fact(monkeypatch):
    import thunder.torch as ltorch
    from thunder.core import utils

    real = utils.same_shape

    def reader(a, b):
        for size in (*a, *b):
            if hasattr(size, "value"):
                _ = size.value  # a read that nobody told speckey about
        return real(a, b)

    monkeypatch.setattr(utils, "same_shape", reader)
    assert ltorch is not None
    fn = lambda x: x + torch.ones(3)
    jfn = _calls(fn, 4, 7, 4)
    assert misses(jfn) == 2
    assert "x.shape[0] == 4" in _facts(jfn)


def test_a_contradiction_is_not_trusted():
    recorder = Recorder({"s0_0": 4})
    size = symbols.size(0, 0)
    recorder.value(size, 4)
    with pytest.raises(Inconsistent):
        recorder.value(symbols.mul(size, 2), 9)
    with pytest.raises(Inconsistent):
        Recorder({"s0_0": 4}).truth(symbols.eq(size, 5), True)


def test_facts_found_while_the_backward_is_derived_are_in_the_key():
    def fn(x, w):
        return (x @ w).sum()

    jfn = compiled(fn)
    for n in (4, 6, 8):
        x, w = torch.randn(n, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)
        jfn(x, w).backward()
        a, b = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
        fn(a, b).backward()
        torch.testing.assert_close(x.grad, a.grad)
        torch.testing.assert_close(w.grad, b.grad)
    assert misses(jfn) == 1


def test_numbers_that_are_not_symbolic_any_more_are_plain_numbers():
    def fn(x):
        n = x.numel() & 1
        texts = str(n), repr(n), f"{n:>3}", "%d" % n
        return x * len(texts[0]), texts, n // 2, -n / 2, [10, 20][n], divmod(n, 3), n.bit_length(), round(n / 2)

    jfn = compiled(fn)
    for shape in [(2, 3), (3, 3), (4, 5), (5, 1)]:
        same(jfn, fn, torch.randn(shape))


BY_IDENTITY = [
    lambda x: x * (2 if x.shape[0] is x.shape[1] else 3),
    lambda x: x * (2 if (x.shape[0] > 2) is True else 3),
    lambda x: x * (2 if (x.shape[0] > 2) is not (x.shape[1] > 2) else 3),
    lambda x: x * (2 if operator.is_(x.shape[0] == 3, True) else 3),
    lambda x: x * sum(map(lambda d: isinstance(d, int), x.shape)),
    lambda x: x * sorted(x.shape, key=lambda d: d if type(d) is int else -d)[0],
    lambda x: x * max(x.shape, key=lambda d: -d) + min(x.shape, key=lambda d: d % 3),
    lambda x: x * (2 if hasattr(x.shape[0], "value") else 3) * hasattr(x.shape[0], "bit_length"),
    lambda x: x * len(list(filter(lambda d: d > 3, x.shape))) + sum(itertools.takewhile(lambda d: d > 2, x.shape)),
]


def test_accumulate_gives_what_the_one_of_itertools_gives():
    def fn(x):
        add = lambda a, b: a + b
        plain = list(itertools.accumulate([1, 2, 3], add))
        started = list(itertools.accumulate([1, 2], add, initial=5))
        empty = list(itertools.accumulate([], add)), list(itertools.accumulate([], add, initial=7))
        none = list(itertools.accumulate([1, 2, 3], lambda a, b: None if b == 2 else (a, b)))
        return x * 1, plain, started, empty, none

    same(compiled(fn), fn, torch.randn(2))


@pytest.mark.parametrize("fn", BY_IDENTITY)
def test_sizes_are_plain_integers_to_identity_and_callbacks(fn):
    jfn = compiled(fn)
    for shape in [(2, 3), (3, 3), (4, 4), (5, 2), (7, 6), (3, 2)]:
        same(jfn, fn, torch.randn(shape))


def test_containers_that_outlive_a_trace_hold_plain_numbers():
    kept, keys, found = [], {}, set()

    def fn(x):
        n = x.shape[0]
        kept.append(n)
        kept.extend([n, n * 2])
        found.add(n)
        if n not in keys:
            keys[n] = n * 2.0
        local = []
        local.append(n)
        return x * keys[n] + local[0]

    jfn = compiled(fn)
    for n in (3, 5, 3, 4):
        x = torch.randn(n)
        torch.testing.assert_close(jfn(x), x * (n * 2.0) + n)
    assert all(type(v) is int for v in [*kept, *keys, *found])
    assert keys == {3: 6.0, 5: 10.0, 4: 8.0}


SLICES = {
    "up to a size": lambda x, y: x[: y.shape[0]],
    "from a size": lambda x, y: x[y.shape[0] - 1 :],
    "between sizes": lambda x, y: x[1 : y.shape[0], : y.shape[1]],
    "with a step": lambda x, y: x[: y.shape[0] : 2],
    "from the end": lambda x, y: x[-y.shape[0] :],
}


@pytest.mark.parametrize("kind", SLICES)
def test_gradients_of_slices_bounded_by_sizes(kind):
    cut = SLICES[kind]
    fn = lambda x, y: (cut(x, y) * 3).cos()
    jfn = compiled(fn)
    for n, m, k in [(6, 5, 3), (7, 5, 4), (9, 8, 5), (6, 5, 2), (5, 4, 5), (6, 6, 4), (8, 7, 1), (3, 3, 0)]:
        x, y = torch.randn(n, m, requires_grad=True), torch.randn(k, 2)
        try:
            expected = fn(x, y)
        except (RuntimeError, IndexError):
            continue
        found = jfn(x, y)
        torch.testing.assert_close(found, expected)
        weights = torch.arange(expected.numel()).reshape(expected.shape)
        grads = [torch.autograd.grad((out * weights).sum(), [x])[0] for out in (found, expected)]
        torch.testing.assert_close(*grads)
    if kind in ("up to a size", "between sizes"):
        assert not [f for f in _facts(jfn) if " == " in f and f.split()[-1] not in ("0", "1", "2")], _facts(jfn)
