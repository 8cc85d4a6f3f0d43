"""What a program reads from outside its arguments: when it changes, the call is traced anew."""

import array
import collections
import itertools
import types

import numpy as np
import pytest
import torch

from tests.helpers import compiled, misses, same

SCALE = 2.0
TABLE = {"shift": 1}
STEPS = [1, 2]
CONFIG = types.SimpleNamespace(scale=2.0, deep=types.SimpleNamespace(shift=1))
OFFSET = torch.tensor([1.0])


def helper(x):
    return x + 1


def other_helper(x):
    return x - 1


class Settings:
    factor = 2


def _changing(monkeypatch, fn, change):
    """One call, a hit, a change, a call that must be right, a change back, and a hit again."""
    jfn = compiled(fn)
    same(jfn, fn, torch.randn(2, 3))
    same(jfn, fn, torch.randn(4, 5))
    assert misses(jfn) == 1
    with monkeypatch.context() as patch:
        change(patch)
        same(jfn, fn, torch.randn(2, 3))
        same(jfn, fn, torch.randn(6, 3))
        assert misses(jfn) == 2
    same(jfn, fn, torch.randn(2, 3))
    assert misses(jfn) == 2


def test_a_global_number(monkeypatch):
    _changing(monkeypatch, lambda x: x * SCALE, lambda p: p.setitem(globals(), "SCALE", 3.0))


def test_an_equal_number_of_another_type(monkeypatch):
    _changing(monkeypatch, lambda x: x.long() * SCALE, lambda p: p.setitem(globals(), "SCALE", 2))


def test_a_global_function(monkeypatch):
    _changing(monkeypatch, lambda x: helper(x), lambda p: p.setitem(globals(), "helper", other_helper))


def test_a_global_dict(monkeypatch):
    _changing(monkeypatch, lambda x: x + TABLE["shift"], lambda p: p.setitem(TABLE, "shift", 5))


def test_a_key_that_was_not_there(monkeypatch):
    _changing(monkeypatch, lambda x: x + TABLE.get("more", 0), lambda p: p.setitem(TABLE, "more", 5))


def test_the_length_of_a_global_list(monkeypatch):
    def fn(x):
        for s in STEPS:
            x = x + s
        return x * len(STEPS)

    _changing(monkeypatch, fn, lambda p: p.setitem(globals(), "STEPS", [1, 2, 3]))


def test_an_item_of_a_global_list(monkeypatch):
    steps = {"now": [1, 2]}

    def change(patch):
        patch.setitem(steps, "now", [1, 7])

    _changing(monkeypatch, lambda x: x + steps["now"][1], change)
    jfn, fn = compiled(lambda x: x + STEPS[1]), lambda x: x + STEPS[1]
    for value in (2, 7, 2):
        STEPS[1] = value
        same(jfn, fn, torch.randn(2))
    assert misses(jfn) == 2


def test_an_attribute_of_a_global_object(monkeypatch):
    _changing(monkeypatch, lambda x: x * CONFIG.scale, lambda p: p.setattr(CONFIG, "scale", 4.0))


def test_an_attribute_deeper_down(monkeypatch):
    _changing(monkeypatch, lambda x: x * CONFIG.deep.shift, lambda p: p.setattr(CONFIG.deep, "shift", 4))


def test_an_attribute_that_was_not_there(monkeypatch):
    def fn(x):
        return x * getattr(CONFIG, "extra", 1) + hasattr(CONFIG, "other")

    _changing(monkeypatch, fn, lambda p: p.setattr(CONFIG, "extra", 4, raising=False))
    _changing(monkeypatch, fn, lambda p: p.setattr(CONFIG, "other", 4, raising=False))


def test_a_class_attribute(monkeypatch):
    _changing(monkeypatch, lambda x: x * Settings.factor, lambda p: p.setattr(Settings, "factor", 5))
    instance = Settings()
    _changing(monkeypatch, lambda x: x * instance.factor, lambda p: p.setattr(Settings, "factor", 5))
    _changing(monkeypatch, lambda x: x * instance.factor, lambda p: p.setattr(instance, "factor", 6))


def test_a_closure(monkeypatch):
    shift = 1

    def fn(x):
        return x + shift

    jfn = compiled(fn)
    same(jfn, fn, torch.randn(2))
    shift = 2
    same(jfn, fn, torch.randn(3))
    assert misses(jfn) == 2


def test_a_global_tensor_is_an_input(monkeypatch):
    fn = lambda x: x + OFFSET
    jfn = compiled(fn)
    same(jfn, fn, torch.randn(2, 3))
    monkeypatch.setitem(globals(), "OFFSET", torch.tensor([5.0]))
    same(jfn, fn, torch.randn(2, 3))
    assert misses(jfn) == 1
    monkeypatch.setitem(globals(), "OFFSET", torch.randn(3))
    same(jfn, fn, torch.randn(2, 3))
    monkeypatch.setitem(globals(), "OFFSET", torch.randn(1, dtype=torch.float64))
    same(jfn, fn, torch.randn(2, 3))
    assert misses(jfn) == 3


def test_the_same_object_in_two_places(monkeypatch):
    holder = types.SimpleNamespace(a=CONFIG, b=CONFIG)
    _changing(
        monkeypatch,
        lambda x: x * holder.a.scale + holder.b.scale,
        lambda p: p.setattr(holder, "b", types.SimpleNamespace(scale=9.0)),
    )


class Base:
    def scaled(self, x):
        return x * 2


class Derived(Base):
    factor = 2.0

    def scaled(self, x):
        return super().scaled(x) + 1

    def __call__(self, x):
        return x * 3


def with_default(x, k=2.0, *, m=1.0):
    return x * k + m


THING = Derived()
DEQUE = collections.deque([2.0])
MANY = [1.0] * 300
DEEP = [[[[[[2.0]]]]]]
BYTES = bytearray(b"ab")
ARRAY = np.array([1.0, 2.0])
MACHINE = array.array("d", [1.0])
PROXIED = {"a": 2.0}
PROXY = types.MappingProxyType(PROXIED)
REGISTRY: dict = {}


def another(self, x):
    return x * 7


def code_of_another(x, k=2.0, *, m=1.0):
    return x - k + m


KINDS = {
    "default": (lambda x: with_default(x), lambda p: p.setattr(with_default, "__defaults__", (9.0,))),
    "keyword default": (lambda x: with_default(x), lambda p: p.setattr(with_default, "__kwdefaults__", {"m": 9.0})),
    "code": (lambda x: with_default(x), lambda p: p.setattr(with_default, "__code__", code_of_another.__code__)),
    "a base class's method by super()": (lambda x: THING.scaled(x), lambda p: p.setattr(Base, "scaled", another)),
    "__call__": (lambda x: THING(x), lambda p: p.setattr(Derived, "__call__", another)),
    "the class of an object": (lambda x: THING.scaled(x), lambda p: p.setattr(THING, "__class__", Base)),
    "isinstance after a change of class": (
        lambda x: x * (2 if isinstance(THING, Derived) else 9),
        lambda p: p.setattr(THING, "__class__", Base),
    ),
    "an object made by the program": (lambda x: x * Derived().factor, lambda p: p.setattr(Derived, "factor", 9.0)),
    "a method of an object made by the program": (
        lambda x: Derived().scaled(x),
        lambda p: p.setattr(Derived, "scaled", another),
    ),
    "a builtin that is shadowed": (
        lambda x: x * max(2, 1),
        lambda p: p.setitem(globals(), "max", lambda *a: 9),
    ),
    "a deque": (lambda x: x * DEQUE[0], lambda p: p.setitem(globals(), "DEQUE", collections.deque([9.0]))),
    "an item of a long list, read by C": (lambda x: x * sum(MANY), lambda p: MANY.__setitem__(7, 9.0)),
    "an item deep down, read by C": (
        lambda x: x * float(str(DEEP).strip("[]")),
        lambda p: DEEP[0][0][0][0][0].__setitem__(0, 9.0),
    ),
    "a bytearray": (lambda x: x * sum(BYTES), lambda p: BYTES.__setitem__(0, 1)),
    "a numpy array": (lambda x: x * float(ARRAY.sum()), lambda p: ARRAY.__setitem__(0, 9.0)),
    "an array": (lambda x: x * sum(MACHINE), lambda p: MACHINE.__setitem__(0, 9.0)),
    "behind a mapping proxy": (lambda x: x * sum(PROXY.values()), lambda p: p.setitem(PROXIED, "a", 9.0)),
    "in a callback of map": (
        lambda x: x * sum(map(lambda v: v * SCALE, [1.0])),
        lambda p: p.setitem(globals(), "SCALE", 9.0),
    ),
    "in a key of sorted": (
        lambda x: x * sorted([1.0, 5.0], key=lambda v: v * SCALE)[0],
        lambda p: p.setitem(globals(), "SCALE", -1.0),
    ),
    "in a key of max": (
        lambda x: x * max([1.0, 5.0], key=lambda v: v * SCALE),
        lambda p: p.setitem(globals(), "SCALE", -1.0),
    ),
    "in a callback of filter": (
        lambda x: x * sum(filter(lambda v: v > SCALE, [1.0, 5.0])),
        lambda p: p.setitem(globals(), "SCALE", 0.0),
    ),
    "in a callback of accumulate": (
        lambda x: x * sum(itertools.accumulate([1.0, 2.0], lambda a, b: a * b * SCALE)),
        lambda p: p.setitem(globals(), "SCALE", 9.0),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_of_this_kind_is_noticed(monkeypatch, kind):
    fn, change = KINDS[kind]
    jfn = compiled(fn)
    for shape in [(2, 3), (4, 5)]:
        same(jfn, fn, torch.randn(shape))
    assert misses(jfn) == 1
    with monkeypatch.context() as patch:
        change(patch)
        for shape in [(2, 3), (6, 3)]:
            same(jfn, fn, torch.randn(shape))
    same(jfn, fn, torch.randn(2, 3))


def test_defaults_of_the_compiled_function_itself(monkeypatch):
    jfn = compiled(with_default)
    same(jfn, with_default, torch.randn(2))
    monkeypatch.setattr(with_default, "__code__", code_of_another.__code__)
    same(jfn, with_default, torch.randn(2))


def test_an_iterator_from_outside_is_used_once_per_call():
    numbers, twin = itertools.count(1), itertools.count(1)
    jfn = compiled(lambda x: x * next(numbers))
    for _ in range(3):
        x = torch.randn(2)
        torch.testing.assert_close(jfn(x), x * next(twin))


def test_hooks_of_all_modules_are_noticed():
    model = torch.nn.Sequential(torch.nn.Identity())
    jfn, x = compiled(model), torch.randn(2)
    same(jfn, model, x)
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, out: out * 9 if isinstance(module, torch.nn.Identity) else None
    )
    try:
        same(jfn, model, x)
    finally:
        hook.remove()
    same(jfn, model, x)
