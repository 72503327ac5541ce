"""Which world a process joins, and which program has started it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import paddlempi as dist
import pytest
from api_fake import FakeCore
from paddlempi.errors import ArgumentError, DtypeError, ForkError, LauncherError, MPINotFoundError
from paddlempi.startup import worlds
from paddlempi.startup.rendezvous.stores import MemoryStore
from paddlempi_bootstrap import mpi_launcher, starters
from paddlempi_bootstrap.mpi_launcher import Place

MPIRUN = Place("Open MPI", 4, 2, 2, 4, "job@1", kind="openmpi", name="prterun", pid=1)
ADDRESS = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2", **ADDRESS}
PADDLE = {
    "PADDLE_CURRENT_ENDPOINT": "node1:7001",
    "PADDLE_TRAINER_ENDPOINTS": "node1:7000,node1:7001",
    "PADDLE_TRAINER_ID": "1",
    "PADDLE_TRAINERS_NUM": "2",
}
RUN = {"PADDLEMPI_MEET": "file:///proc/self/fd/3", "RANK": "0", "WORLD_SIZE": "2"}
SPAWNED = {"RANK": "1", "WORLD_SIZE": "3", **ADDRESS}
FILE = {"rank": 1, "size": 2, "method": "file:///tmp/x"}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has started this process."""
    names = {*TORCHRUN, *PADDLE, *RUN, "PADDLE_MASTER", "PADDLEMPI_TRANSPORT"}
    for name in (*names, "PADDLEMPI_FILLED_PADDLE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(mpi_launcher, "find", lambda **options: None)


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "given", "expected"),
    [
        ({}, {}, ("mpi", 0, 1, "")),
        ({"PADDLEMPI_TRANSPORT": "node"}, {}, ("alone", 0, 1, "")),
        ({}, {"rank": 0, "size": 1}, ("mpi", 0, 1, "")),
        (TORCHRUN, {}, ("store", 1, 2, "tcp://node1:29500")),
        (TORCHRUN, {"method": "env://"}, ("store", 1, 2, "tcp://node1:29500")),
        (TORCHRUN, FILE, ("store", 1, 2, "file:///tmp/x")),
        (TORCHRUN, {"rank": 0, "size": 3}, ("store", 0, 3, "tcp://node1:29500")),
        ({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}, {}, ("store", 0, 1, "tcp://node1:29500")),
        ({**TORCHRUN, "MASTER_ADDR": "::1"}, {}, ("store", 1, 2, "tcp://[::1]:29500")),
        (PADDLE, {}, ("store", 1, 2, "tcp://node1:7000")),
        ({**PADDLE, "PADDLE_MASTER": "node2:9"}, {}, ("store", 1, 2, "tcp://node2:9")),
        (RUN, {}, ("store", 0, 2, "file:///proc/self/fd/3")),
        ({**TORCHRUN, **RUN}, {}, ("store", 0, 2, "file:///proc/self/fd/3")),
        (SPAWNED, {}, ("store", 1, 3, "tcp://node1:29500")),
        (ADDRESS, {"rank": 2, "size": 3}, ("store", 2, 3, "tcp://node1:29500")),
        (SPAWNED, FILE, ("store", 1, 2, "file:///tmp/x")),
        ({}, FILE, ("store", 1, 2, "file:///tmp/x")),
        (
            {},
            {"method": "tcp://h:1?rank=0&world_size=2"},
            ("store", 0, 2, "tcp://h:1?rank=0&world_size=2"),
        ),
        ({}, {"store": MemoryStore(), "rank": 0, "size": 2}, ("store", 0, 2, "")),
        ({"WORLD_SIZE": "1"}, {}, ("mpi", 0, 1, "")),
    ],
)
def test_the_world(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    given: dict[str, Any],
    expected: tuple[str, int, int, str],
) -> None:
    set_all(monkeypatch, variables)
    found = worlds.find(**given)
    assert (found.way, found.rank, found.size, found.method) == expected, found
    assert found.why


@pytest.mark.parametrize("variables", [{}, SPAWNED, {"PADDLEMPI_TRANSPORT": "mpi"}])
@pytest.mark.parametrize("given", [{}, FILE])
def test_under_mpirun_nothing_else_counts(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], given: dict[str, Any]
) -> None:
    set_all(monkeypatch, variables)
    monkeypatch.setattr(mpi_launcher, "find", lambda: MPIRUN)
    found = worlds.find(**given)
    assert (found.way, found.why) == ("mpi", "prterun (process 1) has started this process")
    assert (found.rank, found.size) == (2, 4)


@pytest.mark.parametrize(
    ("variables", "given", "error", "text"),
    [
        ({}, {"rank": "0"}, DtypeError, "rank is a str"),
        ({}, {"size": True}, DtypeError, "world_size is a bool"),
        ({}, {"method": 5}, DtypeError, "init_method is a int"),
        ({}, {"method": "mpi://"}, ArgumentError, "must begin with env://, tcp:// or file://"),
        ({}, {"method": "env://", "store": MemoryStore()}, ArgumentError, "give one of them"),
        ({}, {"method": "file:///x"}, ArgumentError, "rank=-1, world_size=-1: give both"),
        ({}, {"rank": 3, "size": 3, "method": "file:///x"}, ArgumentError, "from 0 to"),
        ({}, {"rank": 1, "size": 3}, ArgumentError, "MASTER_ADDR and MASTER_PORT not set"),
        ({}, {"method": "tcp://h:1?rank=x&world_size=2"}, ArgumentError, "rank=x"),
        ({"WORLD_SIZE": "2"}, {}, LauncherError, "RANK is not set"),
        ({"PADDLEMPI_TRANSPORT": "tcp"}, {}, ArgumentError, "PADDLEMPI_TRANSPORT='tcp'"),
        ({**TORCHRUN, "RANK": "2"}, {}, ArgumentError, "under torchrun"),
        ({**PADDLE, "PADDLE_TRAINER_ENDPOINTS": ""}, {}, ArgumentError, "as HOST:PORT"),
    ],
)
def test_what_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    given: dict[str, Any],
    error: type[Exception],
    text: str,
) -> None:
    set_all(monkeypatch, variables)
    with pytest.raises(error) as caught:
        worlds.find(**given)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "given", "way"),
    [
        ({}, {}, "mpi"),
        ({**SPAWNED, "WORLD_SIZE": "4"}, {}, "mpi"),
        ({}, {"rank": 2, "size": 4}, "mpi"),
        (SPAWNED, {}, "store"),
        ({}, FILE, "store"),
        (TORCHRUN, {}, "store"),
    ],
)
def test_a_launcher_that_a_container_hides(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], given: dict[str, Any], way: str
) -> None:
    set_all(monkeypatch, variables)
    monkeypatch.setattr(mpi_launcher, "find", lambda **how: MPIRUN if how else None)
    assert worlds.find(**given).way == way


def test_no_mpirun_without_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLEMPI_TRANSPORT", "node")
    monkeypatch.setattr(mpi_launcher, "find", lambda: MPIRUN)
    with pytest.raises(LauncherError, match="run -np 4"):
        worlds.find()


_TELL = """
import sys, types
from paddlempi_bootstrap import mpi_launcher, starters
pid = int(sys.argv[1])
if pid:
    place = types.SimpleNamespace(pid=pid)
    mpi_launcher.find = lambda: place
place, start = starters.nearest()
print("mpirun" if place else start.name if start else "nothing")
"""
_BELOW = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"


@pytest.mark.parametrize("between", [0, 1, 2])
@pytest.mark.parametrize(
    ("sign", "launcher", "answer"),
    [
        (None, 0, "nothing"),
        ("TORCHELASTIC_RUN_ID", 0, "torchrun"),
        ("PADDLEMPI_MEET", 0, "python -m paddlempi run -np"),
        # The launcher is this process, which has no sign: torchrun is as near, and below it.
        ("TORCHELASTIC_RUN_ID", 1, "torchrun"),
    ],
)
def test_the_nearest_start(between: int, sign: str | None, launcher: int, answer: str) -> None:
    """Of a process that has some others between it and the one that set the sign."""
    middle = [sys.executable] if not between else [sys.executable, *["-c", _BELOW] * between]
    variables = {**os.environ, **({sign: "x"} if sign else {})}
    pid = os.getppid() if launcher else 0
    command = [*middle, "-c", _TELL, str(pid)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == answer, done.stderr


def test_an_mpirun_below_torchrun_is_nearer() -> None:
    """The process between is the launcher: it has the sign, as its rank has."""
    between = (
        "import os, subprocess, sys; "
        "sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1], str(os.getpid())]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", between, _TELL],
        env={**os.environ, "TORCHELASTIC_RUN_ID": "x"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "mpirun", done.stderr


def test_signs_that_this_package_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, PADDLE)
    assert starters.nearest()[1] is not None
    monkeypatch.setenv("PADDLEMPI_FILLED_PADDLE", "job|1|mpi|PADDLE_CURRENT_ENDPOINT:12345678")
    assert starters.nearest() == (None, None)


# Init


def without_mpi(core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the core find no MPI."""
    plain = core.control

    def control(method: str, arguments: str) -> str:
        if method == "info":
            return '{"mpi": null}'
        if method == "init" and "world" not in json.loads(arguments):
            raise MPINotFoundError("there is none")
        return plain(method, arguments)

    monkeypatch.setattr(core, "control", control)


def test_a_process_alone_needs_no_mpi(
    fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_mpi(fresh_core, monkeypatch)
    assert dist.is_available()
    dist.init_process_group()
    assert fresh_core.controls[0][1]["world"]["transport"] == "node"


@pytest.mark.parametrize("variables", [{"PADDLEMPI_MPI": "/x"}, {"PADDLEMPI_TRANSPORT": "mpi"}])
def test_unless_it_asks_for_one(
    fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    without_mpi(fresh_core, monkeypatch)
    set_all(monkeypatch, variables)
    with pytest.raises(MPINotFoundError):
        dist.init_process_group()


def test_an_init_that_fails_early_does_not_wait(
    fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a fork, where the core does not even look at its arguments."""

    def control(method: str, arguments: str) -> str:
        raise ForkError("a fork")

    monkeypatch.setenv("PADDLEMPI_TRANSPORT", "node")
    monkeypatch.setattr(fresh_core, "control", control)
    with pytest.raises(ForkError):
        dist.init_process_group()


@pytest.mark.parametrize("hidden", [False, True])
def test_ranks_of_an_mpirun_need_one(
    fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    """They are no worlds of one rank, also if a container hides the launcher."""
    without_mpi(fresh_core, monkeypatch)

    def find(**options: bool) -> Place | None:
        return MPIRUN if options or not hidden else None

    monkeypatch.setattr(mpi_launcher, "find", find)
    assert not dist.is_available()
    with pytest.raises(MPINotFoundError):
        dist.init_process_group()


def test_init_alone_without_mpi(fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLEMPI_TRANSPORT", "node")
    dist.init_process_group()
    method, given = fresh_core.controls[0]
    assert method == "init"
    world = given["world"]
    assert (world["rank"], world["size"], world["transport"]) == (0, 1, "node")
    assert len(bytes.fromhex(world["id"])) == 16


def test_the_arguments_are_compared_with_the_world(fresh_core: FakeCore) -> None:
    with pytest.raises(ArgumentError, match="given to rank 1 of 3"):
        dist.init_process_group(rank=0, world_size=1)
    assert not dist.is_initialized()
