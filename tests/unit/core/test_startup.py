"""The variables that frameworks read before MPI runs, and the warning if MPI never ran."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from paddlempi import _processes
from paddlempi.startup.paddle_variables import PADDLE
from paddlempi_bootstrap import mpi_launcher
from paddlempi_bootstrap.known_launchers import SIGNS
from paddlempi_bootstrap.mpi_launcher import Place

PRTERUN = Place(
    mpi="Open MPI",
    size=8,
    rank=5,
    local_rank=1,
    local_size=4,
    job="prterun-node-7-4711@1",
    name="prterun",
    path="/opt/mpi/bin/prterun",
)
FILLED = {
    "PADDLE_TRAINER_ID": "5",
    "PADDLE_TRAINERS_NUM": "8",
    "PADDLE_GLOBAL_RANK": "5",
    "PADDLE_GLOBAL_SIZE": "8",
    "PADDLE_LOCAL_RANK": "1",
    "PADDLE_RANK_IN_NODE": "1",
    "PADDLE_LOCAL_SIZE": "4",
}
MARK = "PADDLEMPI_FILLED_PADDLE"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the variables of launchers and of Paddle. Restore the environment after the test."""
    for name in (*SIGNS, MARK, *filter(lambda n: n.startswith("PADDLE_"), os.environ)):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def shown() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("PADDLE_")}


def in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process look like a child that has inherited its environment."""
    monkeypatch.setattr(os, "getpid", lambda: 4711)


# The variables


def test_all_are_set_and_taken_back() -> None:
    assert PADDLE.fill(PRTERUN)
    assert shown() == FILLED
    assert all(PADDLE.is_ours(name) for name in FILLED)
    assert PADDLE.fill(PRTERUN), "a second fill must say the same"
    PADDLE.clear()
    assert shown() == {} and MARK not in os.environ


def test_nothing_without_a_launcher() -> None:
    assert not PADDLE.fill(None)
    assert shown() == {} and MARK not in os.environ
    # A process inherits the variables from a rank, but has no launcher above it any more.
    PADDLE.fill(PRTERUN)
    assert not PADDLE.fill(None)
    assert shown() == {} and MARK not in os.environ


def test_what_the_launcher_does_not_say_is_left_out() -> None:
    PADDLE.fill(PRTERUN._replace(local_rank=-1, local_size=-1))
    assert set(shown()) == {name for name in FILLED if PADDLE.table[name] in ("rank", "size")}


def test_what_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "1")
    PADDLE.fill(PRTERUN)
    os.environ["PADDLE_LOCAL_RANK"] = "7"  # the script sets it later
    assert shown() == FILLED | {"PADDLE_TRAINERS_NUM": "1", "PADDLE_LOCAL_RANK": "7"}
    assert not PADDLE.is_ours("PADDLE_TRAINERS_NUM")
    assert not PADDLE.is_ours("PADDLE_LOCAL_RANK")
    numbers = {"rank": 0, "size": 2, "local_rank": 0, "local_size": 2}
    PADDLE.set_from_mpi(numbers, {"PADDLE_CURRENT_ENDPOINT": "127.0.0.1:4242"})
    assert os.environ["PADDLE_TRAINER_ID"] == "0"
    assert os.environ["PADDLE_GLOBAL_SIZE"] == "2"
    assert os.environ["PADDLE_TRAINERS_NUM"] == "1"
    assert os.environ["PADDLE_LOCAL_RANK"] == "7"
    assert os.environ["PADDLE_CURRENT_ENDPOINT"] == "127.0.0.1:4242"
    PADDLE.fill(PRTERUN)  # MPI has ended
    assert shown() == FILLED | {"PADDLE_TRAINERS_NUM": "1", "PADDLE_LOCAL_RANK": "7"}
    PADDLE.clear()
    assert shown() == {"PADDLE_TRAINERS_NUM": "1", "PADDLE_LOCAL_RANK": "7"}


NUMBERS = {"rank": 5, "size": 8, "local_rank": 1, "local_size": 4}


def test_a_program_that_a_rank_starts_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = os.getpid()
    PADDLE.fill(PRTERUN)
    PADDLE.set_from_mpi(NUMBERS, {"PADDLE_TRAINER_ENDPOINTS": "a:1,b:2"})
    assert PADDLE.rank_above(PRTERUN) == 0
    in_a_child(monkeypatch)
    assert PADDLE.rank_above(PRTERUN) == rank
    for _ in range(2):  # then a program that this program starts
        assert not PADDLE.fill(PRTERUN)
        assert shown() == {}
        assert PADDLE.rank_above(PRTERUN) == rank


def test_a_worker_has_its_parents_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    PADDLE.fill(PRTERUN)
    PADDLE.set_from_mpi(NUMBERS, {"PADDLE_CURRENT_ENDPOINT": "a:1"})
    before = shown()
    in_a_child(monkeypatch)
    monkeypatch.setattr(_processes, "is_worker", lambda: True)
    assert not PADDLE.fill(PRTERUN)
    assert shown() == before


def test_a_wrapper_and_the_program_that_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until MPI runs, either of the two may be the rank. Only the wrapper counts as the rank."""
    PADDLE.fill(PRTERUN)
    in_a_child(monkeypatch)
    assert not PADDLE.fill(PRTERUN)
    assert shown() == FILLED
    assert PADDLE.rank_above(PRTERUN) == 0


def test_a_job_inside_a_rank_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    PADDLE.fill(PRTERUN)
    PADDLE.set_from_mpi(NUMBERS, {"PADDLE_CURRENT_ENDPOINT": "a:1"})
    in_a_child(monkeypatch)
    inner = PRTERUN._replace(rank=0, size=2, local_rank=0, local_size=2, job="inner@1")
    assert PADDLE.rank_above(inner) == 0
    assert PADDLE.fill(inner)
    assert shown() == {name: str(inner._asdict()[key]) for name, key in PADDLE.table.items()}


def test_a_launcher_of_paddles_inside_a_rank_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    PADDLE.fill(PRTERUN)
    in_a_child(monkeypatch)
    launched = {"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2"}
    os.environ.update(launched)
    PADDLE.fill(None)
    assert shown() == launched


# Where no parent is a launcher


def test_a_hidden_launcher_is_found_by_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_launcher, "parents", lambda: iter([(1, "init", "")]))
    monkeypatch.setenv("PMI_RANK", "5")
    assert mpi_launcher.find(hidden=True) is None, "it does not say the size"
    monkeypatch.setenv("PMI_SIZE", "8")
    found = mpi_launcher.find(hidden=True)
    assert found is not None
    assert (found.kind, found.rank, found.size, found.name, found.pid) == ("hydra", 5, 8, "", 0)
    assert mpi_launcher.find() is None


# The end without MPI

WATCHED = f"""
import os, sys, warnings
from paddlempi.startup import unused_rank
from paddlempi_bootstrap.mpi_launcher import Place
unused_rank.watch({PRTERUN!r})
unused_rank.watch({PRTERUN!r})
"""


def end(body: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a process that calls ``unused_rank.watch`` and then executes ``body``."""
    command = [sys.executable, *options, "-c", WATCHED + body]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_an_end_without_mpi_is_told_once() -> None:
    for body in ("", "sys.exit()", "sys.exit(0)", "raise SystemExit(0)"):
        ended = end(body)
        assert ended.returncode == 0
        assert ended.stderr.count("RuntimeWarning: paddlempi: rank 5 of the 8 that /opt/mpi/") == 1


@pytest.mark.parametrize(
    "body",
    [
        "sys.exit(3)",
        "sys.exit('wrong')",
        "unused_rank.note_exit(3); raise SystemExit(3)",  # as `paddlempi run` does
        "1 / 0",
        "os._exit(0)",
        "unused_rank.unwatch(); sys.exit()",
        "warnings.filterwarnings('ignore', 'paddlempi: rank')",
        "unused_rank.group._state.world = unused_rank.group.GroupMember.NON_GROUP_MEMBER",
        "for leave in unused_rank.group._state.at_destroy: leave()",
    ],
)
def test_an_end_of_another_kind_is_not(body: str) -> None:
    assert "paddlempi: rank" not in end(body).stderr


def test_warnings_may_be_off() -> None:
    assert end("", "-W", "ignore").stderr == ""


def test_one_rank_is_no_matter() -> None:
    alone = PRTERUN._replace(size=1)
    body = f"unused_rank.unwatch(); unused_rank.watch({alone!r}); unused_rank.watch(None)"
    assert end(body).stderr == ""


def test_forks_and_workers_say_nothing() -> None:
    fork = "pid = os.fork()\nif not pid: sys.exit(0)\nos.waitpid(pid, 0)"
    assert end(fork).stderr.count("RuntimeWarning: paddlempi") == 1
    worker = """
import multiprocessing
if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        worker = context.Process(target=unused_rank.watch, args=(PRTERUN,))
        worker.start()
        worker.join()
        assert worker.exitcode == 0
""".replace("PRTERUN", repr(PRTERUN))
    assert end(worker).stderr.count("RuntimeWarning: paddlempi") == 1


def test_sys_exit_comes_back() -> None:
    body = (
        "watched = sys.exit\nunused_rank.unwatch()\nassert sys.exit is not watched\nprint(sys.exit)"
    )
    assert end(body).stdout == "<built-in function exit>\n"


def test_sys_exit_below_another_hook() -> None:
    """The other hook calls ours. A second watch must not put our hook on top of itself."""
    body = f"""
ours = sys.exit
def exit(status=None):
    ours(status)
sys.exit = exit
unused_rank.unwatch()
unused_rank.watch({PRTERUN!r})
sys.exit(3)
"""
    ended = end(body)
    assert (ended.returncode, ended.stderr) == (3, "")
