"""Tests that run jobs: they need another world than tests/ranks/torch has, or end one."""

from __future__ import annotations

import time

import pytest
from paddlempi.testing import launch

pytest.importorskip("torch", reason="torch is not installed")

_BEGAN = time.time()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start PyTorch's own suite first. It takes longest, and the other tests run meanwhile."""
    items.sort(key=lambda item: item.path.name != "test_pytorch_suite.py")


def pytest_sessionfinish() -> None:
    """Sweep the segments that Open MPI leaves without a launcher. ``launch`` sweeps jobs only."""
    launch.sweep(_BEGAN)
