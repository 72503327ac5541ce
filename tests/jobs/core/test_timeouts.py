"""Deadlines: errors name the missing ranks, operations may stay behind, the job ends cleanly."""

from __future__ import annotations

import job
import pytest


def absent_from_all_reduce() -> None:
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start()
    late = dist.new_group(timeout=0.5)
    if rank < 2:
        x = np.full(8, rank, np.float32)
        words = "all_reduce(float32[8], SUM)", "[0 1 2]", "500ms", "rank(s) [2] never came"
        # The first deadline that passes ends the waits of both ranks. So the time is taken from
        # before a barrier, before which neither began.
        with raises(errors.TimeoutError, *words, ranks=[2], least=0.5, most=3.0):
            dist.barrier()
            dist.all_reduce(x, group=late)
        for use in (lambda: dist.all_reduce(x, group=late), lambda: dist.send(x, 2, group=late)):
            with raises(errors.GroupBrokenError, "broken", "never came", most=3.0):
                use()
    else:
        dist.barrier()
        time.sleep(1.5)
        # The other ranks have given up, so the late rank does not wait for them. The error names
        # the one whose deadline passed first, or both.
        gave_up = "all_reduce", "gave up waiting for this rank"
        with raises(errors.GroupBrokenError, *gave_up, among=[0, 1], most=3.0):
            dist.all_reduce(np.zeros(8, np.float32), group=late)
        with raises(errors.GroupBrokenError, most=3.0):
            dist.barrier(group=late)
    works()
    dist.destroy_process_group(late)
    with raises(errors.GroupDestroyedError, "destroyed"):
        dist.barrier(group=late)
    works()
    done()


def absent_from_async() -> None:
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start()
    late = dist.new_group([1, 0], timeout=0.5)
    if rank == 0:
        x, y = np.ones(4), np.ones(4)
        first = dist.all_reduce(x, group=late, async_op=True)
        second = dist.broadcast(y, 0, group=late, async_op=True)
        with raises(errors.NotReadyError, "goes on", least=0.1, most=3.0):
            first.wait(0.1)
        assert not first.is_completed() and first.exception() is None
        with raises(errors.TimeoutError, "all_reduce", "[1 0]", ranks=[1], most=3.0):
            first.wait()
        with raises(errors.GroupBrokenError, "broadcast"):
            second.wait()
        assert first.is_completed() and isinstance(first.exception(), errors.TimeoutError)
    else:
        time.sleep(1.5)
        work = dist.all_reduce(np.ones(4), group=late, async_op=True)
        with raises(errors.GroupBrokenError, ranks=[0], most=3.0):
            work.wait()
    works()
    done()


def a_limited_wait_leaves_the_work() -> None:
    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start()
    x = np.full(5, rank + 1.0)
    y = np.full(5, -1.0)
    if rank == 0:
        total, message = dist.all_reduce(x, async_op=True), dist.irecv(y, 1)
        for work in total, message:
            with raises(errors.NotReadyError, least=0.2, most=3.0):
                work.wait(0.2)
    dist.barrier(dist.new_group([0, 1]))
    if rank == 0:
        dist.recv(np.zeros(1), 1, tag=1)
        message.wait()
        total.wait()
        assert (y == 7).all()
    else:
        dist.all_reduce(x)
        dist.send(np.full(5, 7.0), 0)
        dist.send(np.zeros(1), 0, tag=1)
    works()
    assert (x == 3).all()
    done()


def message_never_comes() -> None:
    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start()
    pair = dist.new_group([1, 0], timeout=0.4)
    x = np.zeros(6, np.int32)
    if rank == 0:
        words = "recv of 24 bytes", "(tag 5)", "400ms", "[1 0]"
        with raises(errors.TimeoutError, *words, ranks=[1], least=0.4, most=4.0):
            dist.recv(x, 1, group=pair, tag=5)
        with raises(errors.TimeoutError, "any rank", least=0.4, most=4.0):
            dist.recv(x, group=pair, tag=5)
        with raises(errors.TimeoutError, "probe", "tag 6", ranks=[1], least=0.4, most=4.0):
            dist.probe(1, group=pair, tag=6)
        work = dist.irecv(x, 1, group=pair, tag=5)
        with raises(errors.TimeoutError, "recv", ranks=[1], most=4.0):
            work.wait()
    dist.barrier()
    # A message that comes later is received whole by a later recv.
    if rank == 1:
        for i in range(3):
            dist.send(np.full(6, i, np.int32), 0, group=pair, tag=5)
    else:
        for i in range(3):
            assert dist.recv(x, 1, group=pair, tag=5) == 1
            assert (x == i).all()
    works(pair)
    works()
    done()


def message_never_taken() -> None:
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, raises, stamp, start, works

    rank = start()
    pair = dist.new_group([0, 1], timeout=0.5)
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


def member_never_makes_the_group() -> None:
    import time

    from ranks_tools import dist, done, errors, raises, start, works

    rank = start()
    if rank != 2:
        with raises(errors.TimeoutError, "new_group", "[2]", "600ms", ranks=[2], least=0.5, most=6):
            dist.new_group([0, 1, 2], timeout=0.6)
        works(dist.new_group([0, 1], timeout=5.0))
    works()
    if rank != 0:  # rank 0 collects the others, and it is the missing one
        with raises(errors.TimeoutError, "new_group", "[0]", ranks=[0], least=0.5, most=6):
            dist.new_group([0, 1, 2], timeout=0.6)
    works()
    # Now all ranks come, some of them late. Failed attempts do not count.
    time.sleep(0.2 * rank)
    works(dist.new_group([0, 1, 2], timeout=10.0))
    done()


def monitored_barrier() -> None:
    import time

    from ranks_tools import dist, done, errors, raises, start, works

    rank = start()
    dist.monitored_barrier(timeout=20.0)
    group = dist.new_group()
    if rank == 1:
        time.sleep(1.2)
    else:
        with raises(errors.TimeoutError, "barrier", "[1]", "400ms", ranks=[1], least=0.4, most=3.0):
            dist.monitored_barrier(group, timeout=0.4)
    works()
    done()


@pytest.mark.parametrize(
    ("np", "program"),
    [
        (3, absent_from_all_reduce),
        (2, absent_from_async),
        (2, message_never_comes),
    ],
)
def test_every_mpi(np: int, program) -> None:
    ended = job.succeed(np, program)
    assert ended.result.seconds < 30, ended.output


@pytest.mark.one_mpi
@pytest.mark.parametrize(
    ("np", "program"),
    [
        (2, a_limited_wait_leaves_the_work),
        (3, monitored_barrier),
        (3, member_never_makes_the_group),
    ],
)
def test_one_mpi(np: int, program) -> None:
    job.succeed(np, program)


def test_exit_with_a_send_that_mpi_does_not_let_go_of() -> None:
    """MPI is not finalized then. Some launchers call that a failure, but nothing hangs."""
    ended = job.run(2, message_never_taken)
    assert ended.result.stdout.count("done\n") == 2, ended.output
    assert ended.at - ended.stamp("end") < 5, ended.output
