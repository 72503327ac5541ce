"""Windows over two hosts, one of which has two ranks: mapped memory beside messages."""

from __future__ import annotations

import pytest
import reports
from conftest import ALL
from hosts import Hosts
from mpis import MPI, NAMES


# Puts, locks and signals are messages, and test_hosts.py asks every MPI for those.
@pytest.mark.parametrize("mpi", NAMES if ALL else NAMES[1:2], indirect=True)
def test_windows(mpi: MPI, hosts: Hosts) -> None:
    with reports.directory(hosts) as place:
        program = [reports.HERE / "ranks_windows.py", place]
        result = mpi.run(hosts, (("h1", 2), ("h2", 1)), program, timeout=100)
        found = sorted(reports.read(place), key=lambda report: int(report["rank"]))
    assert len(found) == 3, str(result)
    assert [r["wrong"] for r in found] == [[]] * 3
    assert found[0]["seconds"] < 1.5, "the target has to end what it computes first"
    assert [r["interrupted"] for r in found] == ["KeyboardInterrupt", "", ""]
    alone = [r["alone"] for r in found]
    assert alone[0]["error"] == "TimeoutError", alone
    for facts in alone[1:]:
        assert facts["error"] == "GroupDestroyedError", alone
        assert facts["ranks"] == [0], alone
    assert result.code == 0 and not result.timed_out, str(result)
