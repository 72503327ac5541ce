"""torchrun's variables, set from those of a made-up launcher. Needs no torch."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch_environment
from paddlempi import _native
from paddlempi_bootstrap import mpi_launcher, torchrun_variables
from paddlempi_bootstrap.mpi_launcher import Place
from torch_environment import NAMES

PRTERUN = Place(
    mpi="Open MPI", size=8, rank=5, local_rank=1, local_size=4, job="prterun-node-7-4711@1"
)

Launched = Callable[..., Any]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launched]:
    """Return a function that fills the variables as under PRTERUN, with the given changes."""
    for name in (*NAMES, "PADDLEMPI_FILLED", "PADDLEMPI_TORCH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    before = dict(os.environ)

    def fill(base: Place | None = PRTERUN, host: str = "node-7", **changed: Any) -> Any:
        started = None if base is None else base._replace(host=host, **changed)
        monkeypatch.setattr(mpi_launcher, "find", lambda: started)
        environment = torch_environment.load()
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
        "GROUP_RANK": "1",
        "MASTER_ADDR": "node-7",
    }
    assert environment.is_ours("MASTER_PORT")


def test_the_port_is_the_jobs(launched: Launched) -> None:
    ports = []
    for rank, job in ((0, "a@1"), (7, "a@1"), (0, "a@2")):
        launched(rank=rank, job=job)
        ports.append(shown()["MASTER_PORT"])
    assert ports[0] == ports[1] != ports[2]


def test_nothing_outside_a_launcher(launched: Launched) -> None:
    environment = launched(None)
    assert shown() == {}
    assert "PADDLEMPI_FILLED" not in os.environ
    assert not environment.is_ours("MASTER_PORT")


def test_what_import_torch_sets_by_itself(launched: Launched) -> None:
    """``import torch`` sets only what is certain. test_autoload.py tests in which processes."""
    launched(None)
    torchrun_variables.fill(PRTERUN, tell=True)
    assert set(shown()) == set(NAMES) - {"MASTER_ADDR", "MASTER_PORT"}
    launched()  # import paddlempi.torch
    assert set(shown()) == set(NAMES)
    torchrun_variables.fill(PRTERUN._replace(job="other@1", local_size=8), tell=True)
    assert shown()["MASTER_ADDR"] == "127.0.0.1"
    torchrun_variables.fill(PRTERUN._replace(size=1, rank=0, job="third@1"), tell=False)
    assert shown() == {}
    launched(size=1, rank=0, local_size=1, local_rank=0)
    assert shown()["WORLD_SIZE"] == "1"


@pytest.mark.parametrize(
    ("rank", "local_rank", "size", "local_size", "node"),
    [
        (0, 0, 8, 4, "0"),
        (7, 3, 8, 4, "1"),
        (3, 1, 4, 2, "1"),
        (1, 0, 4, 2, None),  # the nodes take ranks in turn
        (3, 1, 6, 4, None),  # the nodes have different numbers of ranks
        (3, -1, 8, 4, None),
        (3, 1, 8, -1, None),
    ],
)
def test_the_number_of_the_node(
    launched: Launched, rank: int, local_rank: int, size: int, local_size: int, node: str | None
) -> None:
    launched(rank=rank, local_rank=local_rank, size=size, local_size=local_size)
    assert shown().get("GROUP_RANK") == node


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
    assert environment.is_ours("MASTER_ADDR")


def test_the_place_of_the_store(launched: Launched) -> None:
    """Under a launcher the store's address is published, also if none was known before."""
    environment = launched(None)
    environment.publish("10.0.0.1", 4242)
    assert shown() == {}
    torchrun_variables.fill(PRTERUN, tell=True)
    environment.publish("10.0.0.1", 4242)
    assert (shown()["MASTER_ADDR"], shown()["MASTER_PORT"]) == ("10.0.0.1", "4242")
    assert environment.is_ours("MASTER_PORT")


def test_unknown_numbers_are_left_out(launched: Launched) -> None:
    launched(local_rank=-1, local_size=-1)
    assert set(shown()) == {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def test_what_a_parent_set_is_not_the_users(launched: Launched) -> None:
    environment = launched(rank=5, job="outer@1")
    outer = shown()
    # A process of the same rank keeps what it inherits, such as the address of the real store.
    environment.publish("10.0.0.1", 4242)
    launched(rank=5, job="outer@1")
    assert shown() == outer | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4242"}
    # A job that is started from this rank has variables of its own.
    environment = launched(rank=0, size=2, local_rank=0, local_size=2, job="inner@1")
    assert shown()["RANK"] == "0"
    assert shown()["WORLD_SIZE"] == "2"
    assert shown()["MASTER_ADDR"] == "127.0.0.1"
    assert shown()["MASTER_PORT"] != "4242"
    assert environment.contradiction(0, 2) is None
    # A process with no launcher above it, such as a batch job that a rank submits, has none.
    launched(None)
    assert shown() == {}
    assert "PADDLEMPI_FILLED" not in os.environ


def test_what_others_set_since_is_theirs(launched: Launched) -> None:
    """The others may be a torchrun that a rank has started, or the program itself."""
    launched()
    os.environ.update(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", MASTER_PORT="29500")
    environment = launched()
    assert shown()["RANK"] == "1"
    assert not any(map(environment.is_ours, ("RANK", "WORLD_SIZE", "MASTER_PORT")))
    assert environment.is_ours("MASTER_ADDR")
    assert environment.told_size() == 2
    environment = launched(job="inner@1", rank=2, local_rank=2)
    assert (shown()["RANK"], shown()["GROUP_RANK"]) == ("1", "0")
    assert "RANK=1" in environment.contradiction(2, 8)


def test_what_a_program_took_away_stays_away(launched: Launched) -> None:
    launched()
    for name in NAMES:
        del os.environ[name]
    launched()
    assert shown() == {}


def test_address(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(host="head.example")
    assert shown()["MASTER_ADDR"] == "head.example"
    launched(local_size=8, job="other@1")
    assert shown()["MASTER_ADDR"] == "127.0.0.1"


def test_the_core_is_not_asked(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "load", None)  # so that loading it would fail
    launched()
    assert shown()["MASTER_ADDR"] == "node-7"


def test_address_where_nothing_tells(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    launched(host="")
    assert shown()["MASTER_ADDR"] == socket.gethostname()


def test_contradictions(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    environment = launched()
    assert "RANK=3" in environment.contradiction(5, 8)
    assert "rank 5 of 8" in environment.contradiction(5, 8)
    assert environment.contradiction(3, 8) is None
    # Variables that paddlempi set follow MPI, whose world may be a part of the launcher's.
    assert environment.contradiction(3, 4) is None
    assert shown()["WORLD_SIZE"] == "4"
