"""Programs as users write them, with the frameworks' trainers, each a job of its own.

The programs know nothing of the tests but ``report.py``; ``programs.py`` starts them.
"""

from __future__ import annotations

import time

from paddlempi.testing import launch

_BEGAN = time.time()


def pytest_sessionfinish() -> None:
    """Open MPI leaves its segment where no launcher is; ``launch`` sweeps after jobs alone."""
    launch.sweep(_BEGAN)
