"""Elastic jobs on two hosts: under two MPIs the others go on without a rank that was killed."""

from __future__ import annotations

from typing import Any

import pytest
import reports
from hosts import Hosts
from mpis import MPI

LAYOUT = (("h1", 2), ("h2", 1))  # rank 1 is lost: one rank is left on each host

LEFT_ALONE = {"openmpi": ["--with-ft", "ulfm"], "impi": ["-disable-auto-cleanup"]}
"""The options by which a launcher leaves ranks alone when one is killed."""


def left_by_rank_1(mpi: MPI, hosts: Hosts, program: str) -> list[dict[str, Any]]:
    """Run a program whose rank 1 is killed in step 5. Return what the others report."""
    mpirun, *arguments = mpi.mpirun(hosts, LAYOUT)
    with reports.directory(hosts) as place:
        started = [mpi.python, reports.HERE / program, place, "kill"]
        command = [mpirun, *LEFT_ALONE[mpi.name], *arguments, *started]
        result = hosts.execute(command, timeout=60, env=mpi.environment())
        found = reports.read(place)
    assert [report["rank"] for report in found] == [0, 2], f"{found}\n{result}"
    assert "rank 1 (process " in result.err, str(result)
    assert " died: 2 ranks go on with step 5 after " in result.err, str(result)
    return found


@pytest.mark.parametrize("mpi", LEFT_ALONE, indirect=True)
def test_a_rank_is_killed(mpi: MPI, hosts: Hosts) -> None:
    for report in left_by_rank_1(mpi, hosts, "ranks_elastic.py"):
        assert "error" not in report, report
        left = {"size": 2, "local": 1, "generation": 1, "total": 5 * 9 + 15 * 4}
        assert {name: report[name] for name in left} == left, report


@pytest.mark.parametrize("mpi", ["openmpi"], indirect=True)
def test_a_rank_of_torch_is_killed(mpi: MPI, hosts: Hosts) -> None:
    if not reports.has(mpi, "torch"):
        pytest.skip("torch is not installed")
    one, other = left_by_rank_1(mpi, hosts, "ranks_elastic_torch.py")
    for name, value in {"size": 2, "done": 20, "generation": 1, "weights": one["weights"]}.items():
        assert one[name] == other[name] == value, (one, other)


@pytest.mark.parametrize("mpi", ["mpich"], indirect=True)
def test_an_error_says_what_would_go_on(mpi: MPI, hosts: Hosts) -> None:
    """MPICH makes no communicator after a death. Its mpirun may end all, so none is killed here."""
    with reports.directory(hosts) as place:
        program = [reports.HERE / "ranks_elastic.py", place, "raise"]
        result = mpi.run(hosts, LAYOUT, program, timeout=60)
        found = reports.read(place)
    kinds = [report["error"] for report in found]
    assert kinds == ["UnsupportedError", "ValueError", "UnsupportedError"], f"{found}\n{result}"
    for report in (found[0], found[2]):
        assert "under MPICH cannot go on after a death" in report["message"], found
        assert "Open MPI's --with-ft ulfm" in report["message"], found
        assert "Intel MPI's -disable-auto-cleanup" in report["message"], found
