"""The path direct: MPI gets device pointers. How paddlempi finds out whether MPI takes them.

The interposed MPI stands in for a CUDA-aware one. It counts the calls that were given device
memory, and the calls that came while a stream was still using that memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import interposed
import job
import pytest
from paddlempi.testing import launch

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def mpi(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build an MPI that says that it takes CUDA memory, and does. Return its path."""
    return str(interposed.build(tmp_path_factory.mktemp("direct")))


def run(ranks: int, program: Callable[[], object], mpi: str, **settings: str) -> launch.Result:
    """Run a job under that MPI. The program may import the modules of this folder."""
    path = os.pathsep.join([str(HERE), job.HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, **settings, "PADDLEMPI_MPI": mpi, "PYTHONPATH": path}
    ended = launch.run(ranks, program, timeout=100, env=env)
    assert not ended.timed_out, ended.output
    return ended


def succeed(ranks: int, program: Callable[[], object], mpi: str, **settings: str) -> None:
    """Run a job under that MPI. Fail unless every rank comes to the end of the program."""
    ended = run(ranks, program, mpi, **settings)
    assert ended.returncode == 0, ended.output
    assert ended.stdout.count("done") == ranks, ended.output


def operations() -> None:
    import interposed
    import numpy as np
    import paddlempi as dist
    from device import DeviceTensor, new_stream

    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    stream = new_stream()
    n = 3000

    def values(n: int, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).integers(-9000, 9000, n).astype(np.int32)

    def tensor(values: np.ndarray) -> DeviceTensor:
        return DeviceTensor(values, stream=stream)

    def room(n: int) -> DeviceTensor:
        return tensor(np.full(n, 77, np.int32))

    def same(got: DeviceTensor, expected: np.ndarray, what: str) -> None:
        assert (got.numpy() == expected).all(), (what, rank)

    def carry_out(function, *arguments, **named) -> None:
        before = interposed.device_calls()
        work = function(*arguments, **named)
        if work is not None:
            assert work.wait()
        went = interposed.device_calls() - before
        assert went > 0, f"{function.__name__} gave MPI no device memory"

    for asynchronous in (False, True):
        late = {"async_op": asynchronous}
        for length in (1, 1000, 200_003):  # the last length is broadcast by scatter and allgather
            for root in range(size):
                x = tensor(values(length, root if rank == root else 99))
                carry_out(dist.broadcast, x, root, **late)
                same(x, values(length, root), "broadcast")
        mine, whole = tensor(values(n, rank)), room(n * size)
        carry_out(dist.all_gather_into_tensor, whole, mine, **late)
        same(whole, np.concatenate([values(n, r) for r in range(size)]), "all_gather_into_tensor")
        parts = [room(n) for _ in range(size)]
        carry_out(dist.all_gather, parts, mine, **late)
        for r, part in enumerate(parts):
            same(part, values(n, r), "all_gather")
        for root in range(size):
            mine, parts = tensor(values(n, rank)), [room(n) for _ in range(size)]
            carry_out(dist.gather, mine, parts if rank == root else None, root, **late)
            for r, part in enumerate(parts if rank == root else []):
                same(part, values(n, r), "gather")
            given = [tensor(values(n, 50 + r)) for r in range(size)]
            carry_out(dist.scatter, mine, given if rank == root else None, root, **late)
            same(mine, values(n, 50 + rank), "scatter")
        sent = tensor(np.concatenate([values(n, 10 * rank + to) for to in range(size)]))
        got = room(n * size)
        carry_out(dist.all_to_all_single, got, sent, **late)
        expected = np.concatenate([values(n, 10 * r + rank) for r in range(size)])
        same(got, expected, "all_to_all_single")
        give = [(rank + to) % 3 * 7 for to in range(size)]
        sent = tensor(np.concatenate([values(k, 10 * rank + to) for to, k in enumerate(give)]))
        got = room(sum(give))  # a rank gets from another rank as many as it gives
        carry_out(dist.all_to_all_single, got, sent, give, give, **late)
        expected = np.concatenate([values(k, 10 * r + rank) for r, k in enumerate(give)])
        same(got, expected, "uneven all_to_all_single")
    # Some ranks have tensors in host memory. MPI takes their addresses as well.
    x = values(n, rank) if rank % 2 else tensor(values(n, rank))
    dist.broadcast(x, size - 1)
    assert ((x if rank % 2 else x.numpy()) == values(n, size - 1)).all()
    assert interposed.violations() == (0, ""), interposed.violations()
    print("done")


@pytest.mark.parametrize("ranks", [2, 3])
def test_operations_that_move_data(mpi: str, ranks: int) -> None:
    succeed(ranks, operations, mpi, PADDLEMPI_CUDA_AWARE="1", PADDLEMPI_CUDA_PATHS="direct")


def messages() -> None:
    import interposed
    import numpy as np
    import paddlempi as dist
    from device import DeviceTensor

    dist.init_process_group()
    rank = dist.get_rank()
    for n in (1, 100_000):
        values = np.arange(n, dtype=np.float64)
        if rank:
            got = DeviceTensor(np.zeros(n))
            dist.recv(got, 0)
            assert (got.numpy() == values).all()
            got = DeviceTensor(np.zeros(n))
            dist.irecv(got, 0, tag=3).wait()
            assert (got.numpy() == 2 * values).all()
        else:
            dist.send(DeviceTensor(values), 1)
            dist.isend(DeviceTensor(2 * values), 1, tag=3).wait()
        # The send waits for the receive of the other rank. The receive waits for its stream.
        room, other = DeviceTensor(np.full(n, -1.0)), 1 - rank
        assert dist.sendrecv(values + rank, other, room, other) == other
        assert (room.numpy() == values + other).all()
    assert interposed.device_calls() >= 6 and interposed.violations() == (0, "")
    print("done")


def test_messages(mpi: str) -> None:
    succeed(2, messages, mpi, PADDLEMPI_CUDA_AWARE="1", PADDLEMPI_CUDA_PATHS="direct")


def refusals() -> None:
    import numpy as np
    import paddlempi as dist
    import pytest
    from device import DeviceTensor

    dist.init_process_group()
    rank = dist.get_rank()
    x = DeviceTensor(np.arange(8.0))
    with pytest.raises(dist.errors.UnsupportedError, match=r"all_reduce: .*only moves data"):
        dist.all_reduce(x)
    with pytest.raises(dist.errors.UnsupportedError, match=r"broadcast: .*one contiguous tensor"):
        dist.broadcast(x[::2], 0)
    y = DeviceTensor(np.full(8, float(rank)))
    dist.broadcast(y, 1)  # the group stays usable
    assert (y.numpy() == 1).all()
    print("done")


def test_a_forced_path_that_cannot_serve(mpi: str) -> None:
    succeed(2, refusals, mpi, PADDLEMPI_CUDA_AWARE="1", PADDLEMPI_CUDA_PATHS="direct")


def told(expected: str, path: str) -> Callable[[], None]:
    """Return a program that expects this of MPI's awareness, and moves a tensor by this path."""

    def program() -> None:
        import os

        import interposed
        import numpy as np
        import paddlempi as dist
        from device import DeviceTensor
        from paddlempi import _native

        dist.init_process_group()
        rank = dist.get_rank()
        found = _native.control("cuda", wait=True)
        assert os.environ["EXPECTED"] in f"{found['aware']} {found['how']} {found['reason']}", found
        before = interposed.device_calls()
        x = DeviceTensor(np.full(5000, float(rank)))
        dist.broadcast(x, 1)
        assert (x.numpy() == 1).all()
        direct = interposed.device_calls() > before
        assert direct == (os.environ["BY"] == "direct"), os.environ["BY"]
        assert interposed.violations() == (0, "")
        print("done")

    os.environ["EXPECTED"], os.environ["BY"] = expected, path
    return program


@pytest.mark.parametrize(
    ("settings", "found", "path"),
    [
        ({"PADDLEMPI_CUDA_AWARE": "1"}, "True set PADDLEMPI_CUDA_AWARE", "direct"),
        ({"PADDLEMPI_CUDA_AWARE": "0"}, "False set PADDLEMPI_CUDA_AWARE", "staged"),
        ({}, "True tried MPI_Isend and MPI_Irecv moved", "direct"),
        ({"PMPI_INTERPOSED": "closed"}, "False tried the child process that tried it", "staged"),
    ],
    ids=["said to be", "said not to be", "is", "claims to be"],
)
def test_whether_mpi_is_cuda_aware(
    mpi: str, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], found: str, path: str
) -> None:
    monkeypatch.setenv("EXPECTED", "")
    monkeypatch.setenv("BY", "")
    succeed(2, told(found, path), mpi, PADDLEMPI_CUDA_PATHS="direct,staged", **settings)


def test_ranks_that_differ(mpi: str) -> None:
    def program() -> None:
        import os

        rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
        os.environ["PADDLEMPI_CUDA_AWARE"] = "1" if rank == "0" else "0"
        import interposed
        import numpy as np
        import paddlempi as dist
        from device import DeviceTensor

        dist.init_process_group()
        x = DeviceTensor(np.full(5000, float(rank)))
        dist.broadcast(x, 1)
        assert (x.numpy() == 1).all() and interposed.device_calls() == 0
        print("done")

    succeed(2, program, mpi, PADDLEMPI_CUDA_PATHS="direct,staged")


def test_a_value_that_means_nothing(mpi: str) -> None:
    def program() -> None:
        import paddlempi as dist
        import pytest

        with pytest.raises(
            dist.errors.ArgumentError, match=r'PADDLEMPI_CUDA_AWARE="yes": it takes 1'
        ):
            dist.init_process_group()
        print("done")

    succeed(2, program, mpi, PADDLEMPI_CUDA_AWARE="yes")
