"""A hook for a conftest. It removes what Open MPI leaves in /dev/shm, at the end of the session."""

from __future__ import annotations

import time

from paddlempi.testing import launch

_BEGAN = time.time()


def pytest_sessionfinish() -> None:
    """Sweep the segments that Open MPI leaves without a launcher. ``launch`` sweeps jobs only."""
    launch.sweep(_BEGAN)
