"""Programs that end, without destroy_process_group, while another thread of them is in C++.

Python before 3.14 ends a thread that asks for the GIL while Python ends. If that unwinds C++, the
process aborts.
"""

from __future__ import annotations

import job
import pytest

ENDED = 20.0
"""Seconds in which a process ends on a busy machine."""


def ends_in_a_function() -> None:
    """Rank 1 ends in the midst of a function of a future, which it has not waited for."""
    import os
    import threading
    import time

    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from ranks_tools import done, stamp

    class Slow:
        """Python takes a while to end, longer than what the function has left to do."""

        def __del__(self, sleep: object = time.sleep) -> None:
            sleep(1.5)  # type: ignore[operator]

    global slow, chained
    way = os.environ["FAULTS_WAY"]
    begun = threading.Event()

    def function(future: object) -> None:
        begun.set()
        if way == "for ever":
            threading.Event().wait()
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            if way == "sleeps":
                time.sleep(0.1)
            elif way == "computes":
                x = torch.ones(256, 256)
                x @ x
        print("over", flush=True)

    dist.init_process_group("mpi")
    dist.barrier()
    if dist.get_rank() == 0:
        time.sleep(0.3)  # rank 1 waits, so a thread completes its future
    future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
    if dist.get_rank() == 1:
        slow = Slow()
        chained = future.then(function)
        assert begun.wait(30)
    stamp("left")
    done()


@pytest.mark.parametrize("way", ["sleeps", "computes", "python"])
def test_the_end_in_a_function_of_a_future(way: str) -> None:
    ended = job.succeed(2, ends_in_a_function, env={"FAULTS_WAY": way})
    assert ended.result.stdout.count("over\n") == 1, ended.output


def test_a_function_that_never_returns_does_not_hold_up_the_end() -> None:
    ended = job.succeed(2, ends_in_a_function, env={"FAULTS_WAY": "for ever"})
    assert ended.at - ended.stamp("left") < ENDED, ended.output


def waits_in_cpp() -> None:
    """A thread of rank 0 waits in C++, for rank 1, which ends before Python of rank 0 has ended."""
    import threading
    import time

    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from ranks_tools import done

    class Slow:
        def __del__(self, sleep: object = time.sleep) -> None:
            sleep(3)  # type: ignore[operator]

    global slow
    dist.init_process_group("mpi")
    group = dist.new_group()

    def wait() -> None:
        x = torch.ops._c10d_functional.all_reduce(torch.ones(4), "sum", group.group_name)
        torch.ops._c10d_functional.wait_tensor(x)

    if dist.get_rank() == 0:
        slow = Slow()
        threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.3)  # by now it waits
    dist.barrier()
    if dist.get_rank() == 1:
        time.sleep(0.5)
    done()


def test_a_thread_of_the_program_that_waits_in_cpp() -> None:
    job.succeed(2, waits_in_cpp)
