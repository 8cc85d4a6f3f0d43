"""A call that is stopped anywhere leaves table and hooks as they were, and the next call is right."""

import contextlib
import gc
import itertools
import signal

import pytest
import thunder
import torch
from thunder.core import compile_data, symbol
from thunder.executors import passes

from speckey import codegen, compiler, dispatch, entries, runner, thunder_hooks
from speckey.cache import table_of
from speckey.key import SpecKey
from speckey.recorder import Recorder
from speckey.snapshot import Snapshot
from speckey.table import Tree
from tests.helpers import assert_same, compiled, copied, misses

# The way of a call that is compiled, step by step.
STEPS = [
    (dispatch.Table, "compile_and_run"),
    (dispatch, "describe"),
    (dispatch, "explain_retrace"),
    (dispatch.Table, "described"),
    (dispatch, "compile_entry"),
    (compiler, "_compile"),
    (thunder_hooks, "compile_program"),
    (thunder_hooks, "_cache_info"),
    (thunder_hooks, "_watch"),
    (thunder_hooks, "_path"),
    (Recorder, "_record"),
    (Recorder, "read"),
    (Recorder, "read_tensor"),
    (Recorder, "simplify"),
    (symbol.Symbol, "__call__"),
    (thunder_hooks, "_mutates_inputs"),
    (thunder_hooks, "_has_in_place"),
    (passes, "transform_for_execution"),
    (passes, "del_last_used"),
    (thunder_hooks, "_check_names"),
    (thunder_hooks, "_clearing_backward"),
    (SpecKey, "of"),
    (dispatch.Table, "run_first"),
    (thunder_hooks, "run_prologue"),
    (dispatch, "compile_run"),
    (Snapshot, "__init__"),
    (thunder_hooks, "read_prologue"),
    (thunder_hooks, "attach_backward"),
    (thunder_hooks, "connect_to_autograd"),
    (dispatch.Table, "_log"),
    (Tree, "insert"),
    (thunder_hooks, "list_entry"),
    (codegen._Writer, "node"),
    (runner, "guard_lines"),
]
_WITH_ENTRY = ("compile_and_run", "_log")  # after them, the entry is complete
NAMES = [f"{getattr(owner, '__name__', owner).rpartition('.')[2]}.{name}" for owner, name in STEPS]
ERRORS = [RuntimeError, KeyboardInterrupt, MemoryError]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3))
        self.scale = 2.0

    def forward(self, x):
        if x.shape[0] > 4:
            return (x * self.weight).sum(0) * self.scale
        return x * self.weight - self.scale


def _inputs(rows):
    return torch.randn(rows, 3, requires_grad=True)


def _right(jfn, eager, x):
    y = copied((x,))[0]
    found, expected = jfn(x), eager(y)
    assert_same(found, expected)
    weights = torch.arange(1.0, expected.numel() + 1).reshape(expected.shape)
    ours = torch.autograd.grad((found * weights).sum(), [x, *jfn.parameters()])
    theirs = torch.autograd.grad((expected * weights).sum(), [y, *eager.parameters()])
    assert_same(ours, theirs)


def _consistent(jfn):
    table = table_of(jfn)
    assert {id(e) for e in table._tree} == {id(e) for e in table.entries}
    listed = thunder.compile_stats(jfn).interpreter_cache
    assert [id(e) for e in listed] == [id(e.program.entry) for e in table.entries]
    assert all(e.run is not None for e in table.entries)
    keys = [(e.kind, e.key, e.shapes_only) for e in table.entries]
    assert len({(kind, key.signature, key.facts, shapes) for kind, key, shapes in keys}) == len(keys)


def _nothing_goes_on():
    assert thunder_hooks._tracing.get() is None
    assert thunder_hooks.current_trace(None) is None
    assert compile_data._compile_data.get()[0] is None
    assert not thunder._cache_info_ctx.get(None)
    assert torch.is_grad_enabled()


class Fault:
    """Raises at the ``at``-th call of a function, before or after what it does."""

    def __init__(self, monkeypatch, owner, name, error, at=1, when="before"):
        self.calls = 0
        self.over = False
        self.error, self.at, self.when = error, at, when
        self._real = getattr(owner, name)
        self._patched = monkeypatch.context()
        self._owner, self._name = owner, name

    def __enter__(self):
        real, fault = self._real, self

        def step(*args, **kwargs):
            if fault.over:
                return real(*args, **kwargs)
            fault.calls += 1
            if fault.calls == fault.at and fault.when == "before":
                raise fault.error("a fault")
            result = real(*args, **kwargs)
            if fault.calls == fault.at and fault.when == "after":
                fault.calls += 1
                raise fault.error("a fault")
            return result

        patch = self._patched.__enter__()
        bound = self._name == "of"  # a class method
        patch.setattr(self._owner, self._name, staticmethod(step) if bound else step)
        return self

    def __exit__(self, *exception):
        self.over = True  # a bound method may have been kept
        self._patched.__exit__(*exception)


def _stopped_and_right_afterwards(monkeypatch, owner, name, error, at, when, warm):
    eager = Model()
    jfn = compiled(eager)
    if warm:
        _right(jfn, eager, _inputs(2))
    before = len(entries(jfn))
    x = _inputs(6)
    with Fault(monkeypatch, owner, name, error, at, when) as fault:
        raised = True
        with contextlib.suppress(error):
            result = jfn(x)
            raised = False  # an ordinary error may be gone around
        if not raised:
            assert_same(result, eager(x))
    _nothing_goes_on()
    _consistent(jfn)
    if raised and error is not RuntimeError and name not in _WITH_ENTRY:
        assert len(entries(jfn)) == before
    for rows in (6, 2):
        _right(jfn, eager, _inputs(rows))
    _consistent(jfn)
    compiles = misses(jfn)
    for rows in (7, 3) if error is not RuntimeError else (6, 2):
        _right(jfn, eager, _inputs(rows))
    assert misses(jfn) == compiles
    return fault.calls


def _ways():
    """All errors, before and after the steps; each step in one of these ways (``long`` has all of them)."""
    return itertools.cycle(itertools.product(("before", "after"), ERRORS))


@pytest.mark.parametrize(
    ("owner", "name", "way"),
    [(*step, way) for step, way in zip(STEPS, _ways(), strict=False)],
    ids=NAMES,
)
def test_a_fault_at_any_step(monkeypatch, owner, name, way):
    when, error = way
    warm = name == "explain_retrace"
    assert _stopped_and_right_afterwards(monkeypatch, owner, name, error, 1, when, warm), "the step was not taken"


REPEATED = [
    (Recorder, "_record"),
    (Recorder, "read"),
    (Recorder, "simplify"),
    (symbol.Symbol, "__call__"),
    (thunder_hooks, "_path"),
    (thunder_hooks, "_is_symbolic"),
]


def _number_of_calls(monkeypatch, owner, name):
    with Fault(monkeypatch, owner, name, RuntimeError, at=-1) as count:
        compiled(Model())(_inputs(6))
    return count.calls


@pytest.mark.parametrize(("owner", "name"), REPEATED)
def test_a_fault_in_the_midst_of_tracing(monkeypatch, owner, name):
    calls = _number_of_calls(monkeypatch, owner, name)
    assert calls > 2
    for at, error in zip((calls // 2, calls), ERRORS[1:], strict=True):
        _stopped_and_right_afterwards(monkeypatch, owner, name, error, at, "before", warm=False)


@pytest.mark.parametrize("error", ERRORS)
def test_a_fault_in_the_backward(monkeypatch, error):
    eager = Model()
    jfn = compiled(eager)
    _right(jfn, eager, _inputs(2))
    names = entries(jfn)[0].run.__globals__

    def stop(*_):
        raise error("a fault")

    with monkeypatch.context() as patch:
        patch.setitem(names, "compiled", names["compiled"]._replace(backward_fn=stop))
        with pytest.raises(error, match="a fault"):
            jfn(_inputs(2)).sum().backward()
    _nothing_goes_on()
    x = _inputs(2)
    x.register_hook(stop)
    with pytest.raises(error, match="a fault"):
        jfn(x).sum().backward()
    _nothing_goes_on()
    _consistent(jfn)
    for rows in (3, 2):
        _right(jfn, eager, _inputs(rows))
    assert misses(jfn) == 1


def test_an_entry_that_is_gone_still_has_its_backward():
    eager = Model()
    jfn = compiled(eager)
    _right(jfn, eager, _inputs(2))
    x = _inputs(3)
    y = copied((x,))[0]
    out, expected = jfn(x), eager(y)
    table = table_of(jfn)
    for entry in list(table.entries):
        assert table._tree.remove(entry)
        table.entries.remove(entry)
    thunder.compile_stats(jfn).interpreter_cache.clear()
    table.last = None
    del entry
    _right(jfn, eager, _inputs(4))
    gc.collect()
    out.sum().backward()
    assert_same((x.grad, eager.weight.grad), torch.autograd.grad(expected.sum(), [y, eager.weight]))


def test_ctrl_c_while_a_call_is_compiled():
    """Delivered by a signal, at whatever instruction it meets.

    Python drops an interrupt that meets a finalizer, so the calls end without one, too.
    """
    eager = Model()
    for milliseconds in (5, 20, 50, 90, 140):
        jfn = compiled(eager)
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, milliseconds / 1000)
                for rows in range(1, 13):
                    jfn(_inputs(rows))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        _nothing_goes_on()
        _consistent(jfn)
        for rows in (2, 6, 3):
            _right(jfn, eager, _inputs(rows))


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("owner", "name"), STEPS, ids=NAMES)
def test_a_fault_at_any_step_and_time(monkeypatch, owner, name, error, when):
    for warm in (False, True):
        _stopped_and_right_afterwards(monkeypatch, owner, name, error, 1, when, warm)
    calls = min(_number_of_calls(monkeypatch, owner, name), 300)
    for at in range(2, calls + 1, max(1, calls // 10)):
        _stopped_and_right_afterwards(monkeypatch, owner, name, error, at, when, warm=False)
