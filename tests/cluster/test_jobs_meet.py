"""Two jobs that meet over a network. Open MPI cannot join jobs; docs/jobs.md."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import reports
from hosts import Hosts
from mpis import MPI

ADDRESS = "h1:45123"
LAYOUTS = {"accept": (("h1", 1), ("h2", 1)), "connect": (("h2", 1),)}


@pytest.mark.parametrize("mpi", ["mpich"], indirect=True)
def test_jobs_meet(mpi: MPI, hosts: Hosts) -> None:
    with reports.directory(hosts) as place, ThreadPoolExecutor(2) as pool:
        program = [reports.HERE / "ranks_jobs_meet.py", place]
        jobs = {
            role: pool.submit(mpi.run, hosts, layout, [*program, role, ADDRESS], timeout=90)
            for role, layout in LAYOUTS.items()
        }
        results = {role: job.result() for role, job in jobs.items()}
        found = sorted(reports.read(place), key=lambda report: int(report["place"]))
    for role, result in results.items():
        assert result.code == 0 and not result.timed_out, f"{role}: {result}"
    told = {
        "accept": [[0, ["connect", 0]]],
        "connect": [[0, ["accept", 0]], [1, ["accept", 1]]],
    }
    assert [(r["role"], r["rank"]) for r in found] == [
        ("accept", 0),
        ("accept", 1),
        ("connect", 0),
    ]
    for number, report in enumerate(found):
        assert report["place"] == number
        assert report["remote"] == (1 if report["role"] == "accept" else 2)
        assert report["heard"] == told[report["role"]]
        assert report["sums"] == [6, 6]
        assert report["put"] == [(number - 1) % 3] * 2
