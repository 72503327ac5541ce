"""Jobs of their own for what needs another world than tests/paddle_ranks has, or ends one.

``job.py`` and ``ranks_tools.py`` are those of tests/faults.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from paddlempi.testing import launch

pytest.importorskip("paddle", reason="paddle is not installed")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "faults"))

_BEGAN = time.time()


def pytest_sessionfinish() -> None:
    """Open MPI leaves its segment where no launcher is; ``launch`` sweeps after jobs alone."""
    launch.sweep(_BEGAN)
