"""What ``explain`` says."""

import inspect
import re

import pytest
import thunder
import torch

import speckey
from tests.helpers import compiled


def program(a, b):
    if a.shape[0] > 16:
        return a * 2
    return a + b


def test_a_report_shows_the_tree_with_the_line_that_asked(capsys):
    jfn = compiled(program)
    for n in (3, 5, 20, 30):
        jfn(torch.ones(n, 2), torch.ones(2))
    report = speckey.explain(jfn)
    line = inspect.getsourcelines(program)[1] + 1
    text = re.sub(r"\d\.\d s", "0.1 s", capsys.readouterr().out)
    assert (
        text
        == f"""\
program: 2 entries, 2 hits, 2 misses, 0.1 s compiling

Arguments
    a: float32[*, *] cpu
    b: float32[*] cpu

How a call finds its entry
    a.shape[0] > 16?                                               test_report.py:{line}
    ├─ yes
    │  a.shape[1] != 1                                             test_report.py:{line + 1}
    │  → [2] symbolic, 1 hit, 0.1 s
    └─ no
       a.shape[1] != 1, a.shape[0] != 1, a.shape[1] == b.shape[0]  test_report.py:{line + 2}
       → [1] symbolic, 1 hit, 0.1 s

Why calls were compiled again
    `a.shape[0] > 16` was False, is True now (entry 1): test_report.py:{line}
"""
    )
    assert (report.hits, report.misses, len(report.entries)) == (2, 2, 2)
    assert report.seconds_compiling == sum(e.compile_seconds for e in speckey.entries(jfn))


def test_predicates_are_the_programs_own(capsys):
    def asks(a):
        if a.shape[0] * 2 + 1 >= 16 and not a.shape[1] <= 3:
            a = a + 1
        return a if a.shape[0] % 5 != 2 else a * 2

    jfn = compiled(asks)
    for shape in ((9, 5), (10, 5)):
        jfn(torch.ones(shape))
    speckey.explain(jfn)
    text = capsys.readouterr().out
    assert "2*a.shape[0] + 1 >= 16" in text
    assert "a.shape[1] > 3" in text
    assert "a.shape[0] % 5 != 2" in text
    assert "not (" not in text


def test_sizes_that_are_fixed_are_listed_with_the_line(capsys):
    linear = torch.nn.Linear(4, 4)
    jfn = compiled(lambda x, n: linear(x) * [1, 2, 3][x.shape[0]] * n)
    line = inspect.currentframe().f_lineno - 1
    for n in (0, 1, 2):
        jfn(torch.ones(n, 4), 1)
    report = speckey.explain(jfn)
    text = capsys.readouterr().out
    assert re.search(rf"x.shape\[0\] is 0, 1, 2 in \[1\]-\[3\] +test_report.py:{line}\n", text)
    assert re.search(rf"x.shape\[1\] is 4 in \[1\]-\[3\] +test_report.py:{line}\n", text)
    assert [[str(f) for f in of] for of in report.fixed][1] == ["x.shape[0] == 1", "x.shape[1] == 4"]


def test_sixty_entries_take_a_line_each(capsys):
    jfn = compiled(lambda x, word: x * len(word))
    for n in range(60):
        jfn(torch.ones(3), "x" * n)
    speckey.explain(jfn)
    lines = capsys.readouterr().out.splitlines()
    tree = lines[lines.index("How a call finds its entry") :][: lines[::-1].index("How a call finds its entry")]
    assert sum("→ [" in line for line in tree) == 60
    assert max(map(len, lines)) <= 160
    assert sum("had another value 59 times" in line for line in lines) == 1
    assert len(lines) < 150


def test_a_chain_of_questions_is_a_ladder(capsys):
    def ladder(x):
        for n in range(2, 40):
            if x.shape[0] == n:
                return x * n
        return x

    jfn = compiled(ladder)
    for n in range(2, 12):
        jfn(torch.ones(n, 3))
    speckey.explain(jfn)
    text = capsys.readouterr().out
    assert "the first of these that holds:" in text
    assert "├─ x.shape[0] == 7, then the same facts → [6] symbolic" in text
    assert not any(line.startswith(" " * 14) for line in text.splitlines())
    assert "asked 9 questions that came out differently, the first of them:" in text


def test_arguments_are_named_as_the_user_has_them(capsys):
    class Nested(torch.nn.Module):
        def forward(self, batch, *rest, scale=None):
            if batch["ids"].shape[0] > 4 or rest[0].shape[0] > 4 or scale["by"][1].shape[0] > 4:
                return batch["ids"] + 1
            return batch["ids"]

    jfn = compiled(Nested())
    x = torch.ones
    for a, b, c in ((3, 3, 3), (5, 3, 3), (3, 5, 3), (3, 3, 5)):
        jfn({"ids": x(a)}, x(b), scale={"by": [0, x(c)]})
    report = speckey.explain(jfn)
    text = capsys.readouterr().out
    assert text.startswith("Nested: ")
    for name in ("batch['ids']", "rest[0]", "scale['by'][1]"):
        assert f"{name}: float32[*] cpu" in text
        assert f"`{name}.shape[0] > 4` was False, is True now (entry 1)" in text
    assert report.retraces[0].subject == "`batch['ids'].shape[0] > 4`"
    assert {(r.was, r.now) for r in report.retraces} == {("False", "True")}


def test_a_report_before_the_first_call(capsys):
    report = speckey.explain(compiled(program))
    assert capsys.readouterr().out == "program: 0 entries, 0 hits, 0 misses, 0.0 s compiling\n"
    assert report.entries == report.tree == ()


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
    assert "[1] exact: Unsafe: the program caught IndexError" in text
    assert "the shape of x:\n    └─ (5,) → [1] exact, 0 hits" in text


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
    where, argument = f"test_report.py:{line + 3}", f"argument of `Model`, test_report.py:{line}"
    x = lambda *shape, **kw: torch.ones(*shape, **kw)

    def cause(*args, **kwargs):
        jfn(*args, **kwargs)
        return str(jfn._speckey_table.retraces[-1])

    jfn(x(3, 2), x(2))
    assert not jfn._speckey_table.retraces
    assert cause(x(20, 2), x(2)) == f"`a.shape[0] > 16` was False, is True now (entry 1): test_report.py:{line + 1}"
    assert cause(x(3, 2), x(1)) == f"`a.shape[1] == b.shape[0]` was True, is False now (entry 1): {where}"
    assert (
        cause(x(3, 2), x(2, dtype=torch.float64))
        == f"the dtype of `b` was float32, is float64 now (entry 3): {argument}"
    )
    assert cause(x(3, 2), x(2), 1.5) == f"`n` was left out, is passed now (entry 4): {argument}"
    assert cause(x(3, 2), x(2), options={"k": [1]}) == f"`options` was left out, is passed now (entry 3): {argument}"
    assert cause(x(3, 2), x(2), options={"k": [2]}) == f"`options['k'][0]` was 1, is 2 now (entry 6): {argument}"
    assert cause(x(3, 2), b=x(2)) == f"`b` is passed by name now (entry 7): {argument}"
    model.factor = 3
    assert cause(x(3, 2), x(2)) == f"`self.factor` was 2, is 3 now (entry 1): {where}"
    monkeypatch.setitem(globals(), "SCALE", 7.0)
    assert cause(x(3, 2), x(2)) == f"`SCALE` was 2.0, is 7.0 now (entry 9): {where}"
    with torch.no_grad():
        assert cause(x(3, 2), x(2)).startswith("grad mode was True, is False now")


def test_values_from_outside_are_named_as_the_program_has_them():
    power = 2

    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)
            self.config = {"sizes": [1, 2]}

        def forward(self, x):
            return self.linear(x) ** power + self.config["sizes"][1]

    module = Holder()
    jfn = compiled(module)
    where = f"test_report.py:{inspect.getsourcelines(Holder.forward)[1] + 1}"

    def cause():
        jfn(torch.ones(3, 2))
        return str(jfn._speckey_table.retraces[-1])

    jfn(torch.ones(3, 2))
    power = 3
    assert cause() == f"`power` was 2, is 3 now (entry 1): {where}"
    module.config["sizes"][1] = 5
    assert cause() == f"`self.config` was {{'sizes': [1, 2]}}, is {{'sizes': [1, 5]}} now (entry 2): {where}"
    module.linear.weight = torch.nn.Parameter(torch.ones(2, 2), requires_grad=False)
    assert cause() == (
        f"`self.linear.weight` was float32[2, 2] cpu, requires_grad, is float32[2, 2] cpu now (entry 3): {where}"
    )


def test_six_causes_six_lines(capsys):
    """Branch, broadcast, size one, dtype, an integer argument that is branched on, a module attribute."""

    class Six(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = 2

        def forward(self, a, b, n):
            if a.shape[0] > 16:
                a = a * 2
            if n == 3:
                a = a - 1
            c = a * self.gain
            return c + b

    model = Six()
    jfn = compiled(model)
    start = inspect.getsourcelines(Six.forward)[1]
    ones = torch.ones
    jfn(ones(4, 4), ones(4, 4), 2)
    jfn(ones(20, 4), ones(20, 4), 2)  # branch
    jfn(ones(4, 4), ones(1, 4), 2)  # broadcast
    jfn(ones(1, 4), ones(1, 4), 2)  # size one
    jfn(ones(4, 4, dtype=torch.float64), ones(4, 4, dtype=torch.float64), 2)  # dtype
    jfn(ones(4, 4), ones(4, 4), 3)  # integer argument, the second value
    jfn(ones(4, 4), ones(4, 4), 4)  # and a branch on it
    model.gain = 5
    jfn(ones(4, 4), ones(4, 4), 4)  # module attribute
    speckey.explain(jfn)
    text = capsys.readouterr().out
    argument = f"argument of `Six`, test_report.py:{start}"
    assert text[text.index("Why calls were compiled again") :].splitlines()[1:] == [
        f"    `a.shape[0] > 16` was False, is True now (entry 1): test_report.py:{start + 1}",
        f"    `a.shape[0] == b.shape[0]` was True, is False now (entry 1): test_report.py:{start + 6}",
        f"    `a.shape[0] == 1` was False, is True now (entry 3): test_report.py:{start + 5}",
        f"    the dtype of `a` was float32, is float64 now (entry 4): {argument}",
        f"    `n` was 2, is 3 now (entry 4): {argument}",
        f"    `n == 3` was True, is False now (entry 6): test_report.py:{start + 3}",
        f"    `self.gain` was 2, is 5 now (entry 7): test_report.py:{start + 5}",
    ]


def test_compiles_are_logged_with_the_reason(caplog):
    jfn = compiled(program)
    with caplog.at_level("DEBUG", logger="speckey"):
        for n in (3, 5, 20):
            jfn(torch.ones(n, 2), torch.ones(2))
    messages = [r.getMessage() for r in caplog.records if r.levelname == "INFO"]
    assert len(messages) == 2
    assert messages[0].startswith("program: compiled symbolic in ")
    assert messages[0].endswith("first call")
    assert "`a.shape[0] > 16` was False, is True now (entry 1): test_report.py" in messages[1]
    assert any("branches:" in r.getMessage() for r in caplog.records if r.levelname == "DEBUG")
