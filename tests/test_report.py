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


SCALE = 2.0


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 2

    def forward(self, a, b, n=1, *, options=None):
        if a.shape[0] > 16:
            return a * 2
        return (a + b) * n * self.factor * SCALE


def test_each_retrace_has_its_cause(monkeypatch):
    model = Model()
    jfn = compiled(model)
    line = inspect.getsourcelines(Model.forward)[1]
    x = lambda *shape, **kw: torch.ones(*shape, **kw)

    def cause(*args, **kwargs):
        jfn(*args, **kwargs)
        return str(jfn._speckey_table.retraces[-1])

    jfn(x(3, 2), x(2))
    assert not jfn._speckey_table.retraces
    assert cause(x(20, 2), x(2)) == f"`a.shape[0] >= 17` was False, is True now (entry 1): test_report.py:{line + 1}"
    assert cause(x(3, 2), x(1)).startswith("`b.shape[0] == 1` was False, is True now (entry 1): test_report.py")
    assert cause(x(3, 2), x(2, dtype=torch.float64)) == "the dtype of `b` was float32, is float64 now (entry 3)"
    assert cause(x(3, 2), x(2), 5).startswith("the length of `args` was 2, is 3 now")
    assert cause(x(3, 2), x(2), 6) == "`n` was 5, is 6 now (entry 5)"
    assert cause(x(3, 2), x(2), options={"k": [1]}).startswith("the keys of `kwargs` was (), is ('options',) now")
    assert cause(x(3, 2), x(2), options={"k": [2]}) == "`options['k'][0]` was 1, is 2 now (entry 7)"
    model.factor = 3
    assert cause(x(3, 2), x(2)) == "`self.factor` was 2 (entry 1)"
    monkeypatch.setitem(globals(), "SCALE", 7.0)
    assert "SCALE" in cause(x(3, 2), x(2))
    with torch.no_grad():
        assert cause(x(3, 2), x(2)).startswith("grad mode was True, is False now")


def test_compiles_are_logged_with_the_reason(caplog):
    jfn = compiled(program)
    with caplog.at_level("DEBUG", logger="speckey"):
        for n in (3, 5, 20):
            jfn(torch.ones(n, 2), torch.ones(2))
    messages = [r.getMessage() for r in caplog.records if r.levelname == "INFO"]
    assert len(messages) == 2
    assert messages[0].startswith("program: compiled symbolic in ")
    assert messages[0].endswith("first call")
    assert "`a.shape[0] >= 17` was False, is True now (entry 1): test_report.py" in messages[1]
    assert any("branches:" in r.getMessage() for r in caplog.records if r.levelname == "DEBUG")
