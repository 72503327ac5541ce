"""Backwards that are interrupted, or that change torch or the world for the rest of a process."""

from __future__ import annotations

import job


def interrupted() -> None:
    """Ctrl-C ends the wait at the end of a backward. The collective goes on."""
    import os
    import signal
    import threading

    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from paddlempi.torch import callback_order
    from ranks_tools import done

    callback_order.LIMIT = 1e6
    dist.init_process_group("mpi")
    futures = []

    class Start(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            futures.append(dist.all_reduce(torch.ones(2), async_op=True).get_future())
            return gradient

    def step():
        Start.apply(torch.ones(2, requires_grad=True)).sum().backward()

    group = dist.new_group()
    if dist.get_rank() == 0:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            step()
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("no KeyboardInterrupt")
        assert not futures[0].done()
        dist.barrier(group)
    else:
        dist.barrier(group)
        step()
    ended = threading.Event()
    futures[0].add_done_callback(lambda _: ended.set())
    assert ended.wait(20)
    assert futures[0].value()[0].tolist() == [2, 2]
    step()
    assert futures[1].wait()[0].tolist() == [2, 2]
    done()


def destroyed() -> None:
    """The world ends before a collective of a backward that failed: its future gets an error."""
    import contextlib

    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from ranks_tools import done

    dist.init_process_group("mpi")
    futures = []

    class Start(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            futures.append(dist.all_reduce(torch.ones(2), async_op=True).get_future())
            raise ValueError

    if dist.get_rank() == 0:  # the other rank never comes
        with contextlib.suppress(ValueError):
            Start.apply(torch.ones(2, requires_grad=True)).sum().backward()
    dist.destroy_process_group()
    for future in futures:
        try:
            future.wait()
        except RuntimeError as error:
            assert "destroy" in str(error) or "left" in str(error), repr(error)
        else:
            raise AssertionError("a collective without the other rank")
    done()


def compiled() -> None:
    """The backward of DDP is compiled as a whole, which changes torch for the rest of a process."""
    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from ranks_tools import done
    from torch._dynamo import compiled_autograd

    dist.init_process_group("mpi")
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    data = torch.randn(2, 4, 3)
    expected = torch.autograd.grad(model(data).square().sum() / 2, list(model.parameters()))
    torch._dynamo.config.optimize_ddp = "python_reducer"
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    run = torch.compile(ddp, backend="eager")
    for _ in range(2):
        ddp.zero_grad()
        loss = run(data[dist.get_rank()]).square().sum()
        with compiled_autograd._enable(lambda graph: torch.compile(graph, backend="eager")):
            loss.backward()
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
    done()


def two_threads() -> None:
    """Two threads train two models, each over its group.

    This is no test in lock-step with others: torch 2.15 notes the DDP model whose forward runs in
    a variable of the class, and two threads leave a wrong one there, which torch.compile uses.
    """
    import copy
    import threading

    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from ranks_tools import done

    torch.set_num_threads(1)
    dist.init_process_group("mpi")
    torch.manual_seed(0)
    start = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
    data = torch.randn(2, 4, 8)
    expected = torch.autograd.grad(start(data).square().sum() / 2, list(start.parameters()))
    models = [
        torch.nn.parallel.DistributedDataParallel(
            copy.deepcopy(start), process_group=dist.new_group(), bucket_cap_mb=0.0005
        )
        for _ in range(2)
    ]

    def train(model):
        for _ in range(50):
            model.zero_grad()
            model(data[dist.get_rank()]).square().sum().backward()

    threads = [threading.Thread(target=train, args=(model,), daemon=True) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive()
    for model in models:
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
    done()


def test_two_threads() -> None:
    job.succeed(2, two_threads)


def test_compiled_autograd() -> None:
    job.succeed(2, compiled, timeout=300)


def test_ctrl_c() -> None:
    job.succeed(2, interrupted)


def test_destroy() -> None:
    job.succeed(2, destroyed)
