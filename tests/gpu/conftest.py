"""Fixtures of the tests that need a real GPU: ``mpirun -np N pytest --mpi tests/gpu``.

The tests cover what the fake driver of tests/jobs/cuda cannot show: the frameworks' streams and
allocators. The ranks share the devices of the machine. Without a device every test is skipped.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from paddlempi.testing import World

# By default JAX takes three quarters of a GPU's memory. The other ranks and frameworks need some.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _why_not() -> str:
    """Return why no test can run here, or an empty string if there is a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no CUDA driver"
    count = ctypes.c_int(0)
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return "" if code == 0 and count.value > 0 else f"the CUDA driver sees no GPU (error {code})"


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    """Skip the test if there is no GPU."""
    reason = _why_not()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def dist(gpu: None, mpi_world: World) -> ModuleType:
    """The library, initialised."""
    return mpi_world.dist


@pytest.fixture(scope="session")
def torch(gpu: None, mpi_world: World) -> Any:
    """torch with CUDA. The current device is this rank's."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    import torch

    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} has no CUDA, or none that fits the driver")
    torch.cuda.set_device(mpi_world.local_rank % torch.cuda.device_count())
    return torch


@pytest.fixture(scope="session")
def tdist(torch: Any, mpi_world: World) -> Iterator[ModuleType]:
    """``torch.distributed`` with a default group over MPI."""
    import paddlempi.torch  # noqa: F401 (the entry point does this if the package is installed)
    import torch.distributed as tdist

    tdist.init_process_group("mpi")
    yield tdist
    tdist.destroy_process_group()
