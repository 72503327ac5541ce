"""A program that ends while another thread of it is in Paddle's C++."""

from __future__ import annotations

import job
import pytest


def ends_in_a_callback() -> None:
    """Rank 1 ends while a callback computes with Paddle, without a thread that waits for it."""
    import threading
    import time

    import paddle
    import paddlempi.paddle  # noqa: F401
    from ranks_tools import dist, done

    class Slow:
        """Python takes a while to end, longer than what the callback has left to do."""

        def __del__(self, sleep: object = time.sleep) -> None:
            sleep(1.5)  # type: ignore[operator]

    global slow
    begun = threading.Event()

    def callback(_: object) -> None:
        x = paddle.ones([256, 256])
        begun.set()
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            paddle.matmul(x, x)
        print("over", flush=True)

    dist.init_process_group("mpi", framework="paddle")
    dist.barrier()
    if dist.get_rank() == 0:
        time.sleep(0.3)  # rank 1 waits, so a thread completes its future
    future = dist.all_reduce(paddle.ones([4]), async_op=True).get_future()
    if dist.get_rank() == 1:
        slow = Slow()
        future.add_done_callback(callback)
        assert begun.wait(30)
    done()


@pytest.mark.launcher("a fork does not keep what Paddle registered for other threads")
def test_the_end_in_a_callback() -> None:
    ended = job.succeed(2, ends_in_a_callback)
    assert ended.result.stdout.count("over\n") == 1, ended.output
