"""Programs as users write them, with the trainers of frameworks. Every program is a job.

Of the tests, the programs import only ``report.py``. ``programs.py`` starts them.
"""

from __future__ import annotations

import time

from paddlempi.testing import launch

_BEGAN = time.time()


def pytest_sessionfinish() -> None:
    """Sweep the segments that Open MPI leaves without a launcher. ``launch`` sweeps jobs only."""
    launch.sweep(_BEGAN)
