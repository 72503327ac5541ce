"""Ranks that die, stop, or cannot be read in a collective in which ranks read each other."""

from __future__ import annotations

import os

import job
import pytest
from system_calls import number


def killed() -> None:
    """Rank 2 is killed in a series of calls, which wait or make works. The others name it."""
    import os
    import signal
    import threading
    import time

    import numpy as np
    from ranks_tools import dist, errors, leave_together, start

    rank = start()
    groups = [dist.new_group() for _ in range(2)]
    sent, got = np.ones(12 << 20, np.uint8), np.empty(12 << 20, np.uint8)
    for group in groups:
        dist.broadcast(np.zeros(100_000), 0, group=group)
    dist.barrier()
    if rank == 2:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    for asynchronous, group in enumerate(groups):
        began = time.monotonic()
        try:
            while time.monotonic() < began + 20.0:
                got[:] = 0
                work = dist.all_to_all_single(got, sent, group=group, async_op=bool(asynchronous))
                if work is not None:
                    work.wait()
                assert (got == 1).all()
        except errors.PeerDiedError as error:
            assert list(error.ranks) == [2], error
        else:
            raise AssertionError("it was not noticed")
    leave_together(rank)


def stopped() -> None:
    """Rank 1 is stopped while it reads. Rank 0 gives up at its deadline, and changes its tensor.

    What rank 1 then has is either right, or an error says that it is lost.
    """
    import os
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, impatient_group, start, stop_later, works

    rank = start()
    pids = [None] * 2
    dist.all_gather_object(pids, os.getpid())
    sent, got = np.empty(24 << 20, np.uint8), np.empty(24 << 20, np.uint8)
    modes = [False, True]
    for turn in range(16):
        asynchronous = modes[0]
        group = impatient_group(0.5)
        dist.broadcast(np.zeros(100_000), 0, group=group)
        dist.barrier()
        if rank == 0:
            child = stop_later(pids[1], 0.05 + 0.01 * turn, 1.5)
        outcome = ""
        began = time.monotonic()
        try:
            while time.monotonic() < began + 2.0:
                sent[:] = 1
                work = dist.all_to_all_single(got, sent, group=group, async_op=asynchronous)
                if asynchronous:
                    work.wait()
                assert (got == 1).all(), "garbage without an error"
        except errors.TimeoutError as error:
            outcome = str(error)
        except errors.GroupBrokenError as error:
            outcome = str(error)
        sent[:] = 7
        if rank == 0:
            os.waitpid(child, 0)
        dist.monitored_barrier(timeout=20.0)
        works()
        outcomes = [None] * 2
        dist.all_gather_object(outcomes, outcome)
        assert outcomes[0], outcomes
        if "transfer did not end" in outcomes[0]:
            assert outcomes[1], outcomes
            modes.pop(0)
            if not modes:
                break
    else:
        raise AssertionError("it was never stopped in a transfer")
    done()


def holes() -> None:
    """The middle of rank 0's tensor is closed to all. Its ends are not, so it is tried."""
    import ctypes
    import mmap

    import numpy as np
    from ranks_tools import dist, done, raises, start, works
    from ranks_tools import errors as e

    rank = start()
    size = 2 << 20
    block = mmap.mmap(-1, 2 * size)
    sent, got = np.frombuffer(block, np.uint8), np.zeros(2 * size, np.uint8)
    sent[:] = rank
    group = dist.new_group()
    dist.all_to_all_single(got, sent, group=group)
    dist.all_to_all_single(got, sent, group=group)
    assert (got[:size] == 0).all() and (got[size:] == 1).all()
    info = dist._native.control("group_info", group=group._id)
    assert info["algorithm"] == "cma", info
    libc = ctypes.CDLL(None, use_errno=True)
    middle = ctypes.c_void_p(sent.ctypes.data + size + size // 2)
    if rank == 0:
        assert libc.mprotect(middle, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        with raises(e.GroupBrokenError):
            dist.all_to_all_single(got, sent, group=group)
    else:
        with raises(e.GroupBrokenError, "cannot read its tensor", ranks=[0]):
            dist.all_to_all_single(got, sent, group=group)
    works()
    done()


def filtered() -> None:
    """Rank 1 may read nobody, from the beginning or from the third call on."""
    import os

    import numpy as np
    import ranks_tools
    from ranks_tools import dist, done, start, works

    number, late = int(os.environ["FAULTS_REFUSED"]), bool(os.environ["FAULTS_LATE"])
    last = any(
        os.environ.get(name) == "1"
        for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "RANK")
    )
    if last and not late:
        ranks_tools.refuse_system_calls([number])
    rank = start()
    sent, got = np.full(4 << 20, rank, np.uint8), np.zeros(4 << 20, np.uint8)
    group = dist.new_group()
    for turn in range(4):
        if last and late and turn == 2:
            ranks_tools.refuse_system_calls([number])
        got[:] = 2
        dist.all_to_all_single(got, sent, group=group)
        assert (got[: 2 << 20] == 0).all() and (got[2 << 20 :] == 1).all()
        way = dist._native.control("group_info", group=group._id)["algorithm"]
        assert way == ("cma" if late and turn == 1 else "bounce"), (turn, way)
    works()
    done()


def unread() -> None:
    """From some message on rank 1 may not read what rank 0 sends. It comes all the same."""
    import ctypes
    import mmap
    import os

    import numpy as np
    import ranks_tools
    from ranks_tools import dist, done, start, works

    rank = start()
    lengths = [1 << 20, 100_000, 12 << 20, 1 << 20, 40 << 20]

    def talk(sent: np.ndarray) -> None:
        """Messages both ways, some of which wait for others."""
        for length in lengths:
            part, got = sent[: min(length, sent.size)], np.empty(min(length, sent.size), np.uint8)
            part[:] = length % 251
            sends = [dist.isend(part, 1 - rank, tag=tag) for tag in range(3)]
            for tag in range(3):
                got[:] = 0
                dist.recv(got, 1 - rank, tag=tag)
                assert (got == length % 251).all()
            for work in sends:
                work.wait()

    ordinary = np.empty(40 << 20, np.uint8)
    for _ in range(4):
        talk(ordinary)
    if os.environ["FAULTS_UNREAD"] == "filter":
        if rank == 1:
            ranks_tools.refuse_system_calls([int(os.environ["FAULTS_REFUSED"])])
        talk(ordinary)
    else:  # memory that only its process reads, not even the kernel
        libc, memfd_secret = ctypes.CDLL(None, use_errno=True), 447
        secret = libc.syscall(memfd_secret, 0)
        lacks = [None] * 2
        dist.all_gather_object(lacks, secret < 0)
        if any(lacks):
            print("this kernel has no memfd_secret")
        else:
            os.ftruncate(secret, 4 << 20)
            talk(np.frombuffer(mmap.mmap(secret, 4 << 20), np.uint8))
    talk(ordinary)
    works()
    done()


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_killed() -> None:
    # Only Open MPI's launcher lets the others live.
    ended = job.run(3, killed, options=("--with-ft", "ulfm"))
    for rank in (0, 1):
        ended.stamp(f"raised-{rank}")
    assert not [name for name in os.listdir("/dev/shm") if "paddlempi" in name]


def test_stopped() -> None:
    job.succeed(2, stopped, timeout=120)


def test_a_tensor_with_a_hole() -> None:
    job.succeed(2, holes)


@pytest.mark.parametrize("late", ["", "1"], ids=["from the beginning", "later"])
def test_one_rank_may_read_nobody(late: str) -> None:
    refused = number("process_vm_readv")
    job.succeed(2, filtered, env={"FAULTS_REFUSED": refused, "FAULTS_LATE": late})


@pytest.mark.parametrize("why", ["filter", "secret"])
def test_messages_that_may_not_be_read(why: str) -> None:
    refused = number("process_vm_readv")
    ended = job.succeed(2, unread, env={"FAULTS_UNREAD": why, "FAULTS_REFUSED": refused})
    if "this kernel has no" in ended.output:
        pytest.skip("this kernel has no memfd_secret")
