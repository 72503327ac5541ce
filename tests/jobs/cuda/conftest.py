"""Tests of CUDA tensors in one process or as jobs. test_ipc.py also runs on a GPU."""

from __future__ import annotations

import fake_driver
import pytest
from sweeping import pytest_sessionfinish

__all__ = ["pytest_sessionfinish"]


def pytest_configure(config: pytest.Config) -> None:
    fake_driver.use(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    fake_driver.skip_without(items)
