"""``trace draw``: recordings in, pictures out, and what cannot be read is named."""

from __future__ import annotations

import json
from pathlib import Path

import parts_made
import pytest
import rings_made
from paddlempi.cli import main

MS = 1_000_000


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Two ranks, of which rank 1 comes 3 ms late to the second call."""
    rows = [
        [
            {"number": 1, "seq": 1, "count": 8, "submitted": 1 * MS, "begun": 1, "ended": 9000},
            {"number": 2, "seq": 2, "count": 8, "submitted": at * MS, "begun": 1, **more},
        ]
        for at, more in ((2, {"arrived": 3 * MS, "ended": 3 * MS + 5000}), (5, {"ended": 5000}))
    ]
    ranks = [parts_made.rank(number, 2, rows[number]) for number in (0, 1)]
    return parts_made.write(tmp_path / "run.json", parts_made.part(*ranks))


def test_all_three(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [recorded.with_name(name) for name in ("chrome.json", "page.html", "picture.svg")]
    chrome, page, picture = map(str, files)
    chosen = ["-o", chrome, "--html", page, "--svg", picture]
    assert main(["trace", "draw", str(recorded), *chosen]) == 0
    said = capsys.readouterr()
    assert [line.split(": ")[0] for line in said.out.splitlines()] == [chrome, page, picture]
    assert said.err == ""
    names = {event["name"] for event in json.loads(files[0].read_text())["traceEvents"]}
    assert {"all_reduce", "waits for rank 1", "rank 1 comes 3.0 ms late"} <= names
    assert "Timeline: 2 ranks on 1 host" in files[1].read_text()
    assert "rank 1 comes 3 ms after the others" in files[2].read_text()


def test_dumps_of_a_dead_job_are_drawn(tmp_path: Path) -> None:
    traces = rings_made.write(
        tmp_path / "traces",
        rings_made.ring(0, 2, [rings_made.operation(1, 1.0)]),
        rings_made.ring(1, 2, []),
    )
    assert main(["trace", "draw", str(traces), "--svg", str(tmp_path / "picture.svg")]) == 0
    assert "under way" in (tmp_path / "picture.svg").read_text()


def test_what_is_damaged_is_named_and_the_rest_is_drawn(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = recorded.with_name("cut.json")
    cut.write_text(recorded.read_text()[:500])
    picture = recorded.with_name("picture.svg")
    assert main(["trace", "draw", str(recorded), str(cut), "--svg", str(picture)]) == 0
    assert str(cut) in capsys.readouterr().err and picture.exists()
    assert main(["trace", "draw", str(cut), "--svg", str(picture)]) == 1
    assert capsys.readouterr().err.startswith("trace draw: no rank can be read from ")


def test_nothing_is_drawn_over_the_recording(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = recorded.read_bytes()
    for wrong in (["-o", str(recorded)], []):
        assert main(["trace", "draw", str(recorded), *wrong]) == 2
        assert capsys.readouterr().err.startswith("trace draw: ")
    missing = recorded.parent / "missing" / "picture.svg"
    assert main(["trace", "draw", str(recorded), "--svg", str(missing)]) == 1
    assert "missing" in capsys.readouterr().err and recorded.read_bytes() == before
