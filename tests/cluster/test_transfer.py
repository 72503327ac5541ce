"""Two hosts with a slow wire: a collective is given up while its data is on the way."""

from __future__ import annotations

import itertools

import pytest
import reports
from conftest import ALL
from hosts import Hosts
from mpis import MPI, NAMES

LAYOUTS = {"2x1": (("h1", 1), ("h2", 1)), "2x2": (("h1", 2), ("h2", 2))}
# What MPI does with a message that is given up depends on it; the ways of a collective do not.
SOME = [("openmpi", "2x2"), ("mpich", "2x1"), ("impi", "2x1")]
RATE = "100mbit"  # 16 MiB take more than a second


@pytest.mark.parametrize(
    ("mpi", "layout"), list(itertools.product(NAMES, LAYOUTS)) if ALL else SOME, indirect=["mpi"]
)
def test_a_transfer_that_one_rank_gives_up(mpi: MPI, hosts: Hosts, layout: str) -> None:
    with hosts.slow(RATE), reports.directory(hosts) as place:
        program = [reports.HERE / "ranks_transfer.py", place]
        result = mpi.run(hosts, LAYOUTS[layout], program, timeout=100)
        found = reports.read(place)
    assert result.code == 0 and not result.timed_out, str(result)
    first, *others = [report["facts"] for report in found]
    raised = {"deadline": "TimeoutError", "interrupt": "KeyboardInterrupt"}
    for what, facts in first.items():
        assert facts["error"] == raised[what.split()[0]], (what, found)
        assert facts["seconds"] < 0.5 + 2, (what, found)
        assert facts["next"]["error"] == "GroupBrokenError", (what, found)
    for report in others:
        for what, facts in report.items():
            # Rank 0 goes on with the transfer that it gave up, so the others may have the result.
            broken = [e for e in (facts, facts["next"]) if e["error"]]
            assert facts["error"] or facts["right"], (what, found)
            assert broken and broken[0]["error"] == "GroupBrokenError", (what, found)
            assert broken[0]["ranks"] == [0] and broken[0]["seconds"] < 6, (what, found)
    assert {facts["world"] for report in found for facts in report["facts"].values()} == {
        len(found)
    }, found
