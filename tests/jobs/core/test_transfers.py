"""Errors after all members have come to an operation, and the memory that MPI still uses then."""

from __future__ import annotations

import job
import pytest


def stopped_in_the_middle() -> None:
    """A rank is stopped inside a sum of 16-bit floats. The other rank has a deadline, or Ctrl-C."""
    import os
    import signal
    import threading

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start(timeout=60.0)
    deadline = os.environ["FAULTS_HOW"] == "deadline"
    group = dist.new_group([0, 1], timeout=2.0 if deadline else 60.0)
    x = np.ones(256 << 20, np.float16)  # some 0.1 s
    pids = np.zeros(2, np.int64)
    dist.all_gather_into_tensor(pids, np.array([os.getpid()]))
    dist.barrier()
    if rank == 0:
        peer = int(pids[1])
        threading.Timer(0.03, os.kill, (peer, signal.SIGSTOP)).start()
        late = threading.Timer(30.0, os.kill, (peer, signal.SIGCONT))
        late.start()
        if deadline:
            with raises(errors.TimeoutError, "the transfer did not end", least=1.9, most=3.9):
                dist.all_reduce(x, group=group)
        else:
            threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT)).start()
            with raises(KeyboardInterrupt, most=3.0):
                dist.all_reduce(x, group=group)
        late.cancel()
        os.kill(peer, signal.SIGCONT)
        with raises(errors.GroupBrokenError):
            dist.barrier(group)
    else:
        try:
            dist.all_reduce(x, group=group)
        except errors.Error as error:  # this rank may have all the data that it needs
            assert isinstance(error, (errors.TimeoutError, errors.GroupBrokenError)), error
    works()
    done()
    dist.barrier()
    os._exit(0)  # MPI may not have ended the transfer


def message_never_taken() -> None:
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, impatient_group, raises, stamp, start, works

    rank = start()
    pair = impatient_group(0.5, [0, 1])
    if rank == 0:
        big = np.ones(32 << 20, np.uint8)
        with raises(errors.TimeoutError, "send", "33554432 bytes", ranks=[1], least=0.5, most=3.0):
            dist.send(big, 1, group=pair, tag=9)
        del big  # MPI may still read it
        with raises(errors.GroupBrokenError, "send"):
            dist.barrier(pair)
    else:
        time.sleep(1.0)
        with raises(errors.GroupBrokenError, ranks=[0], most=3.0):
            dist.barrier(pair)
    works()
    stamp("end")
    done()


def killed_in_long_messages() -> None:
    """Rank 2 dies while it exchanges messages that go in fragments, with each of the others."""
    import os
    import signal
    import threading

    import numpy as np
    from ranks_tools import dist, errors, leave_together, raises, start

    rank = start()
    pairs = np.zeros((1 << 22, 2), np.float64)  # columns of 32 MiB
    mine, others = pairs[:, 0], np.ones((1 << 22, 2))[:, 1]
    pids = [0] * 3
    dist.all_gather_object(pids, os.getpid())
    if rank == 0:
        threading.Timer(0.5, os.kill, (pids[2], signal.SIGKILL)).start()
    with raises(errors.PeerDiedError, "of 33554432 bytes", ranks=[2], most=4.0):
        while True:
            if rank == 0:
                dist.send(mine, 2)
            elif rank == 1:
                dist.recv(others, 2)
                assert (others == 2).all()
            else:
                dist.recv(others, 0)
                mine[...] = 2
                dist.send(mine, 1)
    assert (pairs[:, 1] == 0).all()
    for call in (dist.send, dist.recv):
        try:
            call(mine, 2)
        except (errors.PeerDiedError, errors.GroupBrokenError) as error:
            assert error.ranks == (2,), error
        else:
            raise AssertionError("rank 2 is dead")
    leave_together(rank)


def no_memory_on_one() -> None:
    """A rank takes scratch memory before it announces. If there is no memory, it refuses."""
    import numpy as np
    from ranks_tools import dist, done, errors, little_memory, raises, start, works

    rank = start(timeout=60.0)
    size = dist.get_world_size()
    x = np.ones(256 << 20, np.float16)  # needs as much scratch memory
    parts = [np.ones(128 << 20, np.uint8) for _ in range(size)]
    calls = (
        lambda: dist.all_reduce(x),
        lambda: dist.all_gather(parts, np.ones(128 << 20, np.uint8)),
    )
    for call in calls:
        if rank == 1:
            no_memory = raises(errors.OutOfMemoryError, "cannot allocate", most=20.0)
            with little_memory(200 << 20), no_memory:
                call()
        else:
            with raises(errors.RefusedError, ranks=[1], most=20.0):
                call()
        works()
    with little_memory(200 << 20):  # enough for the pieces of 256 MiB
        dist.all_reduce_coalesced(parts)
    assert all((part[:: 1 << 20] == size).all() for part in parts)
    done()


def test_killed_in_long_messages() -> None:
    ended = job.run(3, killed_in_long_messages, options=("--with-ft", "ulfm"))
    for rank in (0, 1):
        ended.stamp(f"raised-{rank}")


@pytest.mark.launcher("scratch memory for what MPI carries")
def test_no_memory_on_one() -> None:
    job.succeed(2, no_memory_on_one)


@pytest.mark.parametrize("how", ["deadline", "interrupt"])
def test_stopped_in_the_middle(how: str) -> None:
    ended = job.run(2, stopped_in_the_middle, env={"FAULTS_HOW": how})
    assert ended.result.stdout.count("done\n") == 2, ended.output
    assert "Traceback" not in ended.output, ended.output


def test_exit_with_a_send_that_mpi_does_not_let_go_of() -> None:
    """MPI is not finalized then. Some launchers call that a failure, but nothing hangs."""
    ended = job.run(2, message_never_taken)
    assert ended.result.stdout.count("done\n") == 2, ended.output
    assert ended.at - ended.stamp("end") < 15, ended.output
