"""Windows over two hosts, one of which has two ranks: mapped memory beside messages."""

from __future__ import annotations

import reports
from hosts import Hosts
from mpis import MPI


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
