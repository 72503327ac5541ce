"""Jobs that spawn processes, and jobs that meet."""

from __future__ import annotations

import socket
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import job
import pytest
from one_mpi import MPI, WHEEL

# Intel MPI reads it before it is initialised.
SPAWNS = {"I_MPI_SPAWN": "1"} if MPI == "impi" else {}

joins = pytest.mark.skipif(MPI == "openmpi", reason="Open MPI cannot join two jobs")


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a Python program, and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / f"program{len(list(tmp_path.iterdir()))}.py"
        path.write_text("import paddlempi as dist\n" + textwrap.dedent(text))
        return path

    return write


CHILD = """
import numpy as np

dist.init_process_group("mpi", timeout=40)
with dist.get_parent() as parents:
    assert dist.get_parent() is parents
    rank = parents.rank()
    assert (parents.size(), parents.remote_size(), dist.get_world_size()) == (2, 2, 2)
    assert rank == dist.get_rank()
    x = np.zeros(3)
    assert parents.recv(x, 1 - rank, tag=3) == 1 - rank
    parents.send(x * 10, 1 - rank, tag=4)
    parents.send_object_list([{"from": rank}, None], 0)
    both = parents.merge()
    assert (both.rank(), both.size()) == (2 + rank, 4), both
    y = np.full(5, both.rank() + 1.0)
    dist.all_reduce(y, group=both)
    assert (y == 10).all(), y
    before = parents.merge(high=False)
    assert before.rank() == rank, before
    pairs = dist.split_group(rank, group=both)
    dist.all_reduce(y, group=pairs)
    assert (y == 20).all() and pairs.size() == 2, (y, pairs)
"""


def parents() -> None:
    import os
    import sys

    import numpy as np
    from ranks_tools import dist, done, raises, errors, start

    rank = start()
    with dist.spawn([sys.executable, os.environ["CHILD"]], 2, timeout=50) as children:
        assert (children.rank(), children.size(), children.remote_size()) == (rank, 2, 2)
        children.send(np.full(3, rank + 1.0), 1 - rank, tag=3)
        x = np.zeros(3)
        work = children.irecv(x, tag=4)
        assert work.source_rank() == 1 - rank
        assert (x == 10 * (rank + 1)).all(), x
        if rank == 0:
            for _ in range(2):
                told = [0, 0]
                source = children.recv_object_list(told)
                assert told == [{"from": source}, None]
        with raises(errors.ArgumentError, "dst=2 is out of range"):
            children.send(x, 2)
        with raises(errors.DtypeError, "must be a rank of the other party"):
            children.recv(x, "one")
        both = children.merge()
        assert (both.rank(), both.size()) == (rank, 4), both
        y = np.full(5, both.rank() + 1.0)
        dist.all_reduce(y, group=both)
        assert (y == 10).all(), y
        after = children.merge(high=True)
        assert after.rank() == 2 + rank, after
        pairs = dist.split_group(rank, group=both)
        dist.all_reduce(y, group=pairs)
        assert (y == 20).all() and pairs.size() == 2, (y, pairs)
    with raises(errors.GroupDestroyedError):
        children.send(x, 0)
    with raises(errors.GroupDestroyedError):
        dist.all_reduce(y, group=both)
    dist.all_reduce(y)
    assert dist.get_parent() is None
    done()


def test_spawn(program: Callable[[str], Path]) -> None:
    job.succeed(2, parents, env={"CHILD": str(program(CHILD)), **SPAWNS})


def refused() -> None:
    import os
    import sys

    from ranks_tools import dist, done, errors, raises, start

    rank = start()
    kind = os.environ["FAULTS_MPI"]
    for call in (dist.accept, dist.connect):
        if kind != "mpich":
            with raises(errors.UnsupportedError, "MPICH", "I_MPI_SPAWN=1", most=1):
                call("127.0.0.1:9", secret="s", timeout=20)
    if kind == "impi":
        with raises(errors.UnsupportedError, "I_MPI_SPAWN=1", most=1):
            dist.spawn([sys.executable, "-c", ""], 1)
    with raises(errors.DtypeError, "command"):
        dist.spawn([1], 1)
    if kind != "impi":
        with raises(errors.ArgumentError, "n=0 is not from 1"):
            dist.spawn("true", 0)
        with raises(errors.ArgumentError, "no-such-program", ranks=() if rank == 0 else (0,)):
            dist.spawn(["./no-such-program"], 1)
    done()


def test_what_is_refused() -> None:
    job.succeed(2, refused)


# Two jobs


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


@joins
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


@joins
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


@joins
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


@joins
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


@joins
def test_nobody_comes(jobs: Jobs, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    secret.chmod(0o644)
    came_well(jobs.start(2, alone, SECRET=str(secret)), 2)


# Deaths


DYING_CHILD = """
import os, signal

dist.init_process_group("mpi", timeout=40)
parents = dist.get_parent()
if parents.rank() == 1:
    parents.send_object_list(["alive"], 0)
    os.kill(os.getpid(), signal.SIGKILL)
import time
time.sleep(60)
"""


def parent_of_the_dying() -> None:
    import os
    import sys

    import numpy as np
    from ranks_tools import dist, errors, raises, stamp, start

    start()
    command = [sys.executable, os.environ["CHILD"]]
    if os.environ["FAULTS_MPI"] == "mpich":  # its launcher ends the job if the process itself dies
        command = ["/bin/sh", "-c", " ".join(command) + "; sleep 5"]
    children = dist.spawn(command, 2, timeout=50)
    told = [None]
    assert children.recv_object_list(told, 1) == 1 and told == ["alive"]
    with raises(errors.PeerDiedError, "died", ranks=(2,), most=3):
        children.recv(np.zeros(3), 1)
    with raises(errors.PeerDiedError, ranks=(2,)):
        children.merge()
    children.disconnect()
    stamp("seen")
    os._exit(0)


@pytest.mark.skipif(not WHEEL, reason="only launchers of the wheels leave the others alone")
@pytest.mark.skipif(MPI == "impi", reason="Intel's launcher ends the job")
def test_a_spawned_process_dies(program: Callable[[str], Path]) -> None:
    options = ("--with-ft", "ulfm") if MPI == "openmpi" else ()
    ended = job.run(
        1, parent_of_the_dying, env={"CHILD": str(program(DYING_CHILD))}, options=options
    )
    assert ended.stamp("seen"), ended.output
