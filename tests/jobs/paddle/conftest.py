"""Tests that run jobs: they need another world than tests/ranks/paddle has, or end one."""

from __future__ import annotations

import pytest
from sweeping import pytest_sessionfinish

__all__ = ["pytest_sessionfinish"]

pytest.importorskip("paddle", reason="paddle is not installed")
