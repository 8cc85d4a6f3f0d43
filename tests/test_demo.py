"""``python -m speckey`` runs, says what it promises, and fails on a difference."""

import re
import subprocess
import sys

import pytest
import torch

from speckey import demo


def test_the_demo_runs_with_two_programs_per_mode():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "speckey", "--quick"], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert "Every result was eager's" in done.stdout
    assert done.stdout.count("compile ") == 4
    assert "size one:   tokens.shape[0] != 1" in done.stdout
    assert re.search(r"tokens\.shape\[1\] != 1 +demo\.py:\d+\n", done.stdout)  # the line of the model
    assert f"SpecKeyCache(){len(demo.SHAPES):>15}{4:>10}" in done.stdout


def test_at_least_ten_different_shapes():
    shapes = [tuple(tokens.shape) for tokens, _ in demo.batches()]
    assert len(set(shapes)) >= 10
    assert all((targets[:, :-1] == tokens[:, 1:]).all() for tokens, targets in demo.batches())


def test_a_difference_is_loud(monkeypatch, capsys):
    with pytest.raises(demo.Difference, match="loss differs from eager"):
        demo.compare("loss", torch.ones(2), torch.zeros(2))
    monkeypatch.setattr(demo, "SHAPES", [(2, 4)])

    def broken():
        demo.compare("forward on (2, 4): logits", torch.ones(2), torch.zeros(2))

    monkeypatch.setattr(demo, "with_speckey", broken)
    assert demo.main(["--quick"]) == 1
    assert "FAILED: forward on (2, 4): logits differs from eager" in capsys.readouterr().err
