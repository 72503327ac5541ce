"""python -m paddlempi tune on two hosts, and jobs that begin with its table."""

from __future__ import annotations

import json

import reports
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
        program = [reports.HERE / "ranks_tune.py", place, file, str(BYTES)]
        result = openmpi.run(hosts, LAYOUT, program, timeout=60)
        found = reports.read(place)
    assert result.code == 0 and not result.timed_out, str(result)
    assert "RuntimeWarning" not in result.err
    rows = len(table["rows"])
    expected = {"ways": [slow] * 3, "sum": 8.0, "rows": rows}
    assert [report | expected for report in found] == found and len(found) == 2, found
