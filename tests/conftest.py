"""Imports speckey before anything imports thunder, and keeps runs comparable."""

import contextlib

import pytest
import torch

from speckey import torch_private  # (makes thunder importable on new versions of torch)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def pytest_configure(config):
    torch.set_num_threads(1)


def pytest_runtest_setup(item):
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(params=["quick", "plain"])
def both_ways(request):
    """With torch's private functions, and without."""
    with torch_private.plain_way() if request.param == "plain" else contextlib.nullcontext():
        yield
