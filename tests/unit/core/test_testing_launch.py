"""paddlempi.testing.run, the hub of the ranks' pytests, and the merged outcome of a test."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import paddlempi.testing.hub
import pytest
from paddlempi.testing import place, run
from paddlempi.testing.client import Endpoint, HubError, connect
from paddlempi.testing.hub import Connection, Hub, ranks_text
from paddlempi.testing.launch import command, mpirun_path
from paddlempi.testing.report import agree, compare_collections
from paddlempi_bootstrap.known_launchers import KINDS


@pytest.fixture(autouse=True)
def _mpi() -> None:
    try:
        mpirun_path()
    except FileNotFoundError as error:
        pytest.skip(f"no MPI in this environment: {error}")


def test_run_returns_what_ranks_print() -> None:
    result = run(3, [sys.executable, "-c", "print('here')"])
    assert (result.returncode, result.timed_out) == (0, False)
    assert result.stdout.count("here") == 3


def _function_for_ranks() -> None:
    import sys

    sys.exit(5)


def test_run_of_a_function_returns_its_status() -> None:
    assert run(2, _function_for_ranks).returncode == 5


def test_run_refuses_a_closure() -> None:
    value = 3

    def body() -> None:
        print(value)

    with pytest.raises(ValueError, match="uses value of the function around it"):
        run(2, body)


def test_run_ends_every_process_of_a_job_that_hangs(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        f"open(os.path.join({str(tmp_path)!r}, str(os.getpid())), 'w').close()\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'],"
        " start_new_session=True)\n"
        f"open(os.path.join({str(tmp_path)!r}, str(child.pid)), 'w').close()\n"
        "print('started', flush=True)\n"
        "time.sleep(1000)\n"
    )
    start = time.monotonic()
    result = run(2, [sys.executable, "-c", code], timeout=5)
    assert result.timed_out
    assert result.returncode != 0
    assert time.monotonic() - start < 20
    pids = [int(p.name) for p in tmp_path.iterdir()]
    assert len(pids) == 4
    deadline = time.monotonic() + 5
    while any(_lives(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_ranks_know_their_place() -> None:
    def body() -> None:
        from paddlempi.testing.place import find

        place = find()
        assert place.job is not None
        print("place", place.rank, place.size, place.job)

    path = os.pathsep.join(p for p in sys.path if p)
    result = run(3, body, env={"PYTHONPATH": path})
    lines = sorted(line.split() for line in result.stdout.splitlines() if "place" in line)
    assert [line[1:3] for line in lines] == [["0", "3"], ["1", "3"], ["2", "3"]], result.output
    assert len({line[3] for line in lines}) == 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that finds the place, given some variables of a launcher.

    The variables alone count, as in a container that hides the launcher's process.
    """
    for kind in KINDS:
        for name in (*kind.rank, *kind.size, *kind.job):
            monkeypatch.delenv(name, raising=False)

    def find_in(env: dict[str, str]) -> place.Place:
        with pytest.MonkeyPatch.context() as patched:
            for name, value in env.items():
                patched.setenv(name, value)
            place._launcher.cache_clear()
            try:
                return place.find()
            finally:
                place._launcher.cache_clear()

    return find_in


def test_no_launcher_is_one_rank(told: Any) -> None:
    found = told({})
    assert (found.rank, found.size, found.launcher, found.job) == (0, 1, "none", None)


def test_srun_over_two_nodes_has_no_common_socket(told: Any) -> None:
    env = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}
    env |= {"SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "4"}
    assert told(env) == place.Place(3, 4, "slurm", "7.0")
    assert told(env | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}) == place.Place(3, 4, "slurm", None)
    batch = {k: v for k, v in env.items() if k != "SLURM_STEP_ID"}
    assert told(batch) == place.ALONE


def test_launch_leaves_a_ranks_variables_out() -> None:
    env = {**os.environ, "OMPI_COMM_WORLD_RANK": "1", "PMI_RANK": "1", "OMPI_MCA_pml": "ob1"}
    job = command(2, ["true"], env=env)
    assert "OMPI_COMM_WORLD_RANK" not in job.env
    assert "PMI_RANK" not in job.env
    assert job.env["OMPI_MCA_pml"] == "ob1"
    assert job.argv[-3:] == ["-np", "2", "true"]


def test_unknown_mpi_says_where_it_looked() -> None:
    with pytest.raises(FileNotFoundError, match="nosuch"):
        command(2, ["true"], mpi="nosuch")


class Meeting:
    """A hub that listens on TCP in a thread. Rank 0 is connected."""

    def __init__(self, size: int) -> None:
        self.said: list[str] = []
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        pairs = socket.socketpair(), socket.socketpair()
        self.zero = Connection(pairs[0][0]), Connection(pairs[1][0])
        own = pairs[0][1], pairs[1][1]
        hub = Hub(size, listener, own, "secret", 1.0, self.said.append)
        self.thread = threading.Thread(target=hub.serve)
        self.thread.start()

    def connect(self, rank: int, token: str = "secret") -> tuple[Connection, Connection]:
        return connect(Endpoint(socket.AF_INET, [self.address], token), rank, 0.5)

    def leave(self, *ranks: tuple[Connection, Connection]) -> None:
        for rounds, _ in ranks:
            rounds.send({"kind": "bye"})
        self.thread.join(10)
        assert not self.thread.is_alive()
        for line in (line for lines in ranks for line in lines):
            line.sock.close()


def test_rounds_over_tcp_past_strangers() -> None:
    meeting = Meeting(3)
    stranger = socket.create_connection(meeting.address)
    stranger.sendall(b"\xff\xff\xff\xffGET / HTTP/1.0\r\n\r\n")
    silent = socket.create_connection(meeting.address)
    ranks = [meeting.zero, meeting.connect(1), meeting.connect(2)]
    for number, (rounds, _) in enumerate(ranks):
        rounds.send({"kind": "meet", "number": number, "more": "a report"})
    answers = [rounds.receive() for rounds, _ in ranks]
    for answer in answers:
        assert answer is not None
        assert [answer["all"][str(r)]["number"] for r in range(3)] == [0, 1, 2]
    assert ["more" in answer["all"]["1"] for answer in answers if answer] == [True, False, False]
    meeting.leave(*ranks)
    stranger.close()
    silent.close()
    assert meeting.said == []


def test_another_token_or_rank_is_turned_away() -> None:
    meeting = Meeting(2)
    with pytest.raises(HubError, match="rank 1 cannot reach rank 0's pytest"):
        meeting.connect(1, "guess")
    for taken in (0, 2):
        with pytest.raises(HubError, match=f"rank {taken} cannot reach"):
            meeting.connect(taken)
    meeting.leave(meeting.zero, meeting.connect(1))


def test_nothing_is_read_behind_a_wrong_token() -> None:
    for shown, proved, left in [
        (b"secret{}", True, 2),
        (b"secre7{}", False, 2),
        (b"guess and much more", False, 13),
    ]:
        here, there = socket.socketpair()
        with here, there:
            there.sendall(shown)
            connection = Connection(here)
            with contextlib.nullcontext() if proved else pytest.raises(EOFError):
                connection.prove("secret")
            assert connection.proved == proved
            assert len(here.recv(100)) == left


def test_a_token_in_pieces() -> None:
    here, there = socket.socketpair()
    with here, there:
        connection = Connection(here)
        for piece in (b"se", b"cr", b"et"):
            assert not connection.proved
            there.sendall(piece)
            connection.prove("secret")
        assert connection.proved
        there.close()
        with pytest.raises(EOFError):
            Connection(here).prove("secret")


@pytest.mark.parametrize(
    "sent",
    [
        "{}",
        "[]",
        "7",
        "rubbish",
        '{"kind": 7}',
        '{"kind": "begin"}',
        '{"kind": "begin", "test": "t", "seconds": "x"}',
        "[" * 100_000,
        "\xff\x00",
    ],
)
def test_a_rank_that_sends_no_message(sent: str) -> None:
    """The hub goes on, and rank 0 is told which rank it was."""
    meeting = Meeting(2)
    one = meeting.connect(1)
    one[0].send(sent)
    meeting.zero[0].send({"kind": "meet"})
    told = meeting.zero[1].receive()
    assert told is not None
    assert "rank 1" in told["summary"], told
    assert "rank 1" in "".join(meeting.said)
    meeting.zero[0].sock.shutdown(socket.SHUT_RDWR)
    meeting.thread.join(10)
    assert not meeting.thread.is_alive()
    assert "the hub of the tests failed" not in "".join(meeting.said)


def test_a_rank_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paddlempi.testing.hub, "MEET_SECONDS", 0.5)
    meeting = Meeting(3)
    other = meeting.connect(2)
    meeting.zero[0].send({"kind": "meet"})
    answer = meeting.zero[0].receive()
    assert answer is not None
    assert answer["stop"].startswith("ranks 1, 2 did not come within 0.5 s")
    assert "stop" in (other[0].receive() or {})
    meeting.thread.join(10)


def test_ranks_in_different_rounds_are_stopped() -> None:
    meeting = Meeting(2)
    ranks = [meeting.zero, meeting.connect(1)]
    for rounds, _ in ranks:
        rounds.send({"kind": "meet"})
    for number, (rounds, _) in enumerate(ranks):
        assert rounds.receive() == {"same": "meet"}
        rounds.send({"kind": "report", "test": f"test_{number}", "when": "call"})
    for rounds, _ in ranks:
        stop = (rounds.receive() or {})["stop"]
        assert "(rank 0: report test_0 call; rank 1: report test_1 call)" in stop
    meeting.leave(*ranks)


def test_worst_outcome_wins() -> None:
    def verdict(*states: str) -> tuple[str, list[int]]:
        found = agree({r: {"state": s, "duration": 0} for r, s in enumerate(states)})
        return found.state, found.ranks

    assert verdict("passed", "passed") == ("passed", [0, 1])
    assert verdict("passed", "failed", "skipped") == ("failed", [1])
    assert verdict("passed", "skipped") == ("skipped", [1])
    assert verdict("xpassed(strict)", "xpassed(strict)") == ("failed", [0, 1])
    assert verdict("xpassed(strict)", "xfailed") == ("xfailed", [1])
    assert verdict("xfailed", "failed") == ("failed", [1])


def test_collections() -> None:
    assert compare_collections({0: ["a", "b"], 1: ["a", "b"]}) == ""
    shorter = compare_collections({0: ["a", "b"], 1: ["a"]})
    assert "rank 1: no more tests" in shorter


@pytest.mark.parametrize(
    ("ranks", "text"), [([1], "rank 1"), ([3, 0], "ranks 0, 3"), ([4, 2, 3, 0], "ranks 0, 2-4")]
)
def test_names_of_ranks(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text
