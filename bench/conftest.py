"""One thread: what is measured is the way to the program, not the program."""

import pytest
import torch

from bench.ways import WAYS


def pytest_configure(config):
    torch.set_num_threads(1)


@pytest.fixture(params=list(WAYS))
def way(request):
    return request.param


def pytest_benchmark_update_machine_info(config, machine_info):
    """Words instead of names and addresses."""
    keep = {k: machine_info[k] for k in ("machine", "python_version", "system") if k in machine_info}
    cpu = machine_info.get("cpu", {})
    machine_info.clear()
    machine_info.update(keep, cpu={"brand_raw": cpu.get("brand_raw", "unknown")}, torch=torch.__version__)


def pytest_benchmark_update_commit_info(config, commit_info):
    commit_info.clear()
