"""What ``explain`` says."""

import inspect

import pytest
import thunder
import torch

import speckey
from tests.helpers import compiled


def program(a, b):
    if a.shape[0] > 16:
        return a * 2
    return a + b


def test_a_report_names_facts_with_the_line_that_asked(capsys):
    jfn = compiled(program)
    for n in (3, 5, 20, 30):
        jfn(torch.ones(n, 2), torch.ones(2))
    report = speckey.explain(jfn)
    line = inspect.getsourcelines(program)[1] + 1
    text = capsys.readouterr().out
    assert f"a.shape[0] < 17                          test_report.py:{line}" in text
    assert f"a.shape[0] >= 17                         test_report.py:{line}" in text
    assert text.startswith("2 entries, 2 hits, 2 misses, ")
    assert (report.hits, report.misses, len(report.entries)) == (2, 2, 2)
    assert report.seconds_compiling == sum(e.compile_seconds for e in speckey.entries(jfn))


def test_an_exact_entry_says_why(capsys):
    def catches(x):
        try:
            return x * [1, 2][x.shape[0]]
        except IndexError:
            return x

    jfn = compiled(catches)
    jfn(torch.ones(5))
    speckey.explain(jfn)
    text = capsys.readouterr().out
    assert "exact" in text
    assert "because:    Unsafe: the program caught IndexError" in text
    assert "shapes:     (5,)" in text


def test_the_code_of_the_look_up_is_shown(capsys):
    jfn = compiled(program)
    speckey.explain(jfn, code=True)
    for n in (3, 20):
        jfn(torch.ones(n, 2), torch.ones(2))
    report = speckey.explain(jfn, code=True)
    assert "def find(args, kwargs):" in report.code
    assert report.code in capsys.readouterr().out


def test_another_callable_is_refused():
    with pytest.raises(TypeError, match="expected a callable compiled with cache=SpecKeyCache"):
        speckey.explain(thunder.jit(program))
