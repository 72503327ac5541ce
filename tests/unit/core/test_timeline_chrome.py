"""Timelines as Chrome's JSON: every event is valid, and slices nest."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from paddlempi.trace import chrome
from paddlempi.trace.model import ASYNC, MESSAGE
from timelines_drawn import at, message, operation, timeline, together, training

KEYS = {
    "X": {"ph", "pid", "tid", "ts", "dur", "name", "cat", "args"},
    "M": {"ph", "pid", "tid", "name", "args"},
    "i": {"ph", "s", "pid", "tid", "ts", "name", "cat"},
    "s": {"ph", "id", "pid", "tid", "ts", "name", "cat"},
    "f": {"ph", "bp", "id", "pid", "tid", "ts", "name", "cat"},
}


def written(made: Any, path: Path, **options: Any) -> dict[str, Any]:
    """Write a timeline, read it again, and look at every event."""
    chrome.write(made, path, **options)
    found: dict[str, Any] = json.loads(path.read_text())
    check(found["traceEvents"])
    return found


def check(events: list[dict[str, Any]]) -> None:
    """What Perfetto needs: known fields, slices that nest in each track, arrows with two ends."""
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    arrows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    for event in events:
        assert event.keys() == KEYS[event["ph"]], event
        assert isinstance(event["name"], str) and event["name"]
        if "ts" in event:
            assert event["ts"] >= 0
        if event["ph"] == "X":
            begin, last = (round(1000 * event[key]) for key in ("ts", "dur"))
            assert last >= 1
            tracks[event["pid"], event["tid"]].append((begin, begin + last))
        if event["ph"] in "sf":
            arrows[event["id"]].append(event)
    assert tracks.keys() <= named
    for track in tracks.values():
        assert [begin for begin, _ in track] == sorted(begin for begin, _ in track)
        open_ones: list[int] = []
        for begin, end in track:
            while open_ones and open_ones[-1] <= begin:
                open_ones.pop()
            assert not open_ones or end <= open_ones[-1], "a slice reaches over the one around it"
            open_ones.append(end)
    for ends in arrows.values():
        first, second = ends
        assert (first["ph"], second["ph"]) == ("s", "f") and first["ts"] <= second["ts"]
        for end in ends:
            when = round(1000 * end["ts"])
            assert any(b <= when < e for b, e in tracks[end["pid"], end["tid"]]), "outside a slice"


def of(found: dict[str, Any], rank: int, name: str) -> list[dict[str, Any]]:
    return [e for e in found["traceEvents"] if e["pid"] == rank and e["name"] == name]


def test_a_training(tmp_path: Path) -> None:
    found = written(training(4, 20), tmp_path / "t.json")
    assert found["baseTimeNanoseconds"] == at(0.001)
    assert len(of(found, 1, "rank 1 comes 2.0 ms late")) == 2
    assert len(of(found, 2, "waits for rank 1")) == 2
    assert len(of(found, 3, "wait for all_reduce")) == 20
    [name] = of(found, 3, "process_name")
    assert name["args"] == {"name": "rank 3 (host1, process 1003)"}
    arrows = [e for e in found["traceEvents"] if e["ph"] == "s"]
    assert len(arrows) == 20 and {e["pid"] for e in arrows} == {0}


def test_a_collective_says_for_whom_it_waited_and_what_it_moved(tmp_path: Path) -> None:
    rows = together("all_gather", 7, [100, 150, 700], 900, dtype=0, algorithm=0, count=8)
    found = written(timeline(3, rows), tmp_path / "t.json")
    [call], [waits], [moves] = (
        of(found, 0, n) for n in ("all_gather", "waits for rank 2", "moves")
    )
    assert (call["ts"], call["dur"]) == (99.999, 800.0)
    assert (waits["ts"], waits["dur"]) == (99.999, 600.0)
    assert (moves["ts"], moves["dur"]) == (699.999, 200.0)
    assert call["args"] == {
        "Collective name": "all_gather",
        "In msg nelems": 8,
        "Out msg nelems": 24,
        "Process Group Name": "c0ffee",
        "Process Group Ranks": "[0, 1, 2]",
        "Group size": 3,
        "dtype": "float32",
        "algorithm": "mapped",
        "outcome": "ok",
        "seq": 7,
        "bytes": 32,
        "number": 1,
    }
    assert not of(found, 2, "waits for rank 2")


def test_lanes_hold_what_is_under_way_at_once(tmp_path: Path) -> None:
    rows = [operation(0, "all_reduce", 10 * i, 500 + i, seq=i, flags=ASYNC) for i in range(1, 6)]
    rows += [operation(0, "all_reduce", 600, 700, seq=6, flags=ASYNC, waited=650)]
    found = written(timeline(1, rows), tmp_path / "t.json")
    lanes = [e["tid"] for e in of(found, 0, "all_reduce")]
    assert sorted(lanes) == [1, 1, 2, 3, 4, 5]
    assert [e["tid"] for e in of(found, 0, "wait for all_reduce")] == [0]


def test_a_call_that_took_no_time_is_seen(tmp_path: Path) -> None:
    rows = [operation(0, "all_reduce", 5, 5, seq=1), operation(0, "all_reduce", 6, 6.4, seq=2)]
    found = written(timeline(1, rows), tmp_path / "t.json")
    assert [e["dur"] for e in of(found, 0, "all_reduce")] == [0.001, 0.4]


def test_a_rank_that_died_and_what_was_under_way(tmp_path: Path) -> None:
    rows = together("all_reduce", 1, [10, 20], 40)
    rows += [operation(0, "all_reduce", 100, 0, seq=2)]
    gone = {"state": "ended", "ended": at(90)}
    found = written(timeline(2, rows, rank1=gone), tmp_path / "t.json")
    [mark] = of(found, 1, "rank 1 died")
    assert mark["ts"] == 89.999
    in_order = written(timeline(2, rows[:2], rank1=gone), tmp_path / "in_order.json")
    assert len(of(in_order, 1, "rank 1 ended")) == 1
    [open_one] = of(found, 0, "all_reduce (under way)")
    assert open_one["dur"] == 100_000 - 100
    [waits] = of(found, 0, "waits for rank 1")
    assert (waits["ts"], waits["dur"]) == (open_one["ts"], open_one["dur"])


def test_words_of_others_are_only_words(tmp_path: Path) -> None:
    made = timeline(1, [], rank0={"host": 'a"b\\ <script>\n\u2028'})
    [name] = of(written(made, tmp_path / "t.json"), 0, "process_name")
    assert name["args"]["name"] == 'rank 0 (a"b\\ <script>\n\u2028, process 1000)'


def test_messages_are_joined_in_their_order(tmp_path: Path) -> None:
    rows = message(0, 1, 100, 150) + message(0, 1, 200, 250) + message(1, 0, 120, 160)
    rows += message(0, 1, 300, 350, tag=6)
    # The send of this one was not recorded.
    rows += [operation(1, "recv", 10, 20, flags=MESSAGE, peers=(0, -1), tags=(5, 0))]
    found = written(timeline(2, rows), tmp_path / "t.json")
    ends = defaultdict(list)
    for event in found["traceEvents"]:
        if event["ph"] in "sf":
            ends[event["id"]].append((event["pid"], round(event["ts"])))
    assert sorted(map(tuple, ends.values())) == [
        ((0, 100), (1, 152)),
        ((0, 200), (1, 252)),
        ((0, 300), (1, 352)),
        ((1, 120), (0, 162)),
    ]


def test_what_is_too_large_is_thinned_by_a_rule_that_the_file_names(tmp_path: Path) -> None:
    rows = [operation(0, "barrier", 10 * i, 10 * i + i / 1000, seq=i) for i in range(1, 5000)]
    rows += [operation(0, "barrier", 60_000, 60_000.001, seq=5000, outcome=1)]
    found = written(timeline(1, rows), tmp_path / "t.json", limit=400_000)
    assert (tmp_path / "t.json").stat().st_size < 400_000
    [rule] = found["metadata"]["notes"]
    kept = of(found, 0, "barrier")
    assert rule.startswith("calls of at most 3.") and rule.endswith(
        f"{5000 - len(kept):,} of 5,000"
    )
    assert len(kept) > 1000 and kept[-1]["args"]["outcome"] == "timeout"
    assert min(e["dur"] for e in kept[:-1]) > float(rule.split()[4])


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "t.json").mkdir()
    with pytest.raises(OSError):
        chrome.write(training(1, 1), tmp_path / "t.json")
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


def test_an_empty_recording(tmp_path: Path) -> None:
    made = timeline(2, [], rank1={"problem": "the files of process 7 belong to another user"})
    found = written(made, tmp_path / "t.json")
    assert found["baseTimeNanoseconds"] == at(0.001)
    names = [e["args"]["name"] for e in found["traceEvents"] if e["name"] == "process_name"]
    assert names[1].endswith(": not recorded: the files of process 7 belong to another user")
