"""Tests of CUDA tensors without a GPU in one process, or as jobs of their own."""

from __future__ import annotations

import time

import fake_driver
import pytest
from paddlempi.testing import launch


def pytest_configure(config: pytest.Config) -> None:
    fake_driver.use()


_BEGAN = time.time()


def pytest_sessionfinish() -> None:
    """Open MPI leaves its segment where no launcher is; ``launch`` sweeps after jobs alone."""
    launch.sweep(_BEGAN)
