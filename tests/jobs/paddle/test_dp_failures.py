"""DataParallel when a rank ends, and before there is a world."""

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
            time.sleep(2)  # by now the other rank has been told
            raise  # no code catches it, so the rank ends
    try:
        model(x).mean().backward()
    except RefusedError:
        print("told", flush=True)
        time.sleep(20)  # longer than the launcher takes to end the job


def test_no_rank_waits_for_one_that_ends_in_backward() -> None:
    ended = job.run(2, one_dies)
    assert ended.returncode != 0
    assert "ZeroDivisionError" in ended.output
    assert "told\n" in ended.result.stdout


def ends_with_a_step_under_way() -> None:
    import numpy as np
    import paddle
    import paddle.distributed as dist
    import paddlempi.paddle  # noqa: F401
    from paddle import nn
    from ranks_tools import done

    dist.init_parallel_env()
    found = []
    for late in (False, True):
        paddle.seed(1)
        net = nn.Linear(4, 4)
        model = paddle.DataParallel(net, overlap_next_forward=late)
        optimizer = paddle.optimizer.Adam(0.1, parameters=model.parameters())
        weight = net.weight
        for k in range(3):
            model(paddle.full([2, 4], dist.get_rank() + k + 1.0)).mean().backward()
            optimizer.step()
            optimizer.clear_grad()
        before = weight.numpy()
        if late:
            dist.destroy_process_group()
        found.append(weight.numpy())
    assert (before != found[1]).any(), "destroy must end the step that is under way"
    np.testing.assert_array_equal(found[0], found[1])
    done()


def test_the_last_step_is_made_before_the_world_ends() -> None:
    job.succeed(2, ends_with_a_step_under_way)


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
    model = paddlempi.DataParallel(paddle.nn.Linear(2, 2))  # a world of paddlempi is enough
    model(paddle.ones([1, 2])).mean().backward()
    paddlempi.destroy_process_group()
    loss = model(paddle.ones([1, 2])).mean()
    try:
        loss.backward()
    except Error:
        done()


def test_before_init_and_after_destroy() -> None:
    job.succeed(2, no_world)
