"""Everything about a call that is not a size: what differs in it never shares an entry."""

import collections
import dataclasses
import enum
import math

import numpy as np
import pytest
import torch

from speckey.signature import describe
from tests.helpers import compiled, misses, same

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Batch:
    ids: torch.Tensor
    scale: float


class Mode(enum.Enum):
    A = 1
    B = 2


class Alike(enum.Enum):
    A = 1
    B = 2

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


class Sub(list):
    pass


def _sig(*args, **kwargs):
    return describe(args, kwargs).signature


class Number(int):
    __repr__ = lambda self: "a number"


class Word(str):
    __repr__ = lambda self: "a word"


def _in_other_order():
    made = set()
    made.add(8)
    made.add(0)
    return made


def _moved():
    made = collections.OrderedDict(a=1, b=2)
    made.move_to_end("a")
    return made


T = torch.ones(2, 3)
SHARED = [1]

DIFFERENT = [
    ((True,), (1,)),
    ((2,), (2.0,)),
    ((0.0,), (-0.0,)),
    ((1,), (1 + 0j,)),
    ((None,), (0,)),
    ((False,), (None,)),
    (("a",), (b"a",)),
    (("a",), ("b",)),
    (((1, 2),), ([1, 2],)),
    (((1, 2),), ((1, 2, 3),)),
    (((1, (2,)),), (((1,), 2),)),
    ((torch.Size((1, 2)),), ((1, 2),)),
    ((Point(1, 2),), ((1, 2),)),
    ((Sub([1]),), ([1],)),
    (({"a": 1},), ({"b": 1},)),
    (({"a": 1, "b": 2},), ({"b": 2, "a": 1},)),
    (({1: 1},), ({True: 1},)),
    ((slice(0, 2),), (slice(0, 2, 1),)),
    ((slice(0, True),), (slice(0, 1),)),
    ((...,), (None,)),
    ((torch.float32,), (torch.float64,)),
    ((torch.device("cpu"),), (torch.device("meta"),)),
    ((torch.contiguous_format,), (torch.channels_last,)),
    ((Mode.A,), (Mode.B,)),
    ((Alike.A,), (Alike.B,)),
    (({Alike.A: 1},), ({Alike.B: 1},)),
    (({1, 2},), ({1, 3},)),
    (({1},), (frozenset({1}),)),
    ((np.float64(1.0),), (1.0,)),
    ((np.array([1, 2]),), (np.array([1, 3]),)),
    ((T,), (T.double(),)),
    ((T,), (T[0],)),
    ((T,), (torch.nn.Parameter(T),)),
    ((T,), (T.clone().requires_grad_(),)),
    ((T,), (T.to("meta"),)),
    ((T,), (T.to_sparse(),)),
    ((Batch(T, 1.0),), (Batch(T, 2.0),)),
    ((print,), (len,)),
    ((math,), (torch,)),
    ((int,), (float,)),
    ((SHARED, SHARED), ([1], [1])),
    ((Number(2),), (Number(9),)),
    ((Word("a"),), (Word("b"),)),
    (({0, 8},), (_in_other_order(),)),
    ((collections.deque([1]),), (collections.deque([2]),)),
    ((bytearray(b"a"),), (bytearray(b"b"),)),
    ((collections.OrderedDict(a=1, b=2),), (_moved(),)),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=[repr(p)[:60] for p in DIFFERENT])
def test_what_a_program_can_tell_apart_has_another_signature(one, other):
    assert _sig(*one) == _sig(*one)
    assert _sig(*one) != _sig(*other)


def test_positional_and_keyword_are_told_apart():
    assert _sig(1) != _sig(a=1)
    assert _sig(a=1, b=2) != _sig(b=2, a=1)  # a program may iterate over **kwargs


def test_nan_equals_itself():
    assert _sig(math.nan) == _sig(float("nan"))
    assert _sig(complex(math.nan, 0)) == _sig(complex(math.nan, 0))


def test_sizes_are_not_in_the_signature_but_a_gradient_is():
    assert _sig(torch.ones(2, 3)) == _sig(torch.ones(4, 5))
    assert _sig(Batch(torch.ones(2), 1.0)) == _sig(Batch(torch.ones(7), 1.0))
    leaf, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    other.grad = torch.ones(2)
    assert _sig(leaf) != _sig(other)


def test_objects_are_told_apart_and_not_kept_alive():
    import gc
    import weakref

    class Thing:
        pass

    one, other = Thing(), Thing()
    signature = _sig(one)
    assert signature == _sig(one)
    assert signature != _sig(other)
    alive = weakref.ref(one)
    del one
    gc.collect()
    assert alive() is None
    assert signature != _sig(Thing())


def kinds(x, option=None, *rest, **named):
    if option is None:
        return x + 1
    if isinstance(option, bool):
        return x * 2 if option else x * 3
    if isinstance(option, (int, float)):
        return x - option
    return [x, len(rest), sorted(named), option]


def test_one_callable_over_many_kinds_of_arguments():
    jfn = compiled(kinds)
    calls = [
        ((), {}),
        ((None,), {}),
        ((True,), {}),
        ((1,), {}),
        ((1.0,), {}),
        ((False,), {}),
        (("a",), {}),
        (("a", 1, 2), {}),
        (("a",), {"k": 1}),
        (("a",), {"j": 1, "k": 2}),
        ((), {"option": 2}),
    ]
    for _ in range(2):
        for args, kwargs in calls:
            for shape in [(2, 3), (4, 5)]:
                same(jfn, kinds, torch.randn(shape), *args, **kwargs)
    assert misses(jfn) == len(calls)


def nested(batch, extras):
    total = batch["ids"] * extras[0]
    for t in extras[1]:
        total = total + t.sum()
    return total, batch["ids"].shape[0], extras[1][0].shape


def test_tensors_in_nested_containers_have_free_sizes():
    jfn = compiled(nested)
    for n, m in [(2, 3), (4, 5), (6, 7)]:
        same(jfn, nested, {"ids": torch.randn(n, m)}, [2.0, (torch.randn(m, n), torch.randn(n + 1))])
    assert misses(jfn) == 1
    same(jfn, nested, {"ids": torch.randn(2, 3)}, [3.0, (torch.randn(3, 2), torch.randn(3))])
    same(jfn, nested, {"ids": torch.randn(2, 3)}, [2.0, (torch.randn(3, 2),)])
    assert misses(jfn) == 3


def test_a_generator_is_never_reused():
    def fn(x, numbers):
        for n in numbers:
            x = x + n
        return x

    jfn = compiled(fn)
    for numbers in ([1, 2], [3], [1, 2]):
        x = torch.randn(2)
        torch.testing.assert_close(jfn(x, iter(numbers)), fn(x, iter(numbers)))
    assert misses(jfn) == 3


def test_a_list_that_grows_between_calls_is_noticed():
    def fn(xs):
        total = 0
        for x in xs:
            total = total + x
        return total

    jfn, xs = compiled(fn), [torch.randn(3)]
    for _ in range(3):
        torch.testing.assert_close(jfn(xs), fn(xs))
        xs.append(torch.randn(3))


def test_a_returned_argument_in_a_container_is_the_calls_own():
    def fn(x, items):
        return [x * 2, {"rest": (items,)}]

    jfn = compiled(fn)
    for value in (1.0, 2.0, 3.0):
        same(jfn, fn, torch.full((2,), value), [torch.full((1,), value), 1])


class Custom:
    def __init__(self, scale):
        self.scale = scale

    def apply(self, x):
        return x * self.scale


def test_attributes_of_objects_in_arguments_are_noticed():
    def fn(x, thing):
        return thing.apply(x)

    jfn, thing = compiled(fn), Custom(2.0)
    same(jfn, fn, torch.randn(2), thing)
    same(jfn, fn, torch.randn(3), thing)
    thing.scale = 3.0
    same(jfn, fn, torch.randn(3), thing)
    same(jfn, fn, torch.randn(3), Custom(4.0))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0), (1, 1, 1)])
def test_ranks_zero_and_sizes_zero_and_one(shape):
    def fn(x):
        return (x + 1).sum(), x.shape, x.numel(), x * x.dim()

    jfn = compiled(fn)
    for s in [shape, (3,), shape, (2, 2)]:
        same(jfn, fn, torch.randn(s))


@dataclasses.dataclass
class Config:
    k: float = 2.0

    def scaled(self, x):
        return x * self.k


def test_methods_of_objects_whose_fields_are_in_the_signature(monkeypatch):
    fn = lambda x, c: c.scaled(x) * getattr(c, "more", 1.0)
    jfn = compiled(fn)
    same(jfn, fn, torch.randn(2), Config())
    same(jfn, fn, torch.randn(3), Config())
    assert misses(jfn) == 1
    monkeypatch.setattr(Config, "scaled", lambda self, x: x * 9)
    same(jfn, fn, torch.randn(2), Config())
    monkeypatch.setattr(Config, "more", 3.0, raising=False)
    same(jfn, fn, torch.randn(2), Config())
