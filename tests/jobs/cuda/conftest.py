"""Tests of CUDA tensors without a GPU, in one process or as jobs."""

from __future__ import annotations

import fake_driver
import pytest
from sweeping import pytest_sessionfinish

__all__ = ["pytest_sessionfinish"]


def pytest_configure(config: pytest.Config) -> None:
    fake_driver.use()
