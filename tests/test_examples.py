"""The scripts under examples/: what comes out is the same before and after, and takes fewer compiles."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest
import torch

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["symbolic_values", "buckets"])
def test_after_is_as_before_with_fewer_compiles(name):
    compiles_before, before, *_ = load(f"{name}_before").main()
    compiles_after, after, *_ = load(f"{name}_after").main()
    assert compiles_after < compiles_before
    assert len(before) == len(after) > 1
    for ours, theirs in zip(after, before, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_function_is_eagers():
    module = load("symbolic_values_after")
    for result, (x, gain) in zip(module.main()[1], module.inputs(), strict=True):
        torch.testing.assert_close(result, module.standardize(x, gain))


def test_symbolic_values_alone_would_be_wrong():
    """Why the script before keeps a copy for each shape."""
    before = load("symbolic_values_before")
    one = before.thunder.jit(before.standardize, cache="symbolic values")
    wrong = 0
    for x, gain in before.inputs():
        try:
            result = one(x, gain)
            wrong += not torch.allclose(result, before.standardize(x, gain))
        except RuntimeError:
            wrong += 1
    assert wrong


def test_a_script_says_how_often_it_compiled():
    script = EXAMPLES / "buckets_after.py"
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
        check=True,
    )
    assert "compiles for 8 shapes" in done.stdout
    assert "How a call finds its entry" in done.stdout
