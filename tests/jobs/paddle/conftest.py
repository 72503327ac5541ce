"""Jobs of their own for what needs another world than tests/ranks/paddle has, or ends one."""

from __future__ import annotations

import time

import pytest
from paddlempi.testing import launch

pytest.importorskip("paddle", reason="paddle is not installed")

_BEGAN = time.time()


def pytest_sessionfinish() -> None:
    """Open MPI leaves its segment where no launcher is; ``launch`` sweeps after jobs alone."""
    launch.sweep(_BEGAN)
