"""Imports speckey before anything imports thunder, and keeps runs comparable."""

import pytest
import torch

import speckey  # noqa: F401  (makes thunder importable on new versions of torch)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def pytest_configure(config):
    torch.set_num_threads(1)


def pytest_runtest_setup(item):
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
