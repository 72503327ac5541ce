"""``python -m paddlempi top`` over a fake core: what it shows of whatever traces say."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest
from api_fake import FakeCore
from paddlempi.cli import main, top
from rings_made import operation, ring


def seen(rank: int, operations: list[Any], *, size: int = 2, **other: Any) -> dict[str, Any]:
    """What the core says of a rank. Its second has 12 calls of 50 MB, and 0.25 s of waiting."""
    made = {**ring(rank, size, operations, **other), "job": "j", "generation": 0}
    rates = {"window": 500_000_000, "calls": 12, "bytes": 50_000_000, "waited": 125_000_000}
    return {"pid": 1000 + rank, "error": "", "trace": made, **rates}


def gone(rank: int) -> dict[str, Any]:
    error = f"there is no process {1000 + rank}"
    return {"pid": 1000 + rank, "error": error, "trace": None}


HELD = [seen(0, [operation(2, 90.0)]), seen(1, [operation(1, 1.0, 2.0)])]


@pytest.fixture
def answers(fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the core answers, in order, until Ctrl-C. Requests are noted."""
    list_: list[Any] = []

    def control(method: str, arguments: str) -> str:
        assert method == "trace_now"
        fresh_core.controls.append((method, json.loads(arguments)))
        if not list_:
            raise KeyboardInterrupt
        return json.dumps({"processes": list_.pop(0)})

    monkeypatch.setattr(fresh_core, "control", control)
    monkeypatch.setattr(top.time, "sleep", lambda seconds: None)
    return list_


def test_who_waits_for_whom(answers: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    answers.append(HELD)
    assert main(["top", "--once"]) == 0
    title, heads, first, second = capsys.readouterr().out.splitlines()
    assert title.endswith("  2 of 2 ranks are on this host")
    assert heads.split() == [
        "rank",
        "process",
        "call",
        "since",
        "MB/s",
        "wait",
        "for",
        "rank",
        "memory",
    ]
    assert first.split()[:2] == ["0", "1000"]
    assert " all_reduce(float32[8], SUM)  10.0 s    100  25% 1 " in first
    assert second.split()[:4] == ["1", "1001", "-", "98.0"]
    assert max(map(len, (title, heads, first, second))) < 80


def test_as_json(
    answers: list[Any], fresh_core: FakeCore, capsys: pytest.CaptureFixture[str]
) -> None:
    answers.append([seen(0, [operation(2, 90.0)]), {**HELD[1], "pid": os.getpid()}])
    assert main(["top", "--once", "--json", "1000", "1001"]) == 0
    assert fresh_core.controls == [("trace_now", {"pids": [1000, 1001]})]
    [job] = json.loads(capsys.readouterr().out)["jobs"]
    assert (job["job"], job["size"]) == ("j.0", 2)
    one, other = job["ranks"]
    assert one == {
        "rank": 0,
        "pid": 1000,
        "host": "here",
        "state": "running",
        "since": 10.0,
        "rss": 0,
        "call": "all_reduce(float32[8], SUM)",
        "bytes_per_s": 1e8,
        "calls_per_s": 24.0,
        "waiting": 0.25,
        "waits_for": [1],
    }
    assert other["call"] == "" and other["rss"] > 1 << 20


def test_a_rank_that_dies_stays_there_until_the_others_have_ended(
    answers: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answers += [HELD, HELD[:1], [], []]
    assert main(["top"]) == 0
    blocks = capsys.readouterr().out.split("ranks are on this host")
    lines = [[line.split()[:3] for line in block.splitlines()[2:4]] for block in blocks[1:]]
    assert lines[0][1] == ["1", "1001", "-"]
    assert [line[1] for line in lines[1:3]] == [["1", "1001", "ENDED"]] * 2
    assert lines[2][0] == ["0", "1000", "ENDED,"] and len(lines) == 3
    assert "no process of this host has a trace" in blocks[3]


def test_it_ends_with_the_processes_that_were_named(
    answers: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answers += [HELD, [HELD[0], gone(1)], [gone(0), gone(1)], HELD]
    assert main(["top", "1000", "1001"]) == 0
    assert len(answers) == 1 and "there is no process" not in capsys.readouterr().out


def test_what_cannot_be_read_is_named(
    answers: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {**HELD[1], "trace": {**HELD[1]["trace"], "rank": 7}}
    foreign = {"pid": 9, "error": "the files of process 9 belong to another user", "trace": None}
    answers += [[HELD[0], wrong, foreign], [foreign]]
    assert main(["top", "--once"]) == 0
    said = capsys.readouterr().out
    assert "\nprocess 1001: process 1001: it names rank 7 of 2\n" in said
    assert said.endswith("process 9: the files of process 9 belong to another user\n")
    assert main(["top", "--once", "9"]) == 1


def test_a_terminal_is_written_over_and_not_scrolled(
    answers: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [seen(rank, [operation(1, 1.0)], size=40, host="\x1b[2Jx") for rank in range(40)]
    answers += [many, many]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(top.shutil, "get_terminal_size", lambda *_: os.terminal_size((80, 24)))
    assert main(["top"]) == 0
    screens = capsys.readouterr().out.split("\x1b[H")[1:]
    assert len(screens) == 2
    for screen in screens:
        lines = screen.replace("\x1b[K", "").replace("\x1b[J", "").splitlines()
        assert len(lines) == 23 and lines[-1] == "... and 20 more lines (--once)"
        assert all(len(line) < 80 and "\x1b" not in line for line in lines)


def test_wrong_words(answers: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--all", "7"]) == 2
    assert "top: give process ids" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(2e-5, "20 us"), (0.25, "250 ms"), (12.34, "12.3 s"), (3600, "60 min"), (90_000, "25.0 h")],
)
def test_since(seconds: float, shown: str) -> None:
    assert top._since(seconds) == shown
