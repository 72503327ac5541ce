"""The interposed MPI itself, called through MPI's functions by jobs of two ranks."""

from __future__ import annotations

import os
from pathlib import Path

import interposed
import job
import pytest
from paddlempi.testing import launch

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("interposed")
    path = os.pathsep.join([str(HERE), job.HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        "PADDLEMPI_MPI": str(interposed.build(folder)),
        "PYTHONPATH": path,
    }


def _exchange() -> None:
    import ctypes
    import os

    import device
    import interposed
    import numpy as np

    mpi = ctypes.CDLL(os.environ["PADDLEMPI_MPI"], mode=ctypes.RTLD_GLOBAL)
    if hasattr(mpi, "ompi_mpi_comm_self"):
        names = ("ompi_mpi_comm_world", "ompi_mpi_byte")
        world, byte = (ctypes.byref(ctypes.c_char.in_dll(mpi, name)) for name in names)
        ignore = ctypes.c_void_p(0)
    else:
        world, byte, ignore = 0x44000000, 0x4C00010D, ctypes.c_void_p(1)
    mpi.MPI_Init(None, None)
    rank = ctypes.c_int()
    mpi.MPI_Comm_rank(world, ctypes.byref(rank))
    me, other = rank.value, 1 - rank.value

    def values(rank: int) -> np.ndarray:
        return np.random.default_rng(rank).integers(0, 255, n, dtype=np.uint8)

    for n in (8, 1_000_000):  # 1_000_000 is more than MPI sends in one piece
        sent = device.DeviceTensor(values(me), offset=256)
        got = device.DeviceTensor(np.zeros(n, np.uint8))
        device.synchronize(sent.stream)
        device.synchronize(got.stream)
        requests = [ctypes.c_uint64(), ctypes.c_uint64()]
        a, b = ctypes.c_void_p(sent.data_ptr), ctypes.c_void_p(got.data_ptr)
        mpi.MPI_Irecv(b, n, byte, other, 6, world, ctypes.byref(requests[0]))
        mpi.MPI_Isend(a, n, byte, other, 6, world, ctypes.byref(requests[1]))
        for request in requests:
            done = ctypes.c_int(0)
            while not done.value:
                mpi.MPI_Test(ctypes.byref(request), ctypes.byref(done), ignore)
        assert (got.numpy() == values(other)).all()
        both = device.DeviceTensor(np.zeros(2 * n, np.uint8))
        device.synchronize(both.stream)
        mpi.MPI_Allgather(a, n, byte, ctypes.c_void_p(both.data_ptr), n, byte, world)
        assert (both.numpy() == np.concatenate([values(0), values(1)])).all()
    assert interposed.device_calls() == 6
    assert interposed.violations() == (0, "")
    with device.hold(sent.stream):
        sent.fill_from(values(me))
        mpi.MPI_Bcast(a, n, byte, 0, world)
    with device.hold(both.stream):
        both.fill_from(np.zeros(2 * n, np.uint8))
        mpi.MPI_Allgather(a, n, byte, ctypes.c_void_p(both.data_ptr), n, byte, world)
    assert interposed.violations() == (2, "MPI_Allgather")
    mpi.MPI_Finalize()


def test_device_memory_goes_through_and_early_calls_are_counted(env: dict[str, str]) -> None:
    ended = launch.run(2, _exchange, timeout=60, env=env)
    assert ended.returncode == 0, ended.output


def test_one_that_is_not_what_it_claims_crashes(env: dict[str, str]) -> None:
    ended = launch.run(2, _exchange, timeout=60, env={**env, "PMPI_INTERPOSED": "closed"})
    assert ended.returncode != 0
    assert not ended.timed_out, ended.output


def test_the_library_takes_it_for_the_mpi_that_it_wraps(env: dict[str, str]) -> None:
    def program() -> None:
        import os

        import numpy as np
        import paddlempi as dist

        dist.init_process_group("mpi")
        x = np.arange(1000.0) * (dist.get_rank() + 1)
        dist.all_reduce(x)
        assert (x == np.arange(1000.0) * 3).all()
        with open("/proc/self/maps") as maps:
            assert os.environ["PADDLEMPI_MPI"] in maps.read()

    ended = launch.run(2, program, timeout=60, env=env)
    assert ended.returncode == 0, ended.output
