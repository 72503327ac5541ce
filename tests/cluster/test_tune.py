"""What is tuned on two hosts, python -m paddlempi tune, and jobs that begin with its table."""

from __future__ import annotations

import json

import pytest
import reports
import requirements
from hosts import Hosts
from mpis import MPI

LAYOUT = reports.LAYOUTS["1 and 1"]
BYTES = 256 << 10


def test_a_job_begins_with_what_was_tuned(openmpi: MPI, hosts: Hosts) -> None:
    with reports.directory(hosts) as place:
        file = place / "folder" / "table"
        words = ["-m", "paddlempi", "tune", "--output", file, "--sizes", f"16K,{BYTES}"]
        tuned = openmpi.run(hosts, LAYOUT, [str(word) for word in words], timeout=60)
        assert tuned.code == 0 and not tuned.timed_out, str(tuned)
        assert f"rows: {file}" in tuned.out and "256 KiB" in tuned.out
        table = json.loads(file.read_text())
        assert table["format"] == 1 and table["for"]["shape"] == "2x1"
        assert [path.name for path in file.parent.iterdir()] == ["table"]

        # The job takes whatever the table says: the way that is the slowest one here.
        (row,) = [
            row
            for row in table["rows"]
            if (row["operation"], row["half"], row["from"]) == ("all_reduce", False, BYTES)
        ]
        assert all(row["times"][:1]) and len(row["times"]) == len(row["ways"]) > 2
        slow = [way for way in row["ways"] if way not in (row["ways"][0], row["best"])][-1]
        row["best"] = slow
        file.write_text(json.dumps(table))
        program = [reports.HERE / "ranks_tune.py", place, file, str(BYTES), "3"]
        result = openmpi.run(hosts, LAYOUT, program, timeout=60)
        found = reports.read(place)
    assert result.code == 0 and not result.timed_out, str(result)
    assert "RuntimeWarning" not in result.err
    rows = len(table["rows"])
    expected = {"ways": [slow] * 3, "sum": 8.0, "rows": rows}
    assert [report | expected for report in found] == found and len(found) == 2, found


def test_what_distance_makes_of_ways(openmpi: MPI, hosts: Hosts) -> None:
    """One message each way takes a latency, which the last rank does not see; two in turn, two."""
    if reason := requirements.delay_missing():
        pytest.skip(reason)
    delay = 4e-3
    with hosts.slow(rate="10gbit", delay=delay), reports.directory(hosts) as place:
        program = [reports.HERE / "ranks_tune.py", place, "none", str(BYTES), "110"]
        result = openmpi.run(hosts, LAYOUT, program, timeout=60)
        found = reports.read(place)
    assert result.code == 0 and not result.timed_out, str(result)
    assert len(found) == 2 and found[0]["tuned"] == found[1]["tuned"], found
    (row,) = found[0]["tuned"]
    times = dict(zip(row["ways"], row["times"], strict=True))
    assert row["best"] == "inline" and times["inline"] > 0.8 * delay, row
    assert times["doubling, 60 KiB x 12"] > 1.6 * delay, row
    assert [report["ways"][-1] for report in found] == [row["best"]] * 2
    assert [report["sum"] for report in found] == [2.0**110] * 2
