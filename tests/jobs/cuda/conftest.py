"""Tests of CUDA tensors without a GPU, in one process or as jobs."""

from __future__ import annotations

import time

import fake_driver
import pytest
from paddlempi.testing import launch


def pytest_configure(config: pytest.Config) -> None:
    fake_driver.use()


_BEGAN = time.time()


def pytest_sessionfinish() -> None:
    """Sweep the segments that Open MPI leaves without a launcher. ``launch`` sweeps jobs only."""
    launch.sweep(_BEGAN)
