"""A rank that goes no further once all have come to new_group, or to init without MPI."""

from __future__ import annotations

import job
from system_calls import number


def stops_after_the_meeting() -> None:
    """Rank 0 waits in memfd_create, its first system call of that name after the meeting."""
    import os
    import signal
    import threading

    from ranks_tools import dist, done, errors, hold_system_call, raises, start, works

    rank = start()
    dist.destroy_process_group(dist.new_group())
    dist.barrier()
    if rank == 0:
        release = hold_system_call(int(os.environ["FAULTS_CALL"]))
        threading.Timer(4.5, release).start()
        with raises(errors.TimeoutError, "all ranks had come", among=(1, 2)):
            dist.new_group(timeout=1.0)
    elif rank == 1:
        with raises(errors.TimeoutError, "all ranks had come", "after 1s", ranks=(0,), most=4.0):
            dist.new_group(timeout=1.0)
    else:
        threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()
        with raises(KeyboardInterrupt, most=2.0):
            dist.new_group(timeout=60.0)
    works()
    works(dist.new_group([1, 2, 0]))
    done()


def test_a_member_stops_after_the_meeting() -> None:
    """The others get an error at their deadline, and Ctrl-C ends their wait."""
    job.succeed(3, stops_after_the_meeting, env={"FAULTS_CALL": number("memfd_create")})


def stops_in_init() -> None:
    """Rank 1 waits in memfd_create, where it makes its own memory: all have met before."""
    import os
    import threading

    import paddlempi as dist
    from ranks_tools import done, errors, hold_system_call, raises, works

    def init(timeout: float) -> None:
        dist.init_process_group("mpi", timeout=timeout)

    if int(os.environ["RANK"]) == 1:
        release = hold_system_call(int(os.environ["FAULTS_CALL"]))
        threading.Timer(3.5, release).start()
        with raises(errors.TimeoutError, "init", "had not done their part", ranks=(0,)):
            init(2.0)
    else:
        with raises(errors.TimeoutError, "init", "had not done their part", ranks=(1,), most=3.0):
            init(2.0)
    init(30.0)
    works()
    done()


def test_a_rank_stops_in_init() -> None:
    """The other one gets an error at its deadline. After that both can begin anew."""
    job.succeed(2, stops_in_init, env={"FAULTS_CALL": number("memfd_create")})
