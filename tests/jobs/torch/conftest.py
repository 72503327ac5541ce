"""Tests that run jobs: they need another world than tests/ranks/torch has, or end one."""

from __future__ import annotations

import pytest
from sweeping import pytest_sessionfinish

__all__ = ["pytest_sessionfinish"]

pytest.importorskip("torch", reason="torch is not installed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start PyTorch's own suite first. It takes longest, and the other tests run meanwhile."""
    items.sort(key=lambda item: item.path.name != "test_pytorch_suite.py")
