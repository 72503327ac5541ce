"""Tests of CUDA tensors on a machine without a GPU: all of them meet the fake driver.

``ranks`` holds what every rank runs in lock-step (``mpirun -np N pytest --mpi tests/cuda/ranks``);
what stands beside it runs in one process, or starts jobs of its own.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from paddlempi.testing import launch

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "build" / "libcuda_fake.so"

# The values, layouts and jobs of the tests on host memory serve here, too.
sys.path += [str(ROOT / "tests" / "ranks"), str(ROOT / "tests" / "faults")]


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("PADDLEMPI_CUDA", str(DRIVER))
    if not Path(os.environ["PADDLEMPI_CUDA"]).is_file():
        raise pytest.UsageError(
            f"there is no driver at {os.environ['PADDLEMPI_CUDA']}: make build/libcuda_fake.so"
        )


_BEGAN = time.time()


def pytest_sessionfinish() -> None:
    """Open MPI leaves its segment where no launcher is; ``launch`` sweeps after jobs alone."""
    launch.sweep(_BEGAN)
