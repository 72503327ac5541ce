"""Two hosts with a slow wire: a rank dies, stops, or destroys the group, while 64 MiB are on it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import reports
from conftest import ALL
from expectations import Reports
from hosts import Hosts, Result
from mpis import MPI, NAMES

LAYOUTS = {"2x1": (("h1", 1), ("h2", 1)), "2x2": (("h1", 2), ("h2", 2))}
# What MPI does with messages that nobody takes depends on it; the ways of a collective do not.
SOME = [("openmpi", "2x1"), ("mpich", "2x2"), ("impi", "2x1")]
every_mpi = pytest.mark.parametrize(
    ("mpi", "layout"), list(itertools.product(NAMES, LAYOUTS)) if ALL else SOME, indirect=["mpi"]
)
RATE = "200mbit"  # 64 MiB take 2.7 s
KNOWN_WITHIN = 5.0  # seconds after a death; docs/reliability.md promises it
TOLD_WITHIN = 2.0  # seconds after a group was destroyed; docs/errors.md promises it
LATE = 3.0  # on this crowded machine
LIMIT = 5.0  # in ranks_middle.py


def run(
    mpi: MPI, hosts: Hosts, layout: str, how: Sequence[str], options: Sequence[str] = ()
) -> tuple[Result, Reports]:
    mpirun, *arguments = mpi.mpirun(hosts, LAYOUTS[layout])
    with hosts.slow(RATE), reports.directory(hosts) as place:
        program = [mpi.python, reports.HERE / "ranks_middle.py", place, *how]
        result = hosts.execute(
            [mpirun, *options, *arguments, *program], timeout=40, env=mpi.environment()
        )
        return result, reports.read(place)


@every_mpi
def test_a_rank_that_stops_or_destroys_the_group(mpi: MPI, hosts: Hosts, layout: str) -> None:
    result, found = run(mpi, hosts, layout, ["stop", "destroy"])
    assert result.code == 0 and not result.timed_out and not result.strays, str(result)
    *others, last = [report["facts"] for report in found]
    stopped = len(others)
    for facts in (report["stop"] for report in others):
        assert facts["error"] == "TimeoutError" and facts["ranks"] == [stopped], found
        assert "the transfer did not end" in facts["message"], found
        assert f"rank(s) [{stopped}] do not answer" in facts["message"], found
        assert LIMIT <= facts["seconds"] < LIMIT + 0.5 + LATE, found
    # The stopped rank goes on later: its own deadline has passed, or it learns who was the first.
    assert last["stop"]["error"] in ("TimeoutError", "GroupBrokenError"), found
    for facts in (report["destroy"] for report in others):
        assert facts["error"] == "GroupBrokenError" and facts["ranks"] == [stopped], found
        assert facts["time"] - last["destroy"]["time"] < TOLD_WITHIN + LATE, found
    assert last["destroy"]["error"] == "GroupDestroyedError", found
    for facts in (fact for report in found for fact in report["facts"].values()):
        assert facts["next"]["error"] in ("GroupBrokenError", "GroupDestroyedError"), found
        assert facts["world"] == len(found), found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rank_that_is_killed_is_named(openmpi: MPI, hosts: Hosts, layout: str) -> None:
    result, found = run(openmpi, hosts, layout, ["kill"], ["--with-ft", "ulfm"])
    # Its launcher sometimes stays when all ranks have ended.
    assert not result.strays, str(result)
    *others, killed = found
    assert len(others) == killed["rank"], f"{found}\n{result}"
    for facts in (report["facts"]["kill"] for report in others):
        assert facts["error"] == "PeerDiedError" and facts["ranks"] == [killed["rank"]], found
        assert facts["time"] - killed["time"] < KNOWN_WITHIN + LATE, found


@every_mpi
def test_a_rank_that_is_killed_ends_the_job(mpi: MPI, hosts: Hosts, layout: str) -> None:
    """So do the launchers unless told otherwise."""
    result, found = run(mpi, hosts, layout, ["kill"])
    assert result.code != 0 and not result.timed_out and not result.strays, str(result)
    assert result.ended - found[-1]["time"] < 10 + LATE, str(result)
