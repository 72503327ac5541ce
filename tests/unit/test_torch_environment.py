"""torchrun's variables out of a launcher's, over a core that names one. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch_environment
from paddlempi import _native
from paddlempi.errors import UnsupportedError
from torch_environment import NAMES

PRTERUN = {
    "name": "prterun",
    "mpi": "Open MPI",
    "size": 8,
    "rank": 5,
    "local_rank": 1,
    "local_size": 4,
    "job": "prterun-node-7-4711@1",
}
NONE: dict[str, Any] = {
    "name": "",
    "mpi": "",
    "size": -1,
    "rank": -1,
    "local_rank": -1,
    "local_size": -1,
    "job": "",
}

Launched = Callable[..., Any]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launched]:
    """Fills the variables as under a launcher; called with what differs from prterun's."""
    for name in (*NAMES, *torch_environment.load()._SIGNS, "PADDLEMPI_FILLED"):
        monkeypatch.delenv(name, raising=False)
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_STEP_NODELIST", "OMPI_MCA_orte_hnp_uri"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)

    def fill(base: dict[str, Any] = PRTERUN, **changed: Any) -> Any:
        environment = torch_environment.load()
        if base is not NONE:
            monkeypatch.setenv("PMIX_RANK", "0")

        def control(method: str) -> dict[str, Any]:
            assert method == "launcher"
            return base | changed

        monkeypatch.setattr(_native, "control", control)
        environment.fill()
        return environment

    yield fill
    os.environ.clear()
    os.environ.update(before)


def shown() -> dict[str, str]:
    return {name: os.environ[name] for name in NAMES if name in os.environ}


def test_all_are_set(launched: Launched) -> None:
    environment = launched()
    found = shown()
    port = int(found.pop("MASTER_PORT"))
    assert 10_000 <= port < 30_000
    assert found == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "node-7",
    }
    assert environment.is_ours("MASTER_PORT")


def test_the_port_is_the_jobs(launched: Launched) -> None:
    ports = []
    for rank, job in ((0, "a@1"), (7, "a@1"), (0, "a@2")):
        launched(rank=rank, job=job)
        ports.append(shown()["MASTER_PORT"])
    assert ports[0] == ports[1] != ports[2]


def test_nothing_outside_a_launcher(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = launched(NONE)
    assert shown() == {}
    assert not environment.is_ours("MASTER_PORT")
    # Not asked, so not even loaded.
    monkeypatch.setattr(_native, "control", None)
    environment.fill()
    # Where signs are and no launcher, as under Slurm's batch script.
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setattr(_native, "control", lambda method: NONE)
    environment.fill()
    assert shown() == {}


def test_a_core_that_cannot_be_loaded_is_for_init_to_tell(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = launched(NONE)
    monkeypatch.setenv("PMI_RANK", "0")

    def control(method: str) -> Any:
        raise UnsupportedError("no core")

    monkeypatch.setattr(_native, "control", control)
    environment.fill()
    assert shown() == {}


def test_what_is_set_stays(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    environment = launched()
    assert shown()["LOCAL_RANK"] == "0"
    assert shown()["MASTER_PORT"] == "29500"
    assert shown()["RANK"] == "5"
    assert not environment.is_ours("MASTER_PORT")
    environment.publish("10.0.0.1", 4242)
    assert shown()["MASTER_PORT"] == "29500"
    assert shown()["MASTER_ADDR"] == "10.0.0.1"


def test_unknown_numbers_are_left_out(launched: Launched) -> None:
    launched(local_rank=-1, local_size=-1)
    assert set(shown()) == {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def test_what_a_parent_set_is_not_the_users(launched: Launched) -> None:
    launched(rank=5, job="outer@1")
    outer = shown()
    # A process of the same rank keeps what it inherits, which may be the real store's place.
    os.environ["MASTER_PORT"] = "4242"
    launched(rank=5, job="outer@1")
    assert shown() == outer | {"MASTER_PORT": "4242"}
    # A job of its own, started from there, has its own.
    environment = launched(rank=0, size=2, local_rank=0, local_size=2, job="inner@1")
    assert shown()["RANK"] == "0"
    assert shown()["WORLD_SIZE"] == "2"
    assert shown()["MASTER_ADDR"] == "127.0.0.1"
    assert shown()["MASTER_PORT"] != "4242"
    assert environment.contradiction(0, 2) is None


@pytest.mark.parametrize(
    ("launcher", "variables", "address"),
    [
        (PRTERUN | {"local_size": 8}, {}, "127.0.0.1"),
        (PRTERUN, {}, "node-7"),
        (
            PRTERUN | {"job": "441581569"},
            {"OMPI_MCA_orte_hnp_uri": "44.0;tcp://192.0.2.2:44695;tcp6://[fd00::2]:42605"},
            "192.0.2.2",
        ),
        (PRTERUN | {"mpi": "MPICH or Intel MPI", "job": "head.example:35875"}, {}, "head.example"),
        (PRTERUN | {"mpi": "Slurm"}, {"SLURM_STEP_NODELIST": "n[03-05,7],m1"}, "n03"),
        (PRTERUN | {"mpi": "Slurm"}, {"SLURM_STEP_NODELIST": "a1,n[03-05]"}, "a1"),
        (PRTERUN | {"mpi": "Slurm"}, {"SLURM_STEP_NODELIST": "r[1-2]-x"}, "r1-x"),
    ],
)
def test_address(
    launched: Launched,
    monkeypatch: pytest.MonkeyPatch,
    launcher: dict[str, Any],
    variables: dict[str, str],
    address: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    launched(launcher)
    assert shown()["MASTER_ADDR"] == address


def test_address_where_nothing_tells(launched: Launched) -> None:
    import socket

    launched(job="a376-68")
    assert shown()["MASTER_ADDR"] == socket.gethostname()


def test_contradictions(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    environment = launched()
    assert "RANK=3" in environment.contradiction(5, 8)
    assert "rank 5 of 8" in environment.contradiction(5, 8)
    assert environment.contradiction(3, 8) is None
    # Ours follow MPI: the world may be a part of the launcher's.
    assert environment.contradiction(3, 4) is None
    assert shown()["WORLD_SIZE"] == "4"


@pytest.mark.parametrize(
    ("launcher", "variables", "size"),
    [
        (NONE, {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4"}, 4),
        (NONE, {"WORLD_SIZE": "4"}, 0),
        (NONE, {"TORCHELASTIC_RUN_ID": "x"}, 0),
        (PRTERUN, {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4"}, 0),
    ],
)
def test_torchrun(
    launched: Launched,
    monkeypatch: pytest.MonkeyPatch,
    launcher: dict[str, Any],
    variables: dict[str, str],
    size: int,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launched(launcher).torchrun_size() == size
