"""Three hosts, on which a rank is late: the others report what it does (docs/reliability.md)."""

from __future__ import annotations

import re

import reports
from hosts import Hosts
from mpis import MPI

LAYOUT = (("h1", 1), ("h2", 2), ("h3", 1))


def test_late_ranks_are_named_with_what_they_do(openmpi: MPI, three: Hosts) -> None:
    result = openmpi.run(three, LAYOUT, [reports.HERE / "ranks_slow.py"], timeout=90)
    assert result.code == 0 and not result.timed_out, str(result)
    lines = [line for line in result.text.splitlines() if "has waited for" in line]

    def about(what: str) -> list[str]:
        found = [line for line in lines if f"s in {what}" in line]
        # Rank 2 does not hear of the first report while rank 1 is stopped, its link to the others.
        assert 1 <= len(found) < 3, result
        return found

    last = r"its last operation was barrier, number \d+ on the same group, which ended \d"
    stopped = r"has not come and is stalled: its process \d+ is stopped by a signal; "
    for line in about("all_reduce(float32[11], SUM)"):
        assert re.search(f"rank 1 on host h2 {stopped}{last}", line), line
    for line in about("all_reduce(float32[12], SUM)"):
        assert re.search(f"rank 1 on host h2 has not come: {last}", line), line
    for line in about("all_reduce(float32[13], SUM)"):
        silent = r"rank\(s\) \[3\] of its host were asked, and no process answered, though the host"
        assert re.search(f"rank 3 on host h3 has not come and is stalled: {silent}", line), line
    for line in about("new_group(ranks=[0 1 2 3])"):
        assert "rank 3 on host h3 has not called it: its last operation was barrier" in line, line
