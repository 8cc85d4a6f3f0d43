"""``SPECKEY_LOGS`` switches the logger on without code."""

import logging
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import speckey
from speckey import logs
from tests.helpers import compiled


@pytest.fixture(autouse=True)
def _as_before():
    """Take back what ``configure`` does to the loggers of this process."""
    logger, code = logs.LOGGER, logs.CODE
    before = logger.level, code.level, logger.propagate, list(logger.handlers)
    yield
    logger.propagate, logger.handlers[:] = before[2], before[3]
    logger.setLevel(before[0])
    code.setLevel(before[1])


def program(a):
    return a * 2 if a.shape[0] > 16 else a


@pytest.mark.parametrize(
    ("words", "has"),
    [
        (None, ()),
        ("", ()),
        ("retraces", ("retraces",)),
        (" Facts", ("retraces", "facts")),
        ("code", ("code",)),
        ("code,retraces,", ("retraces", "code")),
    ],
)
def test_each_word_shows_what_it_says(words, has, capsys):
    logs.configure(words)
    jfn = compiled(program)
    for n in (3, 5, 20):
        jfn(torch.ones(n))
    text = capsys.readouterr().err
    assert ("`a.shape[0] > 16` was False, is True now (entry 1)" in text) == ("retraces" in has)
    assert ("a.shape[0] <= 16" in text) == ("facts" in has)
    assert ("[speckey.code] <speckey table" in text) == ("code" in has)
    assert ("def find(args, kwargs):" in text) == ("code" in has)
    assert text.count("[speckey] program: compiled symbolic in") == (2 if "retraces" in has else 0)


def test_a_program_with_logging_of_its_own_sees_each_line_once(caplog):
    logs.configure("retraces")
    logging.getLogger().addHandler(caplog.handler)
    compiled(program)(torch.ones(3))
    assert caplog.text == ""


def test_from_the_environment_with_an_unknown_word():
    root = str(pathlib.Path(speckey.__file__).parent.parent)
    code = "import speckey, thunder, torch; thunder.jit(lambda a: a, cache=speckey.SpecKeyCache())(torch.ones(2))"
    environment = {**os.environ, "SPECKEY_LOGS": "retrace,facts", "PYTHONPATH": root}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert "SPECKEY_LOGS=retrace,facts: unknown 'retrace'; the words are retraces, facts, code" in run.stderr
    assert "[speckey] <lambda>: compiled symbolic" in run.stderr
