"""Entries, reports and tracebacks keep no tensor of a call alive; a compiled callable takes all it made with it."""

import contextlib
import gc
import io
import logging
import weakref

import pytest
import torch

import speckey
from speckey import entries
from tests.helpers import compiled, misses, same


class Big(torch.Tensor):
    """A subclass, to be told from all other tensors."""


class Witness:
    """Weak references to the tensors of some calls."""

    def __init__(self):
        self._refs = []

    def randn(self, *shape, grad=False):
        return self.watch(torch.randn(*shape, requires_grad=grad))

    def watch(self, tensor):
        self._refs.append(weakref.ref(tensor))
        self._refs.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    def alive(self):
        gc.collect()
        return [ref() for ref in self._refs if ref() is not None]


@pytest.fixture
def witness():
    return Witness()


def branch(x, w):
    y = x @ w
    return y * 2 if x.shape[0] > 4 else y.cos() - x.shape[0]


@pytest.mark.parametrize("grad", [False, True])
def test_calls_that_are_compiled_and_hits_keep_nothing(witness, grad):
    jfn = compiled(branch)

    def calls():
        for rows in (2, 6, 3, 7):
            x, w = witness.randn(rows, 3, grad=grad), witness.randn(3, 2, grad=grad)
            out = witness.watch(jfn(x, w))
            if grad:
                out.sum().backward()
                witness.watch(x.grad)
                witness.watch(w.grad)
        # forward only: the graph goes with the result
        jfn(witness.randn(2, 3, grad=grad), witness.randn(3, 2, grad=grad))

    calls()
    assert misses(jfn) == 2
    assert not witness.alive()


def test_without_gc_a_hit_keeps_nothing(witness):
    jfn = compiled(branch)
    jfn(torch.randn(2, 3, requires_grad=True), torch.randn(3, 2))
    gc.collect()
    gc.disable()
    try:
        x = witness.randn(3, 3, grad=True)
        out = witness.watch(jfn(x, torch.randn(3, 2)))
        out.sum().backward()
        del x, out
        assert not [ref for ref in witness._refs if ref() is not None]
    finally:
        gc.enable()


def test_kept_while_the_backward_needs_them_and_no_longer(witness):
    jfn = compiled(branch)
    out = jfn(witness.randn(2, 3, grad=True), witness.randn(3, 2, grad=True))
    assert witness.alive()
    out.sum().backward()
    del out
    assert not witness.alive()


NESTED = {
    "list": lambda t: [t, [t]],
    "dict": lambda t: {"a": t, 3: (t,)},
    "keyword": lambda t: t,
}


@pytest.mark.parametrize("kind", NESTED)
def test_in_containers(witness, kind):
    def fn(x=None, **more):
        value = x if x is not None else more["y"]
        while not isinstance(value, torch.Tensor):
            value = value["a"] if isinstance(value, dict) else value[0]
        return value + 1

    jfn = compiled(fn)
    for rows in (2, 3):
        value = NESTED[kind](witness.randn(rows))
        jfn(y=value) if kind == "keyword" else jfn(value)
    del value
    assert not witness.alive()


UNUSUAL = {
    "subclass": lambda t: t.as_subclass(Big),
    "with an attribute": lambda t: setattr(t, "note", "a note") or t,
    "sparse": lambda t: t.to_sparse(),
    "leaf with a gradient": lambda t: setattr(t.requires_grad_(), "grad", torch.ones_like(t)) or t,
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_of_an_unusual_kind(witness, kind):
    jfn = compiled(lambda x: x * 2)
    for rows in (2, 3, 2):
        tensor = UNUSUAL[kind](witness.randn(rows, 2))
        with contextlib.suppress(Exception):  # thunder may refuse it
            witness.watch(jfn(tensor))
        del tensor
    assert not witness.alive()


def test_after_an_error_in_the_program(witness):
    def fn(x):
        y = x * 2
        if x.shape[0] > 3:
            raise ValueError("too many")
        return y

    jfn = compiled(fn)
    for rows in (2, 5, 3):
        with contextlib.suppress(ValueError):
            jfn(witness.randn(rows))
    assert not witness.alive()


def test_after_a_call_that_thunder_refuses(witness):
    jfn = compiled(lambda a, b: a @ b)
    for inner in (3, 4, 3):
        with contextlib.suppress(RuntimeError):
            jfn(witness.randn(2, 3), witness.randn(inner, 2))
    assert not witness.alive()


def test_after_exact_entries(witness):
    def fn(x):
        try:
            return x + [1, 2, 3][x.shape[0] + 5]
        except IndexError:
            return x * 2

    jfn = compiled(fn)
    for rows in (2, 5, 2, 5):
        jfn(witness.randn(rows, grad=True)).sum().backward()
    assert {e.kind for e in entries(jfn)} == {"exact"}
    assert not witness.alive()


def test_after_reports_and_logs(witness):
    jfn = compiled(branch)
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("speckey")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            for rows, columns in ((2, 3), (6, 3), (3, 4)):
                jfn(witness.randn(rows, columns), witness.randn(columns, 2))
            jfn(witness.randn(3, 4, grad=True), witness.randn(4, 2))
            report = speckey.explain(jfn, code=True)
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
    assert records
    assert report.retraces
    assert not witness.alive()
    assert str(report)


def test_in_place_and_shared_memory(witness):
    def fn(a, b):
        a.add_(1)
        return a * b

    jfn = compiled(fn)
    for rows in (2, 3):
        a = witness.randn(rows)
        jfn(a, a)
        jfn(a, witness.randn(rows))
    del a
    assert not witness.alive()


@pytest.mark.parametrize("used", ["never", "forward", "with errors", "explained"])
def test_a_dropped_callable_frees_everything(used):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)

        def forward(self, x):
            if x.shape[0] == 9:
                raise ValueError("nine")
            return self.linear(x)

    def uses(model):
        return lambda x: model.linear(x) if x.shape[0] < 9 else x + 1

    model = Model()
    function = uses(model)
    refs = [weakref.ref(model), weakref.ref(model.linear.weight), weakref.ref(function)]
    for fn in (model, function):
        jfn = compiled(fn)
        if used != "never":
            for rows in (2, 1):
                jfn(torch.randn(rows, 3)).sum().backward()
            refs += [weakref.ref(e) for e in entries(jfn)]
        if used == "with errors":
            with contextlib.suppress(ValueError):
                jfn(torch.randn(9, 3))
            with contextlib.suppress(RuntimeError):
                jfn(torch.randn(2, 4))
        if used == "explained":
            with contextlib.redirect_stdout(io.StringIO()):
                speckey.explain(jfn, code=True)
        refs += [weakref.ref(jfn), weakref.ref(jfn._speckey_table)]
    del jfn, fn, model, function, Model
    gc.collect()
    assert not [ref() for ref in refs if ref() is not None]


def test_a_gone_callable_leaves_no_source_behind():
    import linecache

    def made():
        return [name for name in linecache.cache if name.startswith("<speckey")]

    gc.collect()
    before = made()
    jfn = compiled(branch)
    same(jfn, branch, torch.randn(2, 3), torch.randn(3, 2))
    same(jfn, branch, torch.randn(3, 3), torch.randn(3, 2))
    assert len(made()) > len(before)
    del jfn
    gc.collect()
    assert made() == before


def test_objects_of_calls_are_held_weakly(witness):
    """An argument that is told apart by identity is not kept for that."""

    class Batch:
        factor = 2.0

        def __init__(self, tensor):
            self.tensor = tensor

    fn = lambda x, batch: x * batch.factor + batch.tensor
    jfn = compiled(fn)
    refs = []
    for _ in range(2):
        batch = Batch(witness.randn(3))
        refs.append(weakref.ref(batch))
        for _ in range(2):
            x = torch.randn(3)
            torch.testing.assert_close(jfn(x, batch), fn(x, batch))
        batch.factor = 3.0
        torch.testing.assert_close(jfn(x, batch), fn(x, batch))
    del batch
    assert not witness.alive()
    assert not [ref() for ref in refs if ref() is not None]
    assert misses(jfn) == 4
