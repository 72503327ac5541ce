"""Two jobs that meet. Open MPI cannot join jobs, and this file is not run under it."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import job
import pytest
from contract import MPI
from paddlempi.testing import launch

# Intel MPI reads it before it is initialised.
SPAWNS = {"I_MPI_SPAWN": "1"} if MPI == "impi" else {}


class Jobs:
    """Jobs that run beside each other. ``address`` is where one of them accepts."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.pool = ThreadPoolExecutor(8)

    def start(self, np: int, function: Callable[[], object], **env: str) -> Future[job.Ended]:
        env = {"ADDRESS": self.address, **SPAWNS, **env}
        options = ("-disable-auto-cleanup",) if env.pop("SURVIVE", "") and MPI == "mpich" else ()
        return self.pool.submit(job.run, np, function, env=env, options=options, timeout=90)


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    one = Jobs()
    yield one
    one.pool.shutdown()


def came_well(ended: Future[job.Ended], np: int) -> None:
    result = ended.result()
    assert result.returncode == 0, result.output
    assert result.output.count("done\n") == np, result.output


def server_of_two() -> None:
    import os

    import numpy as np
    from ranks_tools import dist, done, start

    rank = start()
    with dist.accept(os.environ["ADDRESS"], secret="s3cret", timeout=60) as clients:
        assert (clients.rank(), clients.size(), clients.remote_size()) == (rank, 2, 3)
        x = np.zeros(1 << 18)
        for _ in range(3):
            source = clients.recv(x)
            clients.send(x + rank, source)
        both = clients.merge()
        assert both.rank() == rank
        y = np.full(1 << 16, 1.0 + both.rank())
        dist.all_reduce(y, group=both)
        assert (y == 15).all()
    dist.all_reduce(y)
    done()


def three_clients() -> None:
    import os

    import numpy as np
    from ranks_tools import dist, done, start

    rank = start()
    with dist.connect(os.environ["ADDRESS"], secret=b"s3cret", timeout=60) as server:
        assert (server.rank(), server.size(), server.remote_size()) == (rank, 3, 2)
        x = np.zeros(1 << 18)
        for peer in range(2):
            server.send(np.full(1 << 18, float(rank)), peer)
            assert server.recv(x, peer) == peer
            assert (x == rank + peer).all()
        both = server.merge()
        assert both.rank() == 2 + rank
        y = np.full(1 << 16, 1.0 + both.rank())
        dist.all_reduce(y, group=both)
        assert (y == 15).all()
    dist.barrier()
    done()


def test_two_jobs(jobs: Jobs) -> None:
    server = jobs.start(2, server_of_two)
    client = jobs.start(3, three_clients)
    came_well(client, 3)
    came_well(server, 2)


def serve() -> None:
    """Answer jobs until one asks to stop. Those that fail do not count."""
    import os

    from ranks_tools import dist, done, errors, start

    start()
    served, failed = [], []
    while True:
        with dist.accept(os.environ["ADDRESS"], secret="s3cret", timeout=60) as client:
            asked = [None]
            try:
                client.recv_object_list(asked)
                if asked[0] != "stop":
                    served.append(asked[0])
                client.send_object_list([asked[0]], 0)
            except errors.PeerLeftError as error:
                failed.append(type(error).__name__)
        if asked[0] == "stop":
            break
    assert len(served) == int(os.environ["JOBS"]), served
    assert failed == os.environ.get("FAILED", "").split(), failed
    done()


def ask() -> None:
    import os

    from ranks_tools import dist, done, start

    start()
    with dist.connect(os.environ["ADDRESS"], secret="s3cret", timeout=60) as server:
        server.send_object_list([os.environ["QUESTION"]], 0)
        answer = [None]
        server.recv_object_list(answer, 0)
        assert answer == [os.environ["QUESTION"]]
    done()


def test_jobs_come_and_go(jobs: Jobs) -> None:
    """Each job has ended before the next one begins, and the server serves on."""
    server = jobs.start(1, serve, JOBS="20")
    for number in range(20):
        came_well(jobs.start(1, ask, QUESTION=str(number)), 1)
        assert not server.done(), server.result().output
    came_well(jobs.start(1, ask, QUESTION="stop"), 1)
    came_well(server, 1)


def guess() -> None:
    import os

    from ranks_tools import dist, done, errors, raises, start

    start()
    with raises(errors.ArgumentError, "another secret", most=10):
        dist.connect(os.environ["ADDRESS"], secret="guessed", timeout=30)
    done()


def test_strangers_are_turned_away(jobs: Jobs) -> None:
    server = jobs.start(1, serve, JOBS="1")
    half_open = []
    for number in range(1000):
        ended = time.monotonic() + 60
        while True:
            try:
                half_open.append(socket.create_connection(("127.0.0.1", jobs.port), timeout=5))
                break
            except OSError:  # the server has not started
                assert time.monotonic() < ended, server.result().output
                time.sleep(0.05)
        half_open[-1].send(b"pmpimeet"[: number % 9])
    came_well(jobs.start(1, guess), 1)
    came_well(jobs.start(1, ask, QUESTION="after the strangers"), 1)
    for connection in half_open:
        connection.close()
    came_well(jobs.start(1, ask, QUESTION="stop"), 1)
    came_well(server, 1)


def ask_and_die() -> None:
    import os
    import signal

    from ranks_tools import dist, start

    start()
    server = dist.connect(os.environ["ADDRESS"], secret="s3cret", timeout=60)
    assert server.remote_size() == 1
    os.kill(os.getpid(), signal.SIGKILL)


def ask_and_forget() -> None:
    """A job that ends without a word is one that has left."""
    import os

    from ranks_tools import dist, done, start

    start()
    dist.connect(os.environ["ADDRESS"], secret="s3cret", timeout=60)
    done()


def test_a_server_outlives_its_jobs(jobs: Jobs) -> None:
    server = jobs.start(1, serve, JOBS="2", FAILED="PeerDiedError PeerLeftError", SURVIVE="1")
    came_well(jobs.start(1, ask, QUESTION="before"), 1)
    assert jobs.start(1, ask_and_die).result().returncode != 0
    came_well(jobs.start(1, ask_and_forget), 1)
    came_well(jobs.start(1, ask, QUESTION="after"), 1)
    came_well(jobs.start(1, ask, QUESTION="stop"), 1)
    came_well(server, 1)


def alone() -> None:
    import os
    from pathlib import Path

    from ranks_tools import dist, done, errors, raises, start

    rank = start()
    address = os.environ["ADDRESS"]
    others = () if rank == 0 else (0,)
    for call in (dist.accept, dist.connect):
        with raises(errors.TimeoutError, "after 1s no job", ranks=others, least=0.5, most=3):
            call(address, secret="s3cret", timeout=1)
        with raises(errors.ArgumentError, "is no host:port", ranks=others):
            call("127.0.0.1", secret="s3cret", timeout=1)
        with raises(errors.ArgumentError, "others have rights to it", ranks=others):
            call(address, secret=Path(os.environ["SECRET"]), timeout=1)
        with raises(errors.ArgumentError, "secret is empty"):
            call(address, secret="")
        with raises(errors.DtypeError, "secret is a NoneType"):
            call(address, secret=None)
    if rank == 0:
        one = dist.new_group([0])
        with raises(errors.TimeoutError, "after 1s no job that knows the secret", most=3):
            dist.accept(address, secret="s3cret", timeout=1, group=one)
    dist.barrier()
    done()


def test_nobody_comes(jobs: Jobs, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    secret.chmod(0o644)
    came_well(jobs.start(2, alone, SECRET=str(secret)), 2)


def waits_and_is_interrupted() -> None:
    """Ctrl-C on one rank of a job that waits for another one. Later the address can be used."""
    import os
    import signal
    import threading
    import time

    from ranks_tools import dist, done, errors, start

    rank = start()
    address = os.environ["ADDRESS"]
    for call in (dist.accept, dist.connect):
        if rank == 0:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        try:
            call(address, secret="s3cret", timeout=30)
        except (KeyboardInterrupt, errors.Error) as error:
            assert isinstance(error, KeyboardInterrupt) == (rank == 0), error
        else:
            raise AssertionError("it was not interrupted")
        assert time.monotonic() - began < 10.0
        dist.barrier()
    with dist.accept(address, secret="s3cret", timeout=60) as client:
        assert client.remote_size() == 1
    done()


def comes_late() -> None:
    import os

    from ranks_tools import dist, done, errors, start

    start()
    for _ in range(3):  # the calls that are interrupted listen there, too
        try:
            with dist.connect(os.environ["ADDRESS"], secret="s3cret", timeout=60):
                break
        except errors.Error as error:
            print(error)
    done()


def test_interrupted(jobs: Jobs) -> None:
    server = jobs.start(2, waits_and_is_interrupted)
    time.sleep(4)
    came_well(jobs.start(1, comes_late), 1)
    came_well(server, 2)


def test_the_example(jobs: Jobs, tmp_path: Path) -> None:
    """Jobs of one and of three processes get answers that are right, or they fail."""
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    secret.chmod(0o600)
    path = str(Path(__file__).resolve().parents[3] / "examples" / "serve.py")

    def run(np: int, *options: str) -> Future[launch.Result]:
        command = [sys.executable, path, f"--secret={secret}", *options]
        return jobs.pool.submit(launch.run, np, command, env=SPAWNS)

    server = run(2, f"--at={jobs.address}", "--jobs=2")
    for np in (1, 3):
        asked = run(np, f"--ask={jobs.address}").result()
        assert asked.returncode == 0, asked.output
        assert asked.output.count("of the answers are right") == np
    assert server.result().returncode == 0, server.result().output
