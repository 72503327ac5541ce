"""Functions given to futures start collectives: they run in the same order on all ranks.

There is no ``from __future__ import annotations`` here: see test_ddp_hooks.py.
"""

import copy
import functools
import inspect
import logging
import random
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from models import agree, close
from torch import nn
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import (
    ddp_zero_hook,
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

LAYERS, WIDTH = 8, 24
SMALL = 0.003
"""A bucket's size in MB: about one layer."""
RUNS, STEPS = 50, 4
SOON = 20.0

Hook = Callable[[Any, GradBucket], Any]

quantizes = pytest.mark.skipif(
    "fut.wait()[0]" in inspect.getsource(quantization_hooks),
    reason=f"torch {torch.__version__} has no quantization hook for lists of tensors",
)


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(dtype)


def power_sgd() -> Any:
    logging.getLogger(powerSGD_hook.__name__).setLevel(logging.ERROR)
    return powerSGD_hook.PowerSGDState(
        None,
        matrix_approximation_rank=2,
        start_powerSGD_iter=2,
        min_compression_rate=0.1,
        orthogonalization_epsilon=1e-8,
    )


def two_steps(dist: ModuleType) -> Hook:
    """Return a hook that averages by an all_reduce, and once more in the function after it."""

    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        def again(future: Any) -> torch.Tensor:
            second = dist.all_reduce(future.value()[0], op=dist.ReduceOp.AVG, async_op=True)
            result: torch.Tensor = second.get_future().wait()[0]
            return result

        work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, async_op=True)
        return work.get_future().then(again)

    return hook


def late(hook: Hook, chance: random.Random) -> Hook:
    """Return a hook that takes its time."""

    def call(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        time.sleep(chance.random() * 0.002)
        future: torch.futures.Future[torch.Tensor] = hook(state, bucket)
        time.sleep(chance.random() * 0.002)
        return future

    return call


def train(
    rank: int,
    state: Any,
    hook: Hook | None,
    dtype: torch.dtype = torch.float32,
    options: dict[str, Any] | None = None,
    chance: random.Random | None = None,
    bucket: float = SMALL,
    skip: bool = False,
) -> nn.Module:
    model = DDP(net(dtype), bucket_cap_mb=bucket, **(options or {}))
    if hook is not None:
        model.register_comm_hook(state, late(hook, chance) if chance is not None else hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(10 + rank)
    for step in range(STEPS):
        x = torch.randn(4, WIDTH, generator=generator).to(dtype)
        if skip and step == 2:
            with model.no_sync():
                model(x).square().mean().backward()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


HOOKS: dict[str, Callable[[ModuleType], tuple[Any, Hook]]] = {
    "power": lambda dist: (power_sgd(), powerSGD_hook.powerSGD_hook),
    "fp16-power": lambda dist: (
        power_sgd(),
        default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook),
    ),
    "bf16-power": lambda dist: (
        power_sgd(),
        default_hooks.bf16_compress_wrapper(powerSGD_hook.powerSGD_hook),
    ),
    "tensor": lambda dist: (dist.group.WORLD, quantization_hooks.quantization_pertensor_hook),
    "channel": lambda dist: (dist.group.WORLD, quantization_hooks.quantization_perchannel_hook),
    "bf16": lambda dist: (None, default_hooks.bf16_compress_hook),
    "two-steps": lambda dist: (None, two_steps(dist)),
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=quantizes if kind in ("tensor", "channel") else ())
        for kind in HOOKS
    ],
)
def test_hooks_with_delays(dist: ModuleType, rank: int, size: int, kind: str) -> None:
    """All runs end with the same bits: on the ranks, and whatever the delays are."""
    expected: list[torch.Tensor] = []
    for run in range(RUNS if kind == "power" else 5):
        state, hook = HOOKS[kind](dist)
        model = train(rank, state, hook, chance=random.Random(f"{run} {rank}"))
        expected = expected or [p.detach().clone() for p in model.parameters()]
        for parameter, value in zip(model.parameters(), expected, strict=True):
            assert torch.equal(parameter, value)
    agree(dist, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True},
        {"static_graph": True, "gradient_as_bucket_view": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["power", "two-steps", "bf16"])
def test_options_of_ddp(
    dist: ModuleType, rank: int, size: int, kind: str, options: dict[str, Any]
) -> None:
    for run in range(3):
        state, hook = HOOKS[kind](dist)
        model = train(
            rank, state, hook, options=options, chance=random.Random(f"{run} {rank}"), skip=True
        )
        agree(dist, model)


@pytest.mark.parametrize("options", [{}, {"static_graph": True}], ids=str)
def test_several_buckets_are_as_one(
    dist: ModuleType, rank: int, size: int, options: dict[str, Any]
) -> None:
    several = train(rank, None, two_steps(dist), torch.float64, options, chance=random.Random(rank))
    close(several, train(rank, None, two_steps(dist), torch.float64, options, bucket=25))
    close(several, train(rank, None, None, torch.float64))


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_the_order(dist: ModuleType, rank: int, size: int, static: bool) -> None:
    """All functions run after the last bucket, in the order of issue, in the backward's thread."""
    ran: list[tuple[str, int]] = []
    threads: set[int] = set()
    buckets = 0

    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal buckets
        number, buckets = bucket.index(), max(buckets, bucket.index() + 1)
        ran.append(("issued", number))

        def first(future: Any) -> torch.Tensor:
            note("first", number)
            work = dist.all_reduce(torch.ones(1), async_op=True)
            work.get_future().then(lambda _: note("second", number))
            result: torch.Tensor = future.value()[0]
            return result

        work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, async_op=True)
        time.sleep(0.01)  # longer than the core's patience with those who wait
        return work.get_future().then(first)

    def note(what: str, number: int) -> None:
        ran.append((what, number))
        threads.add(threading.get_ident())

    model = DDP(net(), bucket_cap_mb=SMALL, static_graph=static)
    model.register_comm_hook(None, hook)
    for _ in range(3):
        model(torch.ones(2, WIDTH)).sum().backward()
        steps = ("issued", "first", "second")
        assert ran == [(step, number) for step in steps for number in range(buckets)]
        ran.clear()
    assert buckets > 3
    assert threads == {threading.get_ident()}


def test_issue_counts_not_the_request(dist: ModuleType, rank: int, size: int) -> None:
    """The order is that of the works, also if their futures are asked for in another one."""
    ran: list[float] = []

    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        works = [dist.all_reduce(torch.full((1,), float(i)), async_op=True) for i in range(3)]
        for work in reversed(works):
            work.get_future().then(lambda f: ran.append(f.value()[0].item() / size))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model = DDP(nn.Linear(2, 2))
    model.register_comm_hook(None, hook)
    model(torch.ones(1, 2)).sum().backward()
    assert ran == [0, 1, 2]


def test_outside_a_backward(dist: ModuleType, rank: int, size: int) -> None:
    """Functions start collectives in the order of issue, never two at a time."""
    for run in range(10):
        chance = random.Random(f"{run} {rank}")
        works = [dist.all_reduce(torch.full((2,), float(i)), async_op=True) for i in range(12)]
        order: list[int] = []
        under_way = threading.Lock()

        def start(future: Any, number: int, order: list[int], under_way: Any) -> Any:
            assert under_way.acquire(blocking=False)
            order.append(number)
            second = dist.all_reduce(future.value()[0], async_op=True).get_future()
            third = second.then(lambda f: f.value()[0] + 1).wait()
            under_way.release()
            return third

        futures = []
        for number, work in enumerate(works):
            time.sleep(chance.random() * 0.001)
            function = functools.partial(start, number=number, order=order, under_way=under_way)
            futures.append(work.get_future().then(function))
        values = [future.wait()[0].item() for future in futures]
        assert values == [number * size**2 + 1 for number in range(12)]
        assert order == list(range(12))


def test_a_hook_that_waits_where_nobody_sees_it(dist: ModuleType, rank: int, size: int) -> None:
    """Another thread then completes the futures."""

    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        futures = [
            dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, async_op=True).get_future()
            for _ in range(2)
        ]
        chained = [future.then(lambda f: f.value()[0]) for future in futures]
        torch.futures.wait_all(chained)
        return chained[0]

    model = DDP(nn.Linear(2, 2))
    model.register_comm_hook(None, hook)
    model(torch.full((1, 2), rank + 1.0)).sum().backward()
    assert model.module.weight.grad[0, 0].item() == pytest.approx((size + 1) / 2)


def test_join(dist: ModuleType, rank: int, size: int) -> None:
    """A rank without data answers the others outside a backward."""
    model = DDP(net(torch.float64), bucket_cap_mb=SMALL)
    model.register_comm_hook(None, late(two_steps(dist), random.Random(rank)))
    with Join([model]):
        for _ in range(3 + rank):
            model(torch.ones(2, WIDTH, dtype=torch.float64)).sum().backward()
    agree(dist, model)


def test_post_local_sgd(dist: ModuleType, rank: int, size: int) -> None:
    own = dist.new_subgroups(1)[0]
    state = post_localSGD_hook.PostLocalSGDState(None, own, start_localSGD_iter=2)
    several = train(rank, state, post_localSGD_hook.post_localSGD_hook, torch.float64)
    state = post_localSGD_hook.PostLocalSGDState(None, own, start_localSGD_iter=2)
    close(
        several, train(rank, state, post_localSGD_hook.post_localSGD_hook, torch.float64, bucket=25)
    )
    dist.destroy_process_group(own)


def test_zero_in_a_hook(dist: ModuleType, rank: int, size: int) -> None:
    """ZeroRedundancyOptimizer steps in functions of futures, and broadcasts there."""
    model = DDP(net(), bucket_cap_mb=SMALL)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.05
    )
    try:
        hook = ddp_zero_hook.hook_with_zero_step(default_hooks.allreduce_hook, model, optimizer)
    except RuntimeError as reason:
        assert "NCCL" in str(reason)
        pytest.skip(f"torch {torch.__version__} has no such overlap but over NCCL")
    model.register_comm_hook(None, late(hook, random.Random(rank)))
    plain = copy.deepcopy(net())
    sgd = torch.optim.SGD(plain.parameters(), lr=0.05)
    for step in range(5):
        model(torch.ones(2, WIDTH)).square().mean().backward()
        optimizer.zero_grad()
        if step >= 2:  # overlapping begins in the third step
            plain(torch.ones(2, WIDTH)).square().mean().backward()
            sgd.step()
            sgd.zero_grad()
    agree(dist, model)
    close(model, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", list(torch.distributed.BuiltinCommHookType.__members__))
def test_hooks_in_cpp(dist: ModuleType, rank: int, size: int, kind: str) -> None:
    """They do the same arithmetic as over gloo."""
    gloo = dist.new_group(backend="gloo")
    models = []
    for group in (None, gloo):
        model = DDP(net(), bucket_cap_mb=SMALL, process_group=group)
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.__members__[kind])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(10 + rank)
        for _ in range(STEPS):
            model(torch.randn(4, WIDTH, generator=generator)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        models.append(model)
    agree(dist, models[0])
    # The order in which more than two ranks are added may differ.
    exact = {"rtol": 0.0, "atol": 0.0} if size <= 2 else {"rtol": 1e-2, "atol": 1e-4}
    close(*models, **exact)
    dist.destroy_process_group(gloo)


def test_reading_in_a_hook(dist: ModuleType, rank: int, size: int) -> None:
    """A hook may read the future of a work for which it has waited."""
    read: list[float] = []

    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        future = work.get_future()
        work.wait()
        assert future.done()
        read.append(future.value()[0][0].item())
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model = DDP(nn.Linear(2, 2))
    model.register_comm_hook(None, hook)
    model(torch.ones(1, 2)).sum().backward()
    assert read == [size]
