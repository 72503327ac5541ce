"""``trace merge`` and ``trace report`` over files: several hosts, torch's profiler, bad input."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timelines
from paddlempi import trace
from paddlempi.cli import main
from paddlempi.trace import clock, kineto
from paddlempi.trace.model import Timeline
from parts_made import BEGAN, kind, part, rank, write
from timelines import MS, Job

BASE = 1_600_000_000 * 10**9  # of torch's stamps


def host_part(job: Job, host: int) -> dict[str, Any]:
    """Return what a recording of one host of a made-up job has as a file."""
    timeline = job.run()
    ranks = []
    for number, one in timeline.ranks.items():
        if one.host != f"h{host + 1}":
            continue
        o = timeline.operations[timeline.operations["rank"] == number]
        rows = []
        for row in o:
            since = {
                stamp: int(row[stamp] - row["submitted"]) + 1 if row[stamp] else 0
                for stamp in ("begun", "arrived", "ended")
            }
            rows.append(
                {
                    **{name: int(row[name]) for name in ("number", "seq", "count")},
                    "submitted": int(row["submitted"]) - BEGAN,
                    **since,
                }
            )
        size = len(timeline.ranks)
        ranks.append(rank(number, size, rows, [kind(algorithm="slices")], pid=one.pid))
    return part(*ranks, host=f"h{host + 1}", boot=f"boot-{host + 1}")


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """The recordings of two hosts, whose clocks are 3 s apart; rank 3 is 5 ms late."""
    job = Job(hosts=(2, 2), offset={1: 3_000 * MS}, drift={1: 20e-6}, late={3: 5 * MS})
    return [write(tmp_path / f"{name}.json", host_part(job, i)) for i, name in enumerate("ab")]


def test_parts_of_two_hosts_become_one_file(
    parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "both.json"
    assert main(["trace", "merge", *map(str, parts), "-o", str(output)]) == 0
    assert "Host h2: -3,000" in capsys.readouterr().err
    two, one = (clock.align(trace.load(*paths)) for paths in (parts, [output]))
    assert np.array_equal(two.operations, one.operations)
    assert json.loads(output.read_bytes())["clocks"][1]["error_ns"] < 100_000
    # Merged again, with one of them.
    again = tmp_path / "again.json"
    assert main(["trace", "merge", str(output), "-o", str(again)]) == 0
    assert np.array_equal(clock.align(trace.load(again)).operations, one.operations)


def test_the_report_of_two_hosts(parts: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "report", *map(str, parts)]) == 0
    text = capsys.readouterr().out
    assert "4 of 4 ranks on 2 hosts" in text
    assert "Rank 3 (h2) comes 5.0 ms late to each call; the other 3 wait for it." in text
    assert main(["trace", "report", "--json", str(parts[0].parent)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["late"][0]["rank"] == 3
    assert data["late"][0]["median"] == pytest.approx(5 * MS, abs=MS // 2)


@pytest.mark.parametrize("action", ["report", "merge"])
def test_what_cannot_be_read_is_named_and_the_rest_is_used(
    action: str, parts: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.json"
    cut.write_bytes(parts[1].read_bytes()[:2000])
    other = write(tmp_path / "other.json", {**json.loads(parts[1].read_bytes()), "version": 99})
    output = tmp_path / "out.json"
    to = ["-o", str(output)] if action == "merge" else []
    assert main(["trace", action, str(parts[0]), str(cut), str(other), *to]) == 0
    told = capsys.readouterr()
    said = " ".join((told.out + told.err).split())
    assert "cut.json" in said and "it was cut" in said
    assert "other.json" in said and "version is 99" in said
    assert "rank 2" in said, "of which there is no part"
    assert main(["trace", action, str(cut), *to]) == 1
    assert "cut.json" in capsys.readouterr().err


def test_a_part_is_not_overwritten(parts: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    before = parts[0].read_bytes()
    assert main(["trace", "merge", *map(str, parts), "-o", str(parts[0])]) == 2
    assert "is a part itself" in capsys.readouterr().err
    assert parts[0].read_bytes() == before


def torch_file(job: Job, number: int, jitter: int = 2_000) -> dict[str, Any]:
    """Return what torch's profiler would have written of a rank, in its host's clock."""
    timeline = job.run()
    host = int(timeline.ranks[number].host[1:]) - 1
    pid = timeline.ranks[number].pid
    o = timeline.operations[timeline.operations["rank"] == number]
    random = np.random.default_rng(number)
    events: list[Any] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": "py"}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}},
        {"ph": "i", "name": "Iteration", "pid": "Traces", "tid": "T", "ts": 5.0},
        "no object",
    ]
    for row in o:
        begin = int(row["submitted"] - random.integers(jitter))
        end = int(row["ended"] + random.integers(jitter))
        event = {"ph": "X", "cat": "cpu_op", "name": "mpi:all_reduce", "pid": pid, "tid": pid}
        times = {"ts": (begin - BASE) / 1e3, "dur": (end - begin) / 1e3}
        events.append({**event, **times, "args": {"Sequence number": 7}})
    events.append({"ph": "s", "id": 4, "pid": pid, "tid": pid, "ts": events[4]["ts"], "name": "f"})
    told = {"backend": "mpi", "rank": number, "world_size": len(timeline.ranks)}
    assert host >= 0
    return {"baseTimeNanoseconds": BASE, "distributedInfo": told, "traceEvents": events}


@pytest.fixture
def profiled(tmp_path: Path) -> tuple[Job, Timeline, Path]:
    """A timeline on one clock, and a folder with torch's files of its ranks."""
    job = Job(hosts=(1, 1), offset={1: 2_000 * MS}, noise=MS, algorithm="slices")
    folder = tmp_path / "torch"
    folder.mkdir()
    (folder / "h1_1.pt.trace.json").write_text(json.dumps(torch_file(job, 0)))
    packed = gzip.compress(json.dumps(torch_file(job, 1)).encode())
    (folder / "h2_2.pt.trace.json.gz").write_bytes(packed)
    (folder / "notes.txt").write_text("not ours")
    return job, clock.align(job.run()), folder


def test_files_of_torch_are_found_by_their_rank(profiled: tuple[Job, Timeline, Path]) -> None:
    job, timeline, folder = profiled
    found, left = kineto.read_folder(folder, timeline)
    assert [trace.rank for trace in found] == [0, 1] and left == []
    for one in found:
        agreed = kineto.agreement(timeline, one)
        assert agreed.spans == job.steps
        assert agreed.within(50_000) == 1.0 and agreed.within(0) < 1.0
        assert agreed.clocks < 50_000


def test_files_that_are_not_of_the_job_are_left_out(
    profiled: tuple[Job, Timeline, Path],
) -> None:
    job, timeline, folder = profiled
    good = torch_file(job, 0)
    told = good["distributedInfo"]
    for name, bad in {
        "a": {**good, "distributedInfo": {**told, "rank": 7}},
        "b": {**good, "distributedInfo": {**told, "rank": 1}},
        "c": {**good, "baseTimeNanoseconds": "x"},
        "d": {"traceEvents": 7},
        "e": {"traceEvents": []},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(bad))
    (folder / "f.json").write_text(json.dumps(good)[:-30])
    (folder / "g.json.gz").write_bytes(gzip.compress(b"{}" * 99)[:40])
    found, left = kineto.read_folder(folder, timeline)
    assert len(found) == 2
    assert [Path(text.split()[0]).name for text in left] == [
        *(f"{name}.json" for name in "abcdef"),
        "g.json.gz",
    ]
    assert "rank 7" in left[0] and "of another run" in left[1]
    # A file without the rank is of whose process it names.
    del good["distributedInfo"]
    (folder / "a.json").write_text(json.dumps(good))
    assert [one.rank for one in kineto.read_folder(folder, timeline)[0]] == [0, 0, 1]


def test_one_file_for_perfetto(profiled: tuple[Job, Timeline, Path], tmp_path: Path) -> None:
    job, timeline, folder = profiled
    traces, _ = kineto.read_folder(folder, timeline)
    [path] = kineto.write(timeline, traces, tmp_path / "merged.json")
    data = json.loads(path.read_bytes())
    events = data["traceEvents"]
    base = data["baseTimeNanoseconds"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == [
        *("rank 0 (h1, process 1000)", "rank 0: py"),
        *("rank 1 (h2, process 1001)", "rank 1: py"),
    ]
    spans = [e for e in events if e["name"] == "mpi:all_reduce"]
    ours = [e for e in events if e.get("args", {}).get("Collective name") == "all_reduce"]
    assert len(spans) == len(ours) == 2 * job.steps
    for number in (0, 1):
        [torch_pid] = [pid for pid, name in names.items() if name == f"rank {number}: py"]
        theirs = np.array(sorted(e["ts"] for e in spans if e["pid"] == torch_pid))
        mine = np.array(sorted(e["ts"] for e in ours if e["pid"] == number))
        assert (np.abs(theirs - mine) < 50).all()
        true = timelines.BEGAN + MS - base
        assert abs(mine[0] * 1e3 - true) < 10 * MS
    assert ours[0]["args"]["Group size"] == 2
    assert {"In msg nelems", "Out msg nelems", "dtype", "Process Group Name"} < ours[0][
        "args"
    ].keys()
    arrows = [e["id"] for e in events if e["ph"] == "s"]
    assert sorted(arrows) == ["0.4", "1.4"], "they are of different ranks"
    orders = {e["pid"] for e in events if e["name"] == "process_sort_index"}
    assert {e["pid"] for e in events} == orders


def test_a_file_for_each_rank(profiled: tuple[Job, Timeline, Path], tmp_path: Path) -> None:
    job, timeline, folder = profiled
    output = tmp_path / "hta"
    traces, _ = kineto.read_folder(folder, timeline)
    written = kineto.write(timeline, traces, output)
    assert [path.name for path in written] == ["rank-0.json.gz", "rank-1.json.gz"]
    bases = set()
    for number, path in enumerate(written):
        data = json.loads(gzip.decompress(path.read_bytes()))
        assert data["distributedInfo"]["rank"] == number
        bases.add(data["baseTimeNanoseconds"])
        names = [e["name"] for e in data["traceEvents"]]
        assert names.count("mpi:all_reduce") == names.count("all_reduce") == job.steps
    assert len(bases) == 1


def test_the_command(
    profiled: tuple[Job, Timeline, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job, _, folder = profiled
    files = [str(write(tmp_path / f"{i}.json", host_part(job, i))) for i in (0, 1)]
    output = tmp_path / "merged.json.gz"
    arguments = ["trace", "merge", *files, "--torch", str(folder), "-o", str(output)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "rank 1: " in out and "of 100 calls that it has too, 100.0% are within 50 us" in out
    assert json.loads(gzip.decompress(output.read_bytes()))["traceEvents"]
    empty = tmp_path / "empty"
    empty.mkdir()
    arguments[arguments.index(str(folder))] = str(empty)
    assert main(arguments) == 1
    assert "no file of torch's profiler of this job is there" in capsys.readouterr().err


def test_spans_of_a_rank_without_operations(profiled: tuple[Job, Timeline, Path]) -> None:
    _, timeline, folder = profiled
    traces, _ = kineto.read_folder(folder, timeline)
    o = timeline.operations
    without = dataclasses.replace(timeline, operations=o[o["rank"] == 1])
    found = kineto.agreement(without, traces[0])
    assert found.spans == 0 and found.clocks == math.inf


def test_a_clock_of_torch_that_is_ahead(profiled: tuple[Job, Timeline, Path]) -> None:
    _, timeline, folder = profiled
    ahead = dataclasses.replace(kineto.read_folder(folder, timeline)[0][0], base=BASE + 700_000)
    assert kineto.agreement(timeline, ahead).clocks == pytest.approx(700_000, abs=3_000)
    assert kineto.agreement(timeline, ahead).within(50_000) == 0.0
