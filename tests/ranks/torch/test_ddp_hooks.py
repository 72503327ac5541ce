"""DDP's communication hooks: the gradients that they make, and optimizers that run in a hook.

There is no ``from __future__ import annotations`` here. DDP accepts a hook only if its bucket is
annotated with the class, not with the class's name.
"""

import copy
import inspect
import logging
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
import torch
from models import (
    Net,
    agree,
    alone,
    close,
    loss_of,
    seeded,
    train,
)
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import (
    DDPCommHookType,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
    register_ddp_comm_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

SMALL = 0.0005
"""A bucket's size in MB, so that Net has several."""

Hook = Callable[[Any, GradBucket], Any]


def user_hook(dist: ModuleType) -> Hook:
    """Return a hook that notes the buckets in its state and returns a future made by ``then``."""

    def hook(state: list[int], bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        state.append(bucket.index())
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda f: f.value()[0] / dist.get_world_size())

    return hook


def test_a_users_hook(dist: ModuleType, rank: int, size: int) -> None:
    start = seeded(Net)
    model = DDP(copy.deepcopy(start), bucket_cap_mb=SMALL)
    seen: list[int] = []
    model.register_comm_hook(seen, user_hook(dist))
    train(model, loss_of(size), rank)
    close(model, alone(start, loss_of(size), size))
    agree(dist, model)
    assert max(seen) >= 2


def test_a_hook_with_a_future_of_its_own(dist: ModuleType, rank: int, size: int) -> None:
    """A hook that exchanges a bucket by another operation, synchronously."""

    def hook(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        parts = [torch.empty_like(bucket.buffer()) for _ in range(size)]
        dist.all_gather(parts, bucket.buffer())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(torch.stack(parts).mean(0))
        return future

    start = seeded(Net)
    model = DDP(copy.deepcopy(start), bucket_cap_mb=SMALL)
    model.register_comm_hook(None, hook)
    train(model, loss_of(size), rank)
    close(model, alone(start, loss_of(size), size))
    agree(dist, model)


def test_a_hook_that_waits_in_a_callback(dist: ModuleType, rank: int, size: int) -> None:
    """A callback may wait for another collective's future. It delays no other completion."""

    def hook(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        def again(future: Any) -> torch.Tensor:
            (reduced,) = future.value()
            second = dist.all_reduce(reduced.clone(), async_op=True).get_future()
            (twice,) = second.then(lambda f: f.value()).wait()
            return twice / size**2

        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(again)

    start = seeded(Net)
    model = DDP(copy.deepcopy(start))
    model.register_comm_hook(None, hook)
    train(model, loss_of(size), rank)
    close(model, alone(start, loss_of(size), size))
    agree(dist, model)


def test_a_hook_that_raises(dist: ModuleType, rank: int, size: int) -> None:
    """backward raises a hook's error, whether it was raised at once or in a callback."""

    def at_once(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        raise RuntimeError("no such bucket")

    def later(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        def callback(future: Any) -> torch.Tensor:
            raise RuntimeError("no such bucket")

        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(callback)

    for hook in (at_once, later):
        model = DDP(seeded(Net))
        model.register_comm_hook(None, hook)
        with pytest.raises(RuntimeError, match="no such bucket"):
            loss_of(size)(model, 0, rank).backward()
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == size


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [
        (DDPCommHookType.ALLREDUCE, 1e-5),
        (DDPCommHookType.FP16_COMPRESS, 2e-3),
        (DDPCommHookType.BF16_COMPRESS, 2e-2),
        (DDPCommHookType.QUANTIZE_PER_TENSOR, 2e-2),
        (DDPCommHookType.QUANTIZE_PER_CHANNEL, 2e-2),
        (DDPCommHookType.POWER_SGD_RANK2, 1e-5),
        (DDPCommHookType.NOOP, None),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_hooks_of_torch(
    dist: ModuleType, rank: int, size: int, kind: DDPCommHookType, tolerance: float | None
) -> None:
    """One step. PowerSGD begins with plain all-reduces; its other steps are tested below."""
    logging.getLogger(powerSGD_hook.__name__).setLevel(logging.ERROR)
    start = seeded(Net, torch.float32)
    loss = loss_of(size, torch.float32)
    model = DDP(copy.deepcopy(start), bucket_cap_mb=25)
    # The quantizing hooks ask their state for its rank.
    quantize = "QUANTIZE" in kind.name
    # In some versions they read the value of all_gather's future in a form that only NCCL gives.
    if quantize and "fut.wait()[0]" in inspect.getsource(quantization_hooks):
        pytest.skip(f"torch {torch.__version__} has no quantization hook for lists of tensors")
    register_ddp_comm_hook(kind, model, state=dist.group.WORLD if quantize else None)
    loss(model, 0, rank).backward()
    mine = [p.grad for p in model.parameters()]
    if tolerance is None:  # every rank keeps its own gradients
        local = copy.deepcopy(start)
        loss(local, 0, rank).backward()
        close(mine, [p.grad for p in local.parameters()], rtol=1e-5, atol=1e-6)
        return
    whole = copy.deepcopy(start)
    loss_of(1, torch.float32)(whole, 0, 0).backward()
    close(mine, [p.grad for p in whole.parameters()], rtol=tolerance, atol=tolerance / 10)
    agree(dist, mine)


def test_a_failed_all_reduce_comes_out_of_backward(dist: ModuleType, rank: int, size: int) -> None:
    """Tested with DDP's own hook, which reads the future in C++, and with a hook in Python."""
    for hook in (None, default_hooks.bf16_compress_hook):
        group = dist.new_group(timeout=timedelta(seconds=2))
        model = DDP(seeded(Net, torch.float32), process_group=group)
        if hook is not None:
            model.register_comm_hook(group, hook)
        loss = loss_of(size, torch.float32)
        for step in range(2):
            loss(model, step, rank).backward()
        if rank == 0:
            with pytest.raises(RuntimeError, match=r"all_reduce\(.*never came"):
                loss(model, 2, rank).backward()
        dist.barrier()
        dist.destroy_process_group(group)


def test_power_sgd(dist: ModuleType, rank: int, size: int) -> None:
    """Full rank is exact to rounding. Rank 1 is not exact, and its error is fed back.

    (batched_powerSGD_hook runs on no backend, because torch's own assertion on shapes fails.)
    """
    logging.getLogger(powerSGD_hook.__name__).setLevel(logging.ERROR)
    start = seeded(Net)

    def error(matrix_rank: int, steps: int) -> float:
        model = DDP(copy.deepcopy(start))
        state = powerSGD_hook.PowerSGDState(
            None,
            matrix_approximation_rank=matrix_rank,
            start_powerSGD_iter=2,
            min_compression_rate=0.001,
            orthogonalization_epsilon=1e-30,
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        train(model, loss_of(size), rank, steps=range(steps))
        agree(dist, model)
        expected = alone(start, loss_of(size), size, steps=range(steps))
        pairs = zip(model.parameters(), expected.parameters(), strict=True)
        return max(float((a - b).abs().max()) for a, b in pairs)

    assert error(1, 2) < 1e-12  # before the compression begins
    assert error(16, 5) < 1e-6
    assert 1e-6 < error(1, 5) < 0.1


def test_post_local_sgd(dist: ModuleType, rank: int, size: int) -> None:
    """Gradients of all ranks first; then local gradients, and averaged models every two steps."""
    start = seeded(Net)
    model = DDP(copy.deepcopy(start))
    own = dist.new_subgroups(1)[0]
    state = post_localSGD_hook.PostLocalSGDState(None, own, start_localSGD_iter=2)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = PeriodicModelAverager(period=2, warmup_steps=2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    # The models are averaged in steps 2 and 4, so the training ends with an average.
    train(model, loss_of(size), rank, PostLocalSGDOptimizer(inner, averager), range(5))

    models = [copy.deepcopy(start) for _ in range(size)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
    for step in range(5):
        for other, (m, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            loss_of(size)(m, step, other).backward()
        for same in zip(*(m.parameters() for m in models), strict=True):
            if step < 2:
                mean = torch.stack([p.grad for p in same]).mean(0)
                for p in same:
                    p.grad.copy_(mean)
        for optimizer in optimizers:
            optimizer.step()
        if step in (2, 4):
            for same in zip(*(m.parameters() for m in models), strict=True):
                mean = torch.stack([p.detach() for p in same]).mean(0)
                for p in same:
                    p.data.copy_(mean)
    close(model, models[rank])
    agree(dist, model)
    dist.destroy_process_group(own)


def test_functional_optimizer_in_a_hook(dist: ModuleType, rank: int, size: int) -> None:
    """DDP's fused optimizer steps in a callback of a bucket's future."""
    start = seeded(Net)
    model = DDP(copy.deepcopy(start), bucket_cap_mb=SMALL)
    model._register_fused_optim(torch.optim.SGD, 0.1, momentum=0.9)
    for step in range(3):
        loss_of(size)(model, step, rank).backward()
        for p in model.parameters():
            p.grad = None
    close(model, alone(start, loss_of(size), size))
    agree(dist, model)
