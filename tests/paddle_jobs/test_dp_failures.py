"""DataParallel where a rank ends, and before there is a world."""

from __future__ import annotations

import job


def one_dies() -> None:
    import time

    import paddle
    import paddle.distributed as dist
    from paddle import nn
    from paddlempi.errors import RefusedError
    from paddlempi.paddle import DataParallel

    dist.init_parallel_env()
    model = DataParallel(nn.Linear(4, 4))
    x = paddle.ones([2, 4])
    model(x).mean().backward()
    if dist.get_rank() == 1:
        model._layers.weight.register_hook(lambda g: 1 / 0)
        try:
            model(x).mean().backward()
        except BaseException:
            time.sleep(2)  # the other has been told already
            raise  # nobody catches it: the rank ends
    try:
        model(x).mean().backward()
    except RefusedError:
        print("told", flush=True)
        time.sleep(20)  # longer than the launcher takes to end the job


def test_a_rank_that_ends_in_backward_leaves_nobody_waiting() -> None:
    ended = job.run(2, one_dies)
    assert ended.returncode != 0
    assert "ZeroDivisionError" in ended.output
    assert "told\n" in ended.result.stdout


def no_world() -> None:
    import paddle
    import paddlempi
    import paddlempi.paddle
    from paddlempi.errors import Error, NotInitializedError
    from ranks_tools import done

    try:
        paddle.DataParallel(paddle.nn.Linear(2, 2))
    except NotInitializedError as error:
        assert "init_parallel_env" in str(error)
    else:
        raise AssertionError("made without a world")
    paddlempi.init_process_group("mpi")
    model = paddlempi.DataParallel(paddle.nn.Linear(2, 2))  # the world of paddlempi is enough
    model(paddle.ones([1, 2])).mean().backward()
    paddlempi.destroy_process_group()
    loss = model(paddle.ones([1, 2])).mean()
    try:
        loss.backward()
    except Error:
        done()


def test_before_init_and_after_destroy() -> None:
    job.succeed(2, no_world)
