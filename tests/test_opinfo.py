"""Every operator that thunder tests, each in one compiled function over many samples, against eager."""

import pytest

from tests.opinfo_harness import WAYS, check_ops, select_ops

# One or two of each kind: elementwise, reductions, shape operations, indexing, matrices, networks, factories.
SLICE = [
    "abs",
    "add",
    "where",
    "sum",
    "mean",
    "var",
    "cumsum",
    "reshape",
    "getitem",
    "cat_wrapper",
    "split",
    "unsqueeze",
    "pad",
    "expand",
    "permute",
    "gather",
    "matmul",
    "linear",
    "softmax",
    "layer_norm",
    "embedding",
    "conv1d",
    "full",
    "arange",
]


def _assert_right(report):
    assert report.calls > 100, "no samples"
    assert (report.wrong, report.errors) == (0, 0), report.failure_text()


def test_a_slice_of_operators_is_right_forward_and_backward():
    names = {op.name for op in select_ops()}
    assert set(SLICE) <= names, set(SLICE) - names
    _assert_right(check_ops(WAYS["speckey"], ops=SLICE, backward=True, cap=8))


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
def test_every_operator_is_right(dtype):
    _assert_right(check_ops(WAYS["speckey"], dtypes=[dtype], backward=dtype == "float32"))
