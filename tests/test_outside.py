"""What a program reads from outside its arguments: when it changes, the call is traced anew."""

import types

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
