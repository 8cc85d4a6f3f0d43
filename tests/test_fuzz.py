"""Random whole programs on many shapes, against eager and against a fresh compile."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.program_fuzz import WAYS, run


def _assert_right(report):
    assert report.useful > 0.5, f"most calls could not be compared: {report}"
    assert (report.wrong, report.errors) == (0, 0), "\n".join(map(str, report.failures))


def test_random_programs_are_right():
    _assert_right(run(range(30), WAYS["speckey"], combos=4))


@settings(max_examples=8, derandomize=True, deadline=None, database=None)
@given(st.integers(10_000, 20_000))
def test_a_random_program_is_right_with_gradients(seed):
    report = run([seed], WAYS["speckey"], grad=True, combos=3)
    assert (report.wrong, report.errors) == (0, 0), "\n".join(map(str, report.failures))


@pytest.mark.long
@pytest.mark.parametrize("hundred", range(20))
def test_two_thousand_random_programs_are_right(hundred):
    _assert_right(run(range(20_000 + 100 * hundred, 20_100 + 100 * hundred), WAYS["speckey"], combos=5))
