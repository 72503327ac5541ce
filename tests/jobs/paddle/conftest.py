"""Tests that run jobs: they need another world than tests/ranks/paddle has, or end one."""

from __future__ import annotations

import time

import pytest
from paddlempi.testing import launch

pytest.importorskip("paddle", reason="paddle is not installed")

_BEGAN = time.time()


def pytest_sessionfinish() -> None:
    """Sweep the segments that Open MPI leaves without a launcher. ``launch`` sweeps jobs only."""
    launch.sweep(_BEGAN)
