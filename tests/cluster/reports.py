"""Collects the reports of the ranks of one run (see ranks_report.py)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hosts import Hosts

HERE = Path(__file__).parent


@contextmanager
def directory(hosts: Hosts) -> Iterator[Path]:
    """A directory for the reports of one run, on the file system that all the hosts share."""
    with tempfile.TemporaryDirectory(dir=hosts.scratch) as place:
        yield Path(place)


def read(place: Path) -> list[dict[str, Any]]:
    """Return all reports, sorted by rank. A report without a rank counts as rank 0's."""
    reports = [json.loads(path.read_text()) for path in place.glob("*.json")]
    return sorted(reports, key=lambda report: report.get("rank", 0))
