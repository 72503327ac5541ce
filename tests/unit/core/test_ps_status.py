"""``python -m paddlempi ps status`` over a fake core: what it shows, of whatever servers say."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest
from api_fake import FakeCore
from paddlempi.cli import main, ps_status
from paddlempi.errors import ArgumentError

USERS = {"name": "users", "kind": "sparse", "dim": 64, "rows": 1000, "bytes": 3 << 20}


def server(rank: int, error: str = "", **statistics: Any) -> dict[str, Any]:
    address = f"10.0.0.{rank}:7000"
    said = None if error else {"seconds": 10.0, **statistics}
    return {"rank": rank, "address": address, "statistics": said, "error": error}


def split(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The servers and the master of what an answer has."""
    masters = [one for one in found if one.get("is_master")]
    return {"servers": [one for one in found if one not in masters], "masters": masters}


def trainer(rank: int, step: int, **more: Any) -> dict[str, Any]:
    return {"rank": rank, "step": step, "queue": 1, "staleness": 0.5, "completed": False, **more}


@pytest.fixture
def answer(fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the core answers, in order: lists of servers or exceptions. Requests are noted."""
    answers: list[Any] = []

    def control(method: str, arguments: str) -> str:
        assert method == "ps_status"
        fresh_core.controls.append((method, json.loads(arguments)))
        found = answers.pop(0)
        if isinstance(found, BaseException):
            raise found
        roles = {"0": "trainer", "1": "trainer", "2": "trainer", "4": "trainer", "3": "pserver"}
        return json.dumps({"file": "/run/ps-7.json", "pid": 7, "roles": roles, **split(found)})

    monkeypatch.setattr(fresh_core, "control", control)
    monkeypatch.setattr(ps_status.time, "sleep", lambda seconds: None)
    return answers


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_what_a_job_looks_like(
    answer: list[Any], fresh_core: FakeCore, capsys: pytest.CaptureFixture[str]
) -> None:
    lag = [trainer(0, 9), trainer(1, 7)]
    told = {"host": "n1", "mode": "sync", "step": 7, "pulls": 50, "pushes": 20, "bytes_in": 20480}
    told |= {"rpcs": 30, "grpc_in": 10240, "grpc_out": 5120}
    part = USERS | {"rows": 24, "bytes": 1 << 20}
    answer.append(
        [
            server(3, tables=[USERS], trainers=lag, queue=4, **told),
            server(5, tables=[part], trainers=[trainer(0, 8, completed=True)], host="n2"),
        ]
    )
    assert main(["ps", "status", "--file", "/f", "--timeout", "3"]) == 0
    assert fresh_core.controls == [("ps_status", {"file": "/f", "timeout": 3.0})]
    text = capsys.readouterr().out
    assert text.startswith("job of process 7 (/run/ps-7.json)\npserver: 3; trainer: 0-2, 4\n")
    assert "10s" in text
    shown = rows(text)
    assert [*("0", "3", "n1", "sync", "7", "10s", "1", "1000", "3.0", "MiB", "4")] == shown[4][:11]
    assert shown[4][11:] == ["5.0", "2.0", "2.0", "KiB", "0", "B", "3.0", "1.5", "KiB"]
    assert ["users", "sparse", "64", "1024", "4.0", "MiB", "1000", "24"] in shown
    assert ["0", "8", "0", "2", "0.5", "active"] in shown, "the step is that of all servers"
    assert ["1", "7", "1", "1", "0.5", "active"] in shown


def test_tables_whose_ids_come_and_go(
    answer: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    one = USERS | {"max_rows": 600, "dropped": 7, "expired": 2, "sketch_bytes": 8 << 20}
    two = USERS | {"max_rows": 600, "dropped": 1, "evicted": 30, "sketch_bytes": 8 << 20}
    ads = USERS | {"name": "ads", "expired": 4}
    answer.append([server(3, tables=[one, ads]), server(5, tables=[two])])
    assert main(["ps", "status"]) == 0
    shown = rows(capsys.readouterr().out)
    assert ["users", "1200", "8", "2", "30", "16.0", "MiB"] in shown
    assert ["ads", "-", "0", "4", "0", "0", "B"] in shown


def test_rates_are_those_since_the_last_look(
    answer: list[Any], fresh_core: FakeCore, capsys: pytest.CaptureFixture[str]
) -> None:
    answer += [[server(3, pulls=100)], [server(3, pulls=130, seconds=12.0)], KeyboardInterrupt()]
    assert main(["ps", "status", "--watch", "0.5", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["servers"][0]["rates"]["pulls"] == pytest.approx(10.0)
    assert second["servers"][0]["rates"]["pulls"] == pytest.approx(15.0)
    assert [request["file"] for _, request in fresh_core.controls] == ["", *["/run/ps-7.json"] * 2]


def test_a_server_that_began_anew_has_no_negative_rates(
    answer: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    later = server(3, pulls=5, seconds=1.0)
    answer += [[server(3, pulls=100)], [later], KeyboardInterrupt()]
    main(["ps", "status", "--watch", "--json"])
    assert json.loads(capsys.readouterr().out.splitlines()[1])["servers"][0]["rates"]["pulls"] == 0


def test_watching_ends_with_the_job(answer: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    answer += [[server(3)], ArgumentError("no such file")]
    assert main(["ps", "status", "--watch"]) == 0
    assert capsys.readouterr().err == "the job has ended\n"


def test_a_reader_that_goes(answer: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """``ps status --watch | head`` ends without a traceback."""
    answer.append([server(3)])
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["ps", "status", "--watch"]) == 1  # nothing was shown
        print("flushed to nowhere", flush=True)


def test_no_job(answer: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    answer.append(ArgumentError("no job runs here"))
    assert main(["ps", "status", "--watch"]) == 1
    assert capsys.readouterr().err == "ps status: no job runs here\n"


def test_a_server_that_does_not_answer(
    answer: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    answer.append([server(3), server(5, "it does not answer"), server(6)])
    answer[0][2]["statistics"] = [1]
    assert main(["ps", "status"]) == 1
    text = capsys.readouterr().out
    assert "server 1, rank 5: it does not answer\n" in text
    assert "server 2, rank 6: its statistics are no JSON object" in text


@pytest.mark.parametrize(
    "said",
    [
        {"host": "\x1b[31mred", "mode": 3, "step": "7", "seconds": -1, "tables": {}, "queue": True},
        {"tables": [1, {"name": None, "rows": 10**400, "bytes": [2]}], "trainers": [{"rank": "x"}]},
        {"seconds": float("nan"), "pulls": float("inf"), "trainers": [{"step": 1e300}, []]},
        {"tables": [{"name": "a\nb", "bytes": 2**62}], "bytes_in": 2**62},
    ],
)
def test_whatever_a_server_says(
    answer: list[Any], capsys: pytest.CaptureFixture[str], said: dict[str, Any]
) -> None:
    answer.append([server(3, **said)])
    assert main(["ps", "status"]) == 0
    assert all(c.isprintable() or c == "\n" for c in capsys.readouterr().out)


@pytest.mark.parametrize("wrong", ["0", "-1", "nan", "1e9", "soon"])
def test_times_are_checked(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["ps", "status", f"--watch={wrong}"])
    assert "--watch" in capsys.readouterr().err


def test_a_master(answer: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    lease = {"shard": 121, "rank": 0, "tries": 1, "since": 3.2, "remains": 57.0}
    failed = {"epoch": 1, "shard": 40, "rank": 2, "reason": "line 17\x1b[2J"}
    queue = {"name": "clicks", "epoch": 1, "shards": 240, "queued": 118, "done": 120}
    queue |= {"leased": [lease], "failed": [failed], "failed_in_all": 1}
    answer.append([server(3), {**server(5, master={"queues": [queue]}), "is_master": True}])
    assert main(["ps", "status"]) == 0
    shown = capsys.readouterr().out
    lines = rows(shown)
    assert ["clicks", "5", "1", "240", "118", "1", "120", "1"] in lines
    assert ["clicks", "121", "0", "1", "3s", "57s"] in lines
    assert "clicks: shard 40 failed in epoch 1, rank 2: line 17?[2J" in shown
    for odd in (None, {}, {"queues": 3}, {"queues": [{"name": 5, "leased": [{}], "failed": [{}]}]}):
        answer.append([server(3), {**server(5, master=odd), "is_master": True}])
        assert main(["ps", "status"]) == 0
    answer.append([server(3), {**server(5, "it does not answer"), "is_master": True}])
    assert main(["ps", "status"]) == 1
    assert "master, rank 5: it does not answer" in capsys.readouterr().out
