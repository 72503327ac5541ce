"""Operators of c10d that are called without the group's methods, and graphs that have them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from paddlempi import errors
from torch._C._distributed_c10d import ReduceOp, Work
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

OPS = torch.ops.c10d

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture(params=["world", "part"])
def group(request: pytest.FixtureRequest, dist: ModuleType, size: int) -> Iterator[Any]:
    """The world, and a group of its last ranks; None on a rank that is no member."""
    if request.param == "world":
        yield dist.group.WORLD
        return
    made = dist.new_group(list(range(1 if size > 1 else 0, size)))
    member = made is not dist.GroupMember.NON_GROUP_MEMBER
    yield made if member else None
    if member:
        dist.destroy_process_group(made)


class Arguments(TorchDispatchMode):
    """Keeps the arguments of the last operator of c10d."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.arguments = args
        return func(*args, **(kwargs or {}))


def boxed(group: Any, op: Any) -> Any:
    """Return a reduce op as an object of TorchScript. torch 2.8 has no method for it."""
    if hasattr(ReduceOp, "boxed"):
        return ReduceOp(op).boxed()
    with Arguments() as mode:
        group.allreduce([torch.zeros(1)], op).wait()
    return mode.arguments[2]


class Called:
    """Calls operators with a group: as synchronous or asynchronous ones."""

    def __init__(self, group: Any, async_op: bool) -> None:
        self.group, self.async_op = group.boxed(), async_op
        self.sum, self.max = boxed(group, ReduceOp.SUM), boxed(group, ReduceOp.MAX)
        self.rank, self.size = group.rank(), group.size()

    def x(self, value: float, count: int = 2) -> torch.Tensor:
        return torch.full((count,), float(value))

    def all(self, count: int = 2) -> list[torch.Tensor]:
        """Return zeros for each rank."""
        return [self.x(0, count) for _ in range(self.size)]

    def end(self, made: Any) -> None:
        """Wait for what an operator returns."""
        work = Work.unbox(made[-1] if isinstance(made, tuple) else made)
        if self.async_op:
            work.get_future().wait()
        assert work.wait()

    def allreduce_(self) -> None:
        x, y = self.x(self.rank + 1), self.x(self.rank + 1)
        made = OPS.allreduce_([x], self.group, self.sum, None, self.async_op)
        self.end(made)
        assert made[0][0] is x
        self.end(OPS.allreduce_([y], self.group, self.max, None, self.async_op, 60_000))
        assert x.tolist() == [self.size * (self.size + 1) / 2] * 2
        assert y.tolist() == [self.size] * 2
        sparse = torch.eye(2).to_sparse()
        self.end(OPS.allreduce_([sparse], self.group, self.sum, None, self.async_op))
        assert sparse.to_dense().tolist() == (torch.eye(2) * self.size).tolist()

    def allreduce_coalesced_(self) -> None:
        x, y = self.x(1), torch.ones(3, dtype=torch.int64)
        self.end(OPS.allreduce_coalesced_([x, y], self.group, self.sum, self.async_op))
        assert x.tolist() == [self.size] * 2 and y.tolist() == [self.size] * 3

    def broadcast_(self) -> None:
        x = self.x(self.rank)
        self.end(OPS.broadcast_([x], self.group, self.size - 1, 0, self.async_op))
        assert x.tolist() == [self.size - 1] * 2

    def reduce_(self) -> None:
        x = self.x(1)
        self.end(OPS.reduce_([x], self.group, self.sum, self.size - 1, 0, self.async_op))
        if self.rank == self.size - 1:
            assert x.tolist() == [self.size] * 2

    def allgather_(self) -> None:
        outs = self.all()
        self.end(OPS.allgather_([outs], [self.x(self.rank)], self.group, self.async_op))
        assert [out.tolist() for out in outs] == [[i] * 2 for i in range(self.size)]

    def allgather_coalesced_(self) -> None:
        outs = [[self.x(0), self.x(0, 3)] for _ in range(self.size)]
        ins = [self.x(self.rank), self.x(-self.rank, 3)]
        self.end(OPS.allgather_coalesced_(outs, ins, self.group))
        assert [[t.tolist() for t in row] for row in outs] == [
            [[i] * 2, [-i] * 3] for i in range(self.size)
        ]

    def _allgather_base_(self) -> None:
        out = self.x(0, 2 * self.size)
        self.end(OPS._allgather_base_(out, self.x(self.rank), self.group, self.async_op))
        assert out.tolist() == [i for i in range(self.size) for _ in range(2)]

    def allgather_into_tensor_coalesced_(self) -> None:
        outs = [self.x(0, 2 * self.size), self.x(0, self.size)]
        ins = [self.x(self.rank), self.x(self.rank, 1)]
        self.end(OPS.allgather_into_tensor_coalesced_(outs, ins, self.group))
        assert outs[0].tolist() == [i for i in range(self.size) for _ in range(2)]
        assert outs[1].tolist() == list(range(self.size))

    def gather_(self) -> None:
        outs = [self.all()] if self.rank == 0 else []
        self.end(OPS.gather_(outs, [self.x(self.rank)], self.group, 0, self.async_op))
        for got in outs:
            assert [out.tolist() for out in got] == [[i] * 2 for i in range(self.size)]

    def gather_into_tensor_(self) -> None:
        out = self.x(-1, 2 * self.size)
        given = (out, self.x(self.rank), self.group, self.size - 1)
        self.end(OPS.gather_into_tensor_(*given, self.async_op))
        if self.rank == self.size - 1:
            assert out.tolist() == [i for i in range(self.size) for _ in range(2)]

    def scatter_(self) -> None:
        x = self.x(-1)
        ins = [[self.x(i) for i in range(self.size)]] if self.rank == 0 else []
        self.end(OPS.scatter_([x], ins, self.group, 0, self.async_op))
        assert x.tolist() == [self.rank] * 2

    def reduce_scatter_(self) -> None:
        x, ins = self.x(-1), [[self.x(i) for i in range(self.size)]]
        self.end(OPS.reduce_scatter_([x], ins, self.group, self.sum, self.async_op))
        assert x.tolist() == [self.rank * self.size] * 2

    def _reduce_scatter_base_(self) -> None:
        x, given = self.x(-1), torch.arange(2.0 * self.size)
        self.end(OPS._reduce_scatter_base_(x, given, self.group, self.sum, self.async_op))
        first = 2 * self.rank
        assert x.tolist() == [first * self.size, (first + 1) * self.size]

    def reduce_scatter_tensor_coalesced_(self) -> None:
        outs, ins = [self.x(-1, 1), self.x(-1, 1)], [torch.arange(float(self.size))] * 2
        given = (outs, ins, self.group, self.max, self.async_op)
        self.end(OPS.reduce_scatter_tensor_coalesced_(*given))
        assert [out.tolist() for out in outs] == [[self.rank]] * 2

    def alltoall_(self) -> None:
        outs, ins = self.all(), [self.x(10 * self.rank + i) for i in range(self.size)]
        self.end(OPS.alltoall_(outs, ins, self.group, self.async_op))
        assert [out.tolist() for out in outs] == [
            [10 * i + self.rank] * 2 for i in range(self.size)
        ]

    def alltoall_base_(self) -> None:
        out, given = self.x(-1, self.size), torch.arange(float(self.size)) + 10 * self.rank
        self.end(OPS.alltoall_base_(out, given, self.group, [], [], self.async_op))
        assert out.tolist() == [10 * i + self.rank for i in range(self.size)]
        counts = [i + 1 for i in range(self.size)]  # rows to each rank
        out = self.x(-1, (self.rank + 1) * self.size)
        given = self.x(self.rank, sum(counts))
        mine = [self.rank + 1] * self.size
        self.end(OPS.alltoall_base_(out, given, self.group, mine, counts, self.async_op))
        assert out.tolist() == [i for i in range(self.size) for _ in range(self.rank + 1)]

    def barrier(self) -> None:
        self.end(OPS.barrier(torch.empty(1), self.group, [], self.async_op))
        self.end(OPS.barrier(torch.empty(1), self.group, [0], self.async_op, 60_000))

    def monitored_barrier_(self) -> None:
        assert OPS.monitored_barrier_(torch.empty(1), self.group, [], 60_000, False) is None
        OPS.monitored_barrier_(torch.empty(1), self.group, [], -1, True)

    def send(self) -> None:
        following, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        for receive in (
            lambda x: OPS.recv_([x], self.group, before, 7),
            lambda x: OPS.recv_any_source_([x], self.group, 7),
        ):
            if self.size > 1:
                x = self.x(-1)
                sent = OPS.send([self.x(self.rank)], self.group, following, 7)
                self.end(receive(x))
                self.end(sent)
                assert x.tolist() == [before] * 2

    recv_ = recv_any_source_ = send


NAMES = sorted(
    name.partition("::")[2]
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("c10d::") and name != "c10d::check_for_nan"  # which takes no group
)


@pytest.mark.parametrize("async_op", [False, True])
def test_every_operator(group: Any, async_op: bool) -> None:
    assert {"allreduce_", "recv_any_source_", "alltoall_base_", "scatter_"} <= set(NAMES)
    if group is not None:
        called = Called(group, async_op)
        for name in NAMES:
            getattr(called, name)()
        with torch.inference_mode():
            called.allreduce_()


def test_threads(dist: ModuleType, size: int) -> None:
    called = Called(dist.group.WORLD, True)
    failed = []

    def run() -> None:
        try:
            called.allreduce_()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failed


def test_errors_keep_their_class(dist: ModuleType, rank: int, size: int) -> None:
    """Those of the call, and those of its Work, which lives although Python has dropped it."""
    called = Called(dist.group.WORLD, True)
    with pytest.raises(errors.DtypeError):
        OPS.allreduce_([torch.ones(2).to_mkldnn()], called.group, called.sum, None)
    made = [
        OPS.allreduce_([torch.ones(2 + (i == rank == 0))], called.group, called.sum, None)
        for i in range(2)
    ]
    if size > 1:
        with pytest.raises(errors.MismatchError):
            called.end(made[0])
    called.end(made[1])


def collectives(dist: ModuleType, group: Any, x: torch.Tensor) -> torch.Tensor:
    """Return something that every member's values are in."""
    size = dist.get_world_size(group)
    y = x * 2
    dist.all_reduce(y, dist.ReduceOp.MAX, group=group)
    outs = [torch.zeros_like(x) for _ in range(size)]
    dist.all_gather(outs, x, group=group)
    whole = torch.zeros(size * len(x))
    work = dist.all_gather_into_tensor(whole, x, group=group, async_op=True)
    work.wait()
    dist.broadcast(y, dist.get_global_rank(group, 0), group=group)
    dist.barrier(group=group)
    return y + torch.stack(outs).sum(0) + whole.sum()


def wanted(group: Any) -> list[float]:
    """Return what ``collectives`` returns if each rank gives its number and 1, two times."""
    size = group.size()
    total = size * (size + 1) / 2
    return [2 * size + 3 * total] * 2


def traced(function: Callable[[Any], Any], x: torch.Tensor) -> list[Any]:
    """Return graphs of a function."""
    graphs = [make_fx(function)(x), make_fx(function, pre_dispatch=True)(x)]
    if not torch.__version__.startswith("2.8."):  # which knows nothing of these operators
        graphs.append(make_fx(function, tracing_mode="fake")(x))
        graphs.append(make_fx(torch.func.functionalize(function))(x))
    return graphs


def test_graphs(dist: ModuleType, group: Any) -> None:
    if group is None:
        return
    x = torch.full((2,), group.rank() + 1.0)
    for graph in traced(lambda x: collectives(dist, group, x), torch.zeros(2)):
        assert "c10d.allreduce_" in graph.code
        assert graph(x).tolist() == wanted(group)
        assert graph(x.clone().requires_grad_()).tolist() == wanted(group)
        with torch.inference_mode():
            assert torch.fx.Interpreter(graph).run(x).tolist() == wanted(group)


def test_transforms(dist: ModuleType, size: int, rank: int) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return collectives(dist, dist.group.WORLD, x)

    x = torch.full((2,), rank + 1.0)
    assert torch.func.functionalize(function)(x).tolist() == wanted(dist.group.WORLD)
    # As over gloo: what they write has no derivative, and x * 2 has.
    assert torch.func.grad(lambda x: function(x).sum())(x).tolist() == [2.0, 2.0]


@pytest.mark.mpi(ranks=[2])  # other numbers of ranks compile the same code
def test_compiled_graph(dist: ModuleType, rank: int) -> None:
    graph = make_fx(lambda x: collectives(dist, dist.group.WORLD, x))(torch.zeros(2))
    compiled = torch.compile(graph, backend="aot_eager")
    assert compiled(torch.full((2,), rank + 1.0)).tolist() == wanted(dist.group.WORLD)


def test_other_groups_keep_theirs(dist: ModuleType, rank: int, size: int) -> None:
    """Once our kernels are there, gloo's calls pass through them."""
    gloo = dist.new_group(backend="gloo")
    dist.group.WORLD.boxed()
    for tensor in (torch.ones(2), torch.eye(2).to_sparse()):
        dist.all_reduce(tensor, group=gloo)
        assert tensor.to_dense().max() == size
    if hasattr(ReduceOp, "boxed"):
        x = torch.ones(2)
        made = OPS.allreduce_([x], gloo.boxed(), ReduceOp(ReduceOp.SUM).boxed(), None)
        Work.unbox(made[1]).wait()
        assert x.tolist() == [size] * 2
    dist.destroy_process_group(gloo)
