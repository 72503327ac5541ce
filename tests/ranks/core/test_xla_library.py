"""The library that jaxlib loads as its MPI, called as XLA calls it. It does not need JAX."""

from __future__ import annotations

import ctypes
import threading
from types import ModuleType

import numpy as np
import pytest
from paddlempi.testing import World
from xla_library import MPI, TYPES

pytestmark = pytest.mark.mpi(ranks=[2, 3])

WAIT = 1.0
"""Seconds for which a split waits for all processes."""

LARGE = 70_000


@pytest.fixture(scope="module")
def mpi(mpi_world: World) -> MPI:
    """The library with the core's functions."""
    return MPI(mpi_world.rank, mpi_world.size, WAIT)


@pytest.fixture(scope="module")
def world(mpi: MPI, mpi_world: World) -> ctypes.c_ssize_t:
    """A communicator of all ranks."""
    comm = mpi.split(0, mpi_world.rank)
    assert mpi.place(comm) == (mpi_world.rank, mpi_world.size)
    return comm


@pytest.mark.parametrize("n", [0, 2, LARGE])
@pytest.mark.parametrize("dtype", TYPES)
def test_reductions(
    mpi: MPI, world: ctypes.c_ssize_t, rank: int, size: int, dtype: str, n: int
) -> None:
    of_ranks = [(np.arange(n * size) % 3 + r % 2 + 1).astype(dtype) for r in range(size)]
    x = of_ranks[rank]
    ops = {"SUM": np.add, "PROD": np.multiply}
    if not dtype.startswith("complex"):
        ops |= {"MIN": np.minimum, "MAX": np.maximum}
    for op, function in ops.items():
        expected = function.reduce(of_ranks, dtype=dtype)
        np.testing.assert_allclose(mpi.all_reduce(world, x, op), expected, rtol=1e-6)
        part = np.empty(n, dtype)
        counts = np.full(size, n, np.int32)
        of = mpi.constant(TYPES[dtype])
        mpi.call("Reduce_scatter", x, part, counts, of, mpi.constant(op), world)
        np.testing.assert_allclose(part, expected[n * rank : n * (rank + 1)], rtol=1e-6)


@pytest.mark.parametrize("n", [0, 3, LARGE])
def test_moves(mpi: MPI, world: ctypes.c_ssize_t, rank: int, size: int, n: int) -> None:
    of_ranks = [np.arange(n * size, dtype=np.float32) + 1000 * r for r in range(size)]
    x, of = of_ranks[rank], mpi.constant("FLOAT")
    gathered = np.empty((size, n * size), np.float32)
    mpi.call("Allgather", x, n * size, of, gathered, n * size, of, world)
    assert (gathered == of_ranks).all()

    # As XLA's all_to_all: the parts go pair by pair.
    parts, out, byte = x.reshape(size, n), np.empty((size, n), np.float32), mpi.constant("BYTE")
    out[rank] = parts[rank]
    for i in range(1, size):
        to, come = (rank + i) % size, (rank - i) % size
        arguments = (parts[to], 4 * n, byte, to, 0, out[come], 4 * n, byte, come, 0)
        mpi.call("Sendrecv", *arguments, world, None)
    assert (out == [r.reshape(size, n)[rank] for r in of_ranks]).all()

    # As its collective_permute.
    here = np.empty_like(x)
    requests = [ctypes.c_ssize_t(), ctypes.c_ssize_t()]
    before, after = (rank - 1) % size, (rank + 1) % size
    mpi.call("Irecv", here, x.nbytes, byte, before, 0, world, ctypes.byref(requests[0]))
    mpi.call("Isend", x, x.nbytes, byte, after, 0, world, ctypes.byref(requests[1]))
    for request in requests:
        mpi.call("Wait", ctypes.byref(request), None)
        assert request.value == mpi.constant("REQUEST_NULL").value
        mpi.call("Wait", ctypes.byref(request), None)
    assert (here == of_ranks[before]).all()


def test_partitions(mpi: MPI, rank: int, size: int) -> None:
    turned = mpi.split(size - 1, size - 1 - rank)
    assert mpi.place(turned) == (size - 1 - rank, size)
    gathered = np.empty(size, np.int32)
    of, mine = mpi.constant("INT32_T"), np.array([rank], np.int32)
    mpi.call("Allgather", mine, 1, of, gathered, 1, of, turned)
    assert gathered.tolist() == list(range(size))[::-1]

    row = mpi.split(0, 0) if rank == 0 else mpi.split(1, rank - 1)
    members = [0] if rank == 0 else list(range(1, size))
    assert mpi.place(row) == (members.index(rank), len(members))
    assert mpi.all_reduce(row, np.array([float(rank)])) == sum(members)

    undefined = mpi.constant("UNDEFINED").value
    none = mpi.split(undefined if rank == 0 else 5, 0 if rank == 0 else rank - 1)
    assert (none.value == mpi.constant("COMM_NULL").value) == (rank == 0)
    if rank == 0:
        with pytest.raises(RuntimeError, match="MPI_COMM_NULL is no communicator"):
            mpi.all_reduce(none, np.zeros(1))
    mpi.call("Comm_free", ctypes.byref(turned))
    assert turned.value == mpi.constant("COMM_NULL").value


def test_not_all_come(mpi: MPI, dist: ModuleType, rank: int, size: int) -> None:
    for _ in range(2):  # each process has asked another number of times than the last one
        if rank < size - 1:
            part = mpi.split(0, rank)
            assert mpi.place(part) == (rank, size - 1)  # XLA relies on them
            text = rf"rank {rank}, MPI_\w+: Comm_split: {size - 1} of {size} processes came .*gloo"
            with pytest.raises(RuntimeError, match=text):
                mpi.all_reduce(part, np.zeros(1))
            request = ctypes.c_ssize_t()
            with pytest.raises(RuntimeError, match=f"not {size - 1}"):
                mpi.call(
                    "Irecv", np.zeros(1), 8, mpi.constant("BYTE"), 0, 0, part, ctypes.byref(request)
                )
            mpi.call("Comm_free", ctypes.byref(part))
        dist.barrier()
        comm = mpi.split(0, rank)
        assert mpi.all_reduce(comm, np.array([1.0])) == size


def test_different_meshes_at_once(mpi: MPI, rank: int) -> None:
    # Rank 0 comes for a mesh of its own, and the others for one of all.
    comm = mpi.split(0, rank if rank else 1)
    with pytest.raises(RuntimeError, match="different meshes"):
        mpi.all_reduce(comm, np.zeros(1))


def test_several_devices_of_a_process(mpi: MPI, rank: int, size: int) -> None:
    """Its devices meet those of others in any order, and MPI knows one member a process."""
    many = rank == size - 1
    mpi.devices(2 if many else 1)
    text = f"process {size - 1} has 2 CPU devices.*gloo"
    for colour in (0, 1) if many else (1, 0):  # as the devices of two cliques
        comm = mpi.split(colour, int(many))
        assert mpi.place(comm)[0] == int(many)
        with pytest.raises(RuntimeError, match=text):
            mpi.all_reduce(comm, np.zeros(1))
        with pytest.raises(RuntimeError, match=text):
            byte = mpi.constant("BYTE")
            mpi.call("Allgather", np.zeros(1), 8, byte, np.zeros(size), 8, byte, comm)
    mpi.devices(1)
    assert mpi.all_reduce(mpi.split(0, rank), np.array([1.0])) == size


def test_two_threads(mpi: MPI, rank: int, size: int) -> None:
    sums = []

    def ask() -> None:
        comm = mpi.split(0, rank)
        sums.extend(mpi.all_reduce(comm, np.full(10, 1.0 + i)).sum() for i in range(3))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sums) == sorted(2 * [10.0 * size * (1 + i) for i in range(3)])


def test_errors(mpi: MPI, rank: int, size: int) -> None:
    comm = mpi.split(0, rank)
    with pytest.raises(RuntimeError, match=rf"rank {rank}, MPI_Allreduce: .*4.*5"):
        mpi.all_reduce(comm, np.zeros(4 + (rank == 0)))
    with pytest.raises(RuntimeError, match=r"MPI_Allreduce: the count is -5: .*2\^31"):
        mpi.call("Allreduce", None, None, -5, mpi.constant("FLOAT"), mpi.constant("SUM"), comm)
    with pytest.raises(RuntimeError, match=r"MPI_Bcast: this function is not carried out"):
        mpi.call("Bcast")
    counts = np.arange(size, dtype=np.int32)
    with pytest.raises(RuntimeError, match=r"part 0 has 0 elements and part 1 has 1"):
        mpi.call("Reduce_scatter", None, None, counts, mpi.constant("FLOAT"), 1, comm)
    mpi.call("Comm_free", ctypes.byref(ctypes.c_ssize_t(comm.value)))
    with pytest.raises(RuntimeError, match="the communicator was freed"):
        mpi.all_reduce(comm, np.zeros(1))


def test_what_xla_asks_first(mpi: MPI, rank: int, size: int) -> None:
    level, flag = ctypes.c_int(), ctypes.c_int()
    mpi.call("Init_thread", None, None, mpi.constant("THREAD_FUNNELED"), ctypes.byref(level))
    assert level.value == mpi.constant("THREAD_MULTIPLE").value
    thread = threading.Thread(target=lambda: mpi.call("Is_thread_main", ctypes.byref(flag)))
    thread.start()
    thread.join()
    assert flag.value == 1
    assert mpi.place(mpi.constant("COMM_WORLD")) == (rank, size)
