"""The code blocks of the README run, and print what it says they print."""

import contextlib
import io
import pathlib
import re

import pytest
import torch

import speckey

README = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```(python|)\n(.*?)```", README, flags=re.DOTALL)


def _run(namespace, text):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(text, "README.md", "exec"), namespace)
    return out.getvalue()


def test_the_blocks_of_the_readme_run():
    intro, problem, inside = (text for kind, text in BLOCKS if kind == "python")
    namespace = {"model": torch.nn.Linear(2, 2)}
    _run(namespace, intro)
    _run(namespace, problem)
    second_call, branch, add = (namespace[n] for n in ("second_call", "branch", "add"))
    assert second_call(branch, speckey.SpecKeyCache()) == (8,)
    assert second_call(add, speckey.SpecKeyCache()) == (2, 8)
    printed = _run(namespace, inside)
    assert printed in [text for kind, text in BLOCKS if not kind]


def test_what_the_readme_says_of_symbolic_values_is_so():
    namespace = {}
    _run(namespace, [text for kind, text in BLOCKS if kind == "python"][1])
    assert namespace["second_call"](namespace["branch"], "symbolic values") == (2, 1)
    with pytest.raises(RuntimeError, match="expanded size"):
        namespace["second_call"](namespace["add"], "symbolic values")
