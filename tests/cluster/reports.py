"""Collects the reports of the ranks of one run (see ranks_report.py)."""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hosts import Hosts
from mpis import MPI

HERE = Path(__file__).parent
LAYOUTS = {"1 and 1": (("h1", 1), ("h2", 1)), "2 and 2": (("h1", 2), ("h2", 2))}
"""On how many ranks of two hosts a program runs, by the name that a test shows."""


@functools.cache
def has(mpi: MPI, package: str) -> bool:
    """Whether the environment of an MPI has a package."""
    asked = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    return subprocess.run([mpi.python, "-c", asked], check=False).returncode == 0


@contextmanager
def directory(hosts: Hosts) -> Iterator[Path]:
    """A directory for the reports of one run, on the file system that all the hosts share."""
    with tempfile.TemporaryDirectory(dir=hosts.scratch) as place:
        yield Path(place)


def read(place: Path) -> list[dict[str, Any]]:
    """Return all reports, sorted by rank. A report without a rank counts as rank 0's."""
    reports = [json.loads(path.read_text()) for path in place.glob("*.json")]
    return sorted(reports, key=lambda report: report.get("rank", 0))


def of_all(
    mpi: MPI, hosts: Hosts, layout: str, program: str, timeout: float = 120
) -> list[dict[str, Any]]:
    """Run a program of this folder on a layout. It ends well, and each rank reports once."""
    with directory(hosts) as place:
        result = mpi.run(hosts, LAYOUTS[layout], [HERE / program, place], timeout=timeout)
        found = read(place)
    assert len(found) == sum(ranks for _, ranks in LAYOUTS[layout]), str(result)
    assert result.code == 0 and not result.timed_out, str(result)
    return found
