"""An error of ours keeps its class on every way by which it leaves torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as functional
from paddlempi import _marks, errors
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

Step = Callable[[], Any]


def ddp(group: Any, hook: Any = None, **options: Any) -> Step:
    model = DDP(torch.nn.Linear(3, 2), process_group=group, **options)
    if hook is not None:
        model.register_comm_hook(group, hook)
    return lambda: model(torch.ones(4, 3)).sum().backward()


def own_hook(group, bucket):  # type: ignore[no-untyped-def]  # torch looks at annotations
    work = torch.distributed.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def fsdp2(group: Any) -> Step:
    fully_shard = pytest.importorskip("torch.distributed.fsdp").fully_shard
    mesh = torch.distributed.device_mesh.DeviceMesh.from_group(group, "cpu")
    model = torch.nn.Linear(4, 4)
    fully_shard(model, mesh=mesh)
    return lambda: model(torch.ones(4, 4)).sum().backward()


def functional_call(group: Any) -> Step:
    return lambda: functional.all_reduce(torch.ones(3), "sum", group).sum().item()


def compiled(group: Any) -> Step:
    step = torch.compile(
        lambda x: functional.all_reduce(x * 2, "sum", group) + 1, backend="aot_eager"
    )
    return lambda: step(torch.ones(3)).sum().item()


def in_a_hook(group: Any) -> Step:
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda gradient: torch.distributed.all_reduce(gradient, group=group))
    return lambda: (x * 2).sum().backward()


def work_of(group: Any) -> Any:
    return torch.distributed.all_reduce(torch.ones(3), group=group, async_op=True)


WAYS: dict[str, Callable[[Any], Step]] = {
    "DDP": ddp,
    "DDP, static graph": lambda group: ddp(group, static_graph=True),
    "DDP, unused": lambda group: ddp(group, find_unused_parameters=True),
    "DDP, views": lambda group: ddp(group, gradient_as_bucket_view=True),
    "DDP, hook": lambda group: ddp(group, default_hooks.allreduce_hook),
    "DDP, compressed": lambda group: ddp(group, default_hooks.fp16_compress_hook),
    "DDP, a hook with then": lambda group: ddp(group, own_hook),
    "FSDP2": fsdp2,
    "functional": functional_call,
    "compiled": compiled,
    "hook of a tensor": in_a_hook,
    "wait": lambda group: lambda: work_of(group).wait(),
    "future": lambda group: lambda: work_of(group).get_future().wait(),
    "then": lambda group: lambda: work_of(group).get_future().then(lambda f: f.value()).wait(),
}


@pytest.mark.mpi(min=2)
@pytest.mark.parametrize("way", WAYS)
def test_the_class(dist: ModuleType, rank: int, way: str) -> None:
    if way == "compiled" and not hasattr(torch, "compile"):
        pytest.skip("this torch does not compile")
    group = dist.new_group()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = WAYS[way](group)
        group.set_timeout(timedelta(seconds=0.3))
        if rank == 0:  # no other rank takes the step
            # In a static graph, DDP's second collective fails first.
            with pytest.raises((errors.TimeoutError, errors.GroupBrokenError)) as caught:
                step()
            assert type(caught.value).__name__ == (
                "GroupBrokenError" if "static" in way else "TimeoutError"
            )
            assert _marks._kind(caught.value) == "error"
    dist.barrier()


@pytest.mark.mpi(min=2)
def test_a_future_that_had_failed_before(dist: ModuleType, rank: int) -> None:
    """C++ runs the callback, and makes a RuntimeError of what it raises: `run` knows its text."""
    group = dist.new_group()
    group.set_timeout(timedelta(seconds=0.3))
    if rank == 0:
        work = work_of(group)
        future = work.get_future()
        with pytest.raises(errors.TimeoutError):
            work.wait()
        with pytest.raises(RuntimeError) as caught:
            torch._C.Future.then(future, lambda done: done.value()).wait()
        assert not isinstance(caught.value, errors.Error)
        assert _marks._kind(caught.value) == "error"
    dist.barrier()
