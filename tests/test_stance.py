"""Stances: what becomes of calls that find no entry."""

import inspect
import threading

import pytest
import thunder
import torch

import speckey
from speckey import RetraceError, entries, stance
from tests.helpers import compiled, same


def program(a):
    if a.shape[0] > 16:
        return a * 2
    return a + 1


def test_a_retrace_fails_and_explains_itself():
    jfn = compiled(program)
    same(jfn, program, torch.ones(3))
    line = inspect.getsourcelines(program)[1] + 1
    with stance("fail_on_retrace"):
        same(jfn, program, torch.ones(5))  # a hit
        with pytest.raises(RetraceError) as caught:
            jfn(torch.ones(20))
    assert str(caught.value) == (
        "fail_on_retrace: no entry of program fits this call: "
        f"`a.shape[0] > 16` was False, is True now (entry 1): test_stance.py:{line}"
    )
    assert (caught.value.retrace.entry, caught.value.retrace.where) == (1, f"test_stance.py:{line}")
    assert (len(entries(jfn)), thunder.cache_hits(jfn), thunder.cache_misses(jfn)) == (1, 1, 1)
    same(jfn, program, torch.ones(20))


def test_a_first_call_fails_too_and_warmup_compiles():
    jfn = compiled(program)
    with stance("fail_on_retrace"):
        with pytest.raises(RetraceError, match=r"program has no entry yet; speckey.warmup\(...\) compiles") as caught:
            jfn(torch.ones(3))
        assert caught.value.retrace is None
        speckey.warmup(jfn, torch.ones(3))
        same(jfn, program, torch.ones(3))


def test_eager_runs_what_has_no_entry():
    module = torch.nn.Linear(3, 2)
    jfn = compiled(module)
    x = torch.randn(4, 3)
    same(jfn, module, x)
    with stance("eager_on_retrace"), torch.no_grad():
        same(jfn, module, x)
    assert len(entries(jfn)) == 1
    with torch.no_grad():
        same(jfn, module, x)
    assert len(entries(jfn)) == 2


def test_the_innermost_counts_and_an_error_ends_it():
    jfn = compiled(program)
    with stance("fail_on_retrace"):
        with stance("default"):
            same(jfn, program, torch.ones(3))
        with pytest.raises(RetraceError):
            jfn(torch.ones(20))
    with pytest.raises(ZeroDivisionError), stance("fail_on_retrace"):
        raise ZeroDivisionError
    same(jfn, program, torch.ones(20))


def test_threads_do_not_see_each_others():
    jfn, results = compiled(program), []
    with stance("fail_on_retrace"):
        thread = threading.Thread(target=lambda: results.append(jfn(torch.ones(3))))
        thread.start()
        thread.join()
    torch.testing.assert_close(results[0], torch.full((3,), 2.0))


def test_as_a_decorator():
    jfn = compiled(program)

    @stance("fail_on_retrace")
    def serve(x):
        """Serves."""
        return jfn(x)

    assert (serve.__name__, serve.__doc__) == ("serve", "Serves.")
    with pytest.raises(RetraceError):
        serve(torch.ones(3))
    jfn(torch.ones(3))
    torch.testing.assert_close(serve(torch.ones(3)), torch.full((3,), 2.0))


def test_a_program_that_fails_for_a_call_is_a_retrace_as_well():
    jfn = compiled(program)
    jfn(torch.ones(3))
    (entry,) = entries(jfn)
    table = jfn._speckey_table
    with stance("fail_on_retrace"), pytest.raises(RetraceError, match="the entry's program failed"):
        table.recover(entry, RuntimeError("boom"), (torch.ones(3),), {})
    with stance("eager_on_retrace"):
        torch.testing.assert_close(table.recover(entry, RuntimeError(), (torch.ones(3),), {}), torch.full((3,), 2.0))
    assert len(entries(jfn)) == 1


@pytest.mark.parametrize("wrong", ["fail", "", None, 3, ["default"]])
def test_another_word_is_refused_at_once(wrong):
    with pytest.raises(ValueError, match="expects one of 'default', 'fail_on_retrace', 'eager_on_retrace'"):
        stance(wrong)


def test_as_a_decorator_of_no_function():
    with pytest.raises(TypeError, match="expects a function"):
        stance("default")(3)
