"""Dispatch modes and the profiler see the operators of c10d, as over gloo."""

from __future__ import annotations

import collections
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from paddlempi import errors
from test_profiler import spans
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode


class Seen(TorchDispatchMode):
    """Counts the operators of c10d."""

    def __init__(self) -> None:
        super().__init__()
        self.count: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func).startswith("c10d."):
            self.count[func._overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def everything(dist: ModuleType, group: Any, rank: int, size: int) -> None:
    """Call what gloo has too."""

    def x(value: float = 1.0, count: int = 4) -> torch.Tensor:
        return torch.full((count,), value)

    def parts() -> list[torch.Tensor]:
        return [x(float(i)) for i in range(size)]

    a, b = x(rank + 1.0), x(rank + 1.0)
    dist.all_reduce(a, group=group)
    dist.all_reduce(b, async_op=True, group=group).wait()
    whole = x(0.0, 4 * size)
    dist.all_gather_into_tensor(whole, x(float(rank)), group=group)
    some = parts()
    dist.all_gather(some, x(rank + 5.0), group=group)
    c, d, e = x(rank + 7.0), x(0.0), x(0.0)
    dist.broadcast(c, 0, group=group)
    dist.reduce(x(), 0, group=group)
    dist.gather(x(), parts() if rank == 0 else None, 0, group=group)
    dist.scatter(d, parts() if rank == 0 else None, 0, group=group)
    dist.reduce_scatter(e, parts(), group=group)
    dist.reduce_scatter_tensor(x(), x(1.0, 4 * size), group=group)
    into = torch.empty(size, 2)
    dist.all_to_all_single(into, torch.full((size, 2), float(rank)), group=group)
    if not torch.__version__.startswith("2.8."):  # whose gloo lacks it
        dist.all_to_all(parts(), parts(), group=group)
    dist.barrier(group=group)
    if rank == 0:
        dist.send(x(), 1, group=group)
        dist.isend(x(), 1, group=group).wait()
    elif rank == 1:
        f = x(0.0)
        dist.recv(f, 0, group=group)
        dist.recv(x(), group=group)
        assert f.tolist() == x().tolist()
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, rank, group=group)
    sparse = torch.eye(3).to_sparse()
    dist.all_reduce(sparse, group=group)
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2), process_group=group)
    model(torch.ones(1, 2)).sum().backward()
    total = size * (size + 1) / 2
    assert a.tolist() == b.tolist() == x(total).tolist()
    assert whole.tolist() == [float(i) for i in range(size) for _ in range(4)]
    assert [t[0].item() for t in some] == [i + 5.0 for i in range(size)]
    assert c[0].item() == 7 and d[0].item() == rank and e[0].item() == size * rank
    assert into[:, 0].tolist() == everyone == list(range(size))
    assert sparse.to_dense().tolist() == (torch.eye(3) * size).tolist()


def test_modes_see_what_they_see_over_gloo(dist: ModuleType, rank: int, size: int) -> None:
    gloo = dist.new_group(backend="gloo")
    seen: list[Any] = []
    for group in (dist.group.WORLD, gloo):
        with Seen() as mode:
            everything(dist, group, rank, size)
        with CommDebugMode() as counter:
            everything(dist, group, rank, size)
        seen.append((mode.count, dict(counter.get_comm_counts()), counter.get_total_counts()))
    assert seen[0] == seen[1]
    assert {"allreduce_", "broadcast_", "barrier"} <= set(seen[0][0])
    dist.destroy_process_group(gloo)


def test_tensor_parallel(dist: ModuleType, rank: int, size: int) -> None:
    """PyTorch's test_parallelize_module_src_data_rank counts so."""
    mesh = init_device_mesh("cpu", (size,))
    ops = torch.ops.c10d

    def counts(**options: Any) -> Any:
        model = nn.Sequential(nn.Linear(12, 24), nn.Linear(24, 12))
        plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        with CommDebugMode() as counter:
            parallelize_module(model, mesh, plan, **options)
        return counter.get_comm_counts()

    default, without = counts(), counts(src_data_rank=None)
    assert default[ops.scatter_] == 3 and default[ops.broadcast_] == 1
    assert without[ops.scatter_] == 0 and without[ops.broadcast_] == 0


def test_the_profiler_shows_operators(
    dist: ModuleType, rank: int, size: int, tmp_path: Path
) -> None:
    gloo = dist.new_group(backend="gloo")
    rows: list[collections.Counter[str]] = []
    for group in (dist.group.WORLD, gloo):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            everything(dist, group, rank, size)
        names = [event.name for event in profiler.events()]
        rows.append(collections.Counter(name for name in names if name.startswith("c10d::")))
    assert rows[0] == rows[1]
    assert rows[0]["c10d::allreduce_"] >= 4
    dist.destroy_process_group(gloo)


def test_a_span_lies_in_its_operator(
    dist: ModuleType, rank: int, size: int, tmp_path: Path
) -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        dist.all_reduce(torch.ones(3, 4))
    (outer,) = [e for e in profiler.events() if e.name == "c10d::allreduce_"]
    (inner,) = [e for e in profiler.events() if e.name == "mpi:all_reduce"]
    assert outer.time_range.start <= inner.time_range.start
    assert inner.time_range.end <= outer.time_range.end
    assert len(spans(lambda: dist.all_reduce(torch.ones(1)), tmp_path)) == 1


def test_several_operations_are_one_call(dist: ModuleType, rank: int, size: int) -> None:
    with Seen() as mode:
        xs = [torch.ones(2), torch.ones(2, dtype=torch.int64)]
        dist.group.WORLD.allreduce_coalesced(xs).wait()
        outs = [torch.empty(2 * size) for _ in range(2)]
        ins = [torch.ones(2), torch.ones(2)]
        dist.group.WORLD.allgather_into_tensor_coalesced(outs, ins).wait()
    assert mode.count == {"allreduce_coalesced_": 1, "allgather_into_tensor_coalesced_": 1}
    assert xs[1].tolist() == [size] * 2 and outs[1].tolist() == [1] * 2 * size


def test_the_work_is_ours(dist: ModuleType, rank: int, size: int) -> None:
    """A user gets the same object, with its methods, as without a mode."""
    from paddlempi.torch import Work

    x = torch.ones(2)
    with Seen():
        work = dist.all_reduce(x, async_op=True)
    assert isinstance(work, Work) and work.wait() and work.is_success()
    assert work.result()[0] is x and work.get_future().wait()[0] is x
    assert x.tolist() == [size] * 2


def test_errors_keep_their_class(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    with Seen(), pytest.raises(errors.MismatchError) as caught:
        dist.all_reduce(torch.ones(2 + (rank == 0)), group=group)
    assert isinstance(caught.value, dist.DistBackendError)
    with Seen(), pytest.raises(errors.DtypeError):
        dist.group.WORLD.broadcast("no tensor", 0)
    with Seen(), pytest.raises(errors.ArgumentError):
        dist.group.WORLD.allreduce([torch.ones(1), torch.ones(1)])
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group(group)


def test_a_mode_may_replace_a_tensor(dist: ModuleType, rank: int, size: int) -> None:
    """What the mode passes on is what is sent."""
    there = torch.full((2,), 5.0)

    class Replace(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.c10d.broadcast_.default:
                args = ([there], *args[1:])
            return func(*args, **(kwargs or {}))

    x = torch.full((2,), float(rank))
    with Replace():
        dist.broadcast(x, size - 1)
    assert x.tolist() == [rank] * 2 and there.tolist() == [5, 5]


def test_fake_tensors_are_not_sent(dist: ModuleType, rank: int, size: int) -> None:
    """Only the shape matters then: rank 0 alone may call it."""
    if rank == 0:
        with FakeTensorMode():
            x = torch.ones(3)
            dist.all_reduce(x)
            assert x.shape == (3,)
    dist.barrier()


def test_only_the_thread_of_the_mode(dist: ModuleType, rank: int, size: int) -> None:
    with Seen() as mode:
        thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1)))
        thread.start()
        thread.join()
    assert not mode.count


def test_nothing_is_shown_to_nobody(
    dist: ModuleType, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paddlempi.torch import dispatch

    def refuse(*_: object) -> None:
        raise AssertionError("a call was shown")

    monkeypatch.setattr(dispatch._Call, "__init__", refuse)
    x = torch.ones(2)
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    dist.all_reduce(x, async_op=True).wait()
    dist.barrier()
