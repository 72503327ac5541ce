"""Functional collectives: values, gradients, groups and meshes, also under torch.compile.

They call the process group from C++ and wait there.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as functional
from ranks_data import same, whole

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")

REDUCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda parts: parts.sum(0),
    "avg": lambda parts: parts.sum(0) / len(parts),
    "product": lambda parts: parts.prod(0),
    "min": lambda parts: parts.amin(0),
    "max": lambda parts: parts.amax(0),
    "band": lambda parts: functools.reduce(torch.bitwise_and, parts),
    "bor": lambda parts: functools.reduce(torch.bitwise_or, parts),
    "bxor": lambda parts: functools.reduce(torch.bitwise_xor, parts),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8]
OPS = torch.ops._c10d_functional

needs_autograd = pytest.mark.skipif(
    not hasattr(functional, "all_reduce_backward"),
    reason=f"torch {torch.__version__} has no gradient of a functional all_reduce",
)


@pytest.fixture(params=["world", "part", "mesh"])
def group(
    request: pytest.FixtureRequest, dist: ModuleType, size: int
) -> Iterator[tuple[Any, list[int]]]:
    """A group in a form that functional collectives take, and its members' global ranks."""
    if request.param == "world":
        yield dist.group.WORLD, list(range(size))
    elif request.param == "mesh":
        yield (
            torch.distributed.device_mesh.init_device_mesh("cpu", (size,)),
            list(range(size)),
        )
    else:
        members = list(range(1, size))
        made = dist.new_group(members)
        yield made, members
        if made is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(made)


def member(rank: int, group: tuple[Any, list[int]]) -> bool:
    return rank in group[1]


@pytest.mark.parametrize("op", REDUCTIONS)
def test_all_reduce(group: Any, rank: int, op: str) -> None:
    if not member(rank, group):
        return
    where, ranks = group
    for dtype in DTYPES:
        if (op == "avg" and not dtype.is_floating_point) or (
            op[0] == "b" and dtype.is_floating_point
        ):
            continue
        parts = torch.stack([whole(r, 3, 2, dtype=dtype) for r in ranks])
        given = whole(rank, 3, 2, dtype=dtype)
        kept = given.clone()
        same(functional.all_reduce(given, op, where).wait(), REDUCTIONS[op](parts).to(dtype))
        same(given, kept)


def test_all_reduce_of_a_transposed_tensor(dist: ModuleType, rank: int, size: int) -> None:
    got = functional.all_reduce(whole(rank, 4, 3).t(), "sum", dist.group.WORLD)
    same(got.wait(), sum(whole(r, 4, 3).t() for r in range(size)))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_all_gather_tensor(group: Any, rank: int, dim: int) -> None:
    if not member(rank, group):
        return
    where, ranks = group
    for dtype in DTYPES:
        got = functional.all_gather_tensor(whole(rank, 2, 3, 2, dtype=dtype), dim, where)
        same(got + 0, torch.cat([whole(r, 2, 3, 2, dtype=dtype) for r in ranks], dim))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("op", ["sum", "avg", "max"])
def test_reduce_scatter_tensor(group: Any, rank: int, op: str, dim: int) -> None:
    if not member(rank, group):
        return
    where, ranks = group
    shape = [2, 3]
    shape[dim] *= len(ranks)
    got = functional.reduce_scatter_tensor(whole(rank, *shape), op, dim, where)
    parts = torch.stack([whole(r, *shape) for r in ranks])
    same(got.wait(), REDUCTIONS[op](parts).chunk(len(ranks), dim)[ranks.index(rank)])


def splits(sender: int, size: int) -> list[int]:
    """Return how many rows a sender has for each receiver, 0 for some receivers."""
    return [(sender + 2 * receiver) % 4 for receiver in range(size)]


def test_all_to_all_single(group: Any, rank: int) -> None:
    if not member(rank, group):
        return
    where, ranks = group
    me, size = ranks.index(rank), len(ranks)
    equal = functional.all_to_all_single(whole(rank, 2 * size, 3), None, None, where)
    same(equal.wait(), torch.cat([whole(r, 2 * size, 3).chunk(size)[me] for r in ranks]))

    def rows(r: int) -> Any:
        return whole(r, sum(splits(ranks.index(r), size)), 3, key=1)

    expected = [splits(sender, size)[me] for sender in range(size)]
    got = functional.all_to_all_single(rows(rank), expected, splits(me, size), where)
    same(
        got.wait(),
        torch.cat([rows(r).split(splits(ranks.index(r), size))[me] for r in ranks]),
    )


def test_broadcast(group: Any, rank: int) -> None:
    if not member(rank, group):
        return
    where, ranks = group
    for source, global_source in enumerate(ranks):
        # Unlike in torch.distributed.broadcast, the source is a rank of the group.
        given = whole(rank, 5, key=source)
        same(functional.broadcast(given, source, where).wait(), whole(global_source, 5, key=source))
        same(given, whole(rank, 5, key=source))


def test_permute_tensor(group: Any, rank: int) -> None:
    if not member(rank, group):
        return
    where, ranks = group
    size = len(ranks)
    there = [(sender + 1) % size for sender in range(size)]
    got = functional.permute_tensor(whole(rank, 4), there, where)
    same(got.wait(), whole(ranks[there.index(ranks.index(rank))], 4))


def test_coalesced(group: Any, rank: int) -> None:
    if not member(rank, group):
        return
    where, ranks = group
    size, me = len(ranks), ranks.index(rank)
    shapes = [(size, 3), (2 * size,), (size, 1, 2)]

    def given(r: int) -> list[Any]:
        return [whole(r, *shape, key=key) for key, shape in enumerate(shapes)]

    every = [given(r) for r in ranks]
    reduced = [sum(tensors) for tensors in zip(*every, strict=True)]
    for got, wanted in zip(
        functional.all_reduce_coalesced(given(rank), "sum", where), reduced, strict=True
    ):
        same(got.wait(), wanted)
    for got, tensors in zip(
        functional.all_gather_into_tensor_coalesced(given(rank), where),
        zip(*every, strict=True),
        strict=True,
    ):
        same(got.wait(), torch.cat(tensors))
    for got, wanted in zip(
        functional.reduce_scatter_tensor_coalesced(given(rank), "sum", [0, 0, 0], where),
        reduced,
        strict=True,
    ):
        same(got.wait(), wanted.chunk(size)[me])


def test_coalesced_of_two_dtypes(dist: ModuleType, rank: int, size: int) -> None:
    def given(r: int) -> list[Any]:
        return [whole(r, 3), whole(r, 2, dtype=torch.int64, key=1), whole(r, 4, key=2)]

    got = functional.all_reduce_coalesced(given(rank), "sum", dist.group.WORLD)
    for tensor, parts in zip(got, zip(*map(given, range(size)), strict=True), strict=True):
        same(tensor.wait(), sum(parts))


def test_a_chain_that_never_waits_by_hand(dist: ModuleType, rank: int, size: int) -> None:
    """Every operation on a collective's result waits for the collective; so does a collective."""
    world = dist.group.WORLD
    total = functional.all_reduce(whole(rank, size, 2), "sum", world)
    mine = functional.reduce_scatter_tensor(total * 2, "sum", 0, world)
    back = functional.all_gather_tensor(mine + 1, 0, world)
    wanted = size * 2 * sum(whole(r, size, 2) for r in range(size)) + 1
    same(back - 0, wanted)


def test_waited_for_in_another_order(dist: ModuleType, rank: int, size: int) -> None:
    started = [
        functional.all_reduce(whole(rank, 50, key=key), "sum", dist.group.WORLD)
        for key in range(20)
    ]
    # Every rank waits in a different order.
    for key in sorted(range(20), key=lambda key: (key * 7 + rank * 3) % 20):
        same(started[key].wait(), sum(whole(r, 50, key=key) for r in range(size)))


def test_a_waiting_thread_lets_the_others_run(dist: ModuleType, rank: int, size: int) -> None:
    """A thread that waits in C++ lets Python's other threads run on this rank."""
    name = dist.group.WORLD.group_name
    other = dist.new_group(list(range(size)))
    begun = threading.Event()
    result: list[Any] = []

    def reduce() -> None:
        started = OPS.all_reduce(whole(rank, 6), "sum", name)
        begun.set()
        result.append(OPS.wait_tensor(started))

    if rank == 0:
        thread = threading.Thread(target=reduce)
        thread.start()
        assert begun.wait(60)
        # The others start theirs after this barrier, which rank 0 reaches only if the GIL is free.
        dist.barrier(group=other)
        thread.join(60)
        assert not thread.is_alive()
    else:
        dist.barrier(group=other)
        reduce()
    same(result[0], sum(whole(r, 6) for r in range(size)))
    dist.destroy_process_group(other)


# The operators themselves, as compilers emit them.


def test_operators(dist: ModuleType, rank: int, size: int) -> None:
    name = dist.group.WORLD.group_name
    wait = OPS.wait_tensor
    total = sum(whole(r, size, 2) for r in range(size))
    given = functools.partial(whole, rank, size, 2)

    same(wait(OPS.all_reduce(given(), "sum", name)), total)
    inplace = given()
    back = OPS.all_reduce_(inplace, "sum", name)
    wait(back)
    same(inplace, total)
    inplace = [given(), given(key=1)]
    for tensor in OPS.all_reduce_coalesced_(inplace, "sum", name):
        wait(tensor)
    same(inplace[0], total)
    same(inplace[1], sum(whole(r, size, 2, key=1) for r in range(size)))

    inplace = given()
    wait(OPS.broadcast_(inplace, size - 1, name))
    same(inplace, whole(size - 1, size, 2))

    gathered = torch.cat([whole(r, size, 2) for r in range(size)])
    same(wait(OPS.all_gather_into_tensor(given(), size, name)), gathered)
    same(wait(OPS.reduce_scatter_tensor(given(), "sum", size, name)), total[rank : rank + 1])
    same(
        wait(OPS.all_to_all_single(given(), [1] * size, [1] * size, name)),
        torch.stack([whole(r, size, 2)[rank] for r in range(size)]),
    )
    # Up to about torch 2.12 these do not reach a process group that is written in Python.
    if hasattr(OPS, "reduce_scatter_tensor_out"):
        out = torch.empty(size * size, 2)
        wait(OPS.all_gather_into_tensor_out(given(), size, name, out=out))
        same(out, gathered)
        out = torch.empty(1, 2)
        wait(OPS.reduce_scatter_tensor_out(given(), "sum", size, name, out=out))
        same(out, total[rank : rank + 1])


@pytest.mark.skipif(
    not hasattr(OPS, "irecv"),
    reason=f"torch {torch.__version__} has no functional isend and irecv",
)
def test_point_to_point_operators(dist: ModuleType, rank: int, size: int) -> None:
    name = dist.group.WORLD.group_name
    there, here = (rank + 1) % size, (rank - 1) % size
    filled = torch.zeros(3)
    received = OPS.irecv(filled, here, 5, name)
    given = whole(rank, 3)
    sent = OPS.isend(given, there, 5, name)
    for tensor in (sent, given):  # torch knows the send by both tensors
        OPS.wait_tensor(tensor)
    same(OPS.wait_tensor(received), whole(here, 3))


# Gradients.


def test_gradients(dist: ModuleType, rank: int, size: int) -> None:
    """The gradient of a gather is a reduce_scatter, and the other way round."""
    world = dist.group.WORLD
    given = whole(rank, 2, 3).requires_grad_()
    weight = [whole(r, 2 * size, 3, key=1) for r in range(size)]
    gathered = functional.all_gather_tensor_autograd(given, 0, world)
    (gathered * weight[rank]).sum().backward()
    same(given.grad, sum(weight).chunk(size)[rank])

    given = whole(rank, 2 * size, 3).requires_grad_()
    weight = [whole(r, 2, 3, key=2) for r in range(size)]
    mine = functional.reduce_scatter_tensor_autograd(given, "sum", 0, world)
    (mine * weight[rank]).sum().backward()
    same(given.grad, torch.cat(weight))

    outgoing, incoming = splits(rank, size), [splits(r, size)[rank] for r in range(size)]
    given = whole(rank, sum(outgoing), 2).requires_grad_()
    weight = [whole(r, sum(splits(s, size)[r] for s in range(size)), 2, key=3) for r in range(size)]
    got = functional.all_to_all_single_autograd(given, incoming, outgoing, world)
    (got * weight[rank]).sum().backward()
    rows = [
        weight[receiver].split([splits(s, size)[receiver] for s in range(size)])[rank]
        for receiver in range(size)
    ]
    same(given.grad, torch.cat(rows))


@needs_autograd
def test_gradient_of_all_reduce(dist: ModuleType, rank: int, size: int) -> None:
    given = whole(rank, 4).requires_grad_()
    (functional.all_reduce(given, "sum", dist.group.WORLD) * (rank + 1)).sum().backward()
    same(given.grad, torch.full((4,), size * (size + 1) / 2))


# Under torch.compile.


@pytest.fixture
def compiled() -> Iterator[Callable[[Any], Any]]:
    """Compile a function and its gradient into one graph, which then runs operator by operator."""
    torch._dynamo.reset()
    yield functools.partial(torch.compile, backend="aot_eager", fullgraph=True)
    torch._dynamo.reset()


COMPILED = pytest.mark.mpi(ranks=[1, 2])  # a third rank compiles the same code


@COMPILED
def test_compiled(dist: ModuleType, rank: int, size: int, compiled: Callable[[Any], Any]) -> None:
    world = dist.group.WORLD

    def step(x: Any) -> Any:
        total = functional.all_reduce(x * 2, "sum", world)
        gathered = functional.all_gather_tensor(total + 1, 0, world)
        mine = functional.reduce_scatter_tensor(gathered * (rank + 1), "sum", 0, world)
        swapped = functional.all_to_all_single(gathered, None, None, world)
        return mine, swapped.sum(0), functional.broadcast(x, size - 1, world) + 1

    run = compiled(step)
    for key in range(3):
        mine, swapped, sent = run(whole(rank, size, 2, key=key))
        total = 2 * sum(whole(r, size, 2, key=key) for r in range(size)) + 1
        same(mine, total * (size * (size + 1) / 2))
        same(swapped, size * total.sum(0))
        same(sent, whole(size - 1, size, 2, key=key) + 1)


@COMPILED
def test_compiled_collectives_of_c10d(
    dist: ModuleType, rank: int, size: int, compiled: Callable[[Any], Any]
) -> None:
    """The compiler turns ``dist.all_reduce`` and similar calls into functional collectives."""

    def step(x: Any) -> Any:
        x = x + 1
        dist.all_reduce(x)
        out = x.new_empty((size * x.shape[0], *x.shape[1:]))
        dist.all_gather_into_tensor(out, x)
        return out * 2

    run = compiled(step)
    for key in range(2):
        total = sum(whole(r, 2, 2, key=key) + 1 for r in range(size))
        same(run(whole(rank, 2, 2, key=key)), 2 * torch.cat([total] * size))


@COMPILED
def test_compiled_gradient(
    dist: ModuleType, rank: int, size: int, compiled: Callable[[Any], Any]
) -> None:
    world = dist.group.WORLD

    @compiled
    def loss(x: Any, weight: Any) -> Any:
        return (functional.all_gather_tensor_autograd(x * x, 0, world) * weight).sum()

    given = whole(rank, 2).requires_grad_()
    weight = [whole(r, 2 * size, key=1) for r in range(size)]
    loss(given, weight[rank]).backward()
    same(given.grad, 2 * given.detach() * sum(weight).chunk(size)[rank])


@pytest.mark.mpi(ranks=2, timeout=300)  # the compilation costs more than all other tests
def test_inductor(
    dist: ModuleType, rank: int, size: int, monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    """Inductor's generated code waits for collectives between its kernels."""
    from torch._inductor import config
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        pytest.skip("this machine has no C++ compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(here))  # one rank compiles for both
    # These settings make compilation fast. The code is only two additions.
    monkeypatch.setattr(config, "compile_threads", 1)
    monkeypatch.setattr(config, "cpp_cache_precompile_headers", False)
    monkeypatch.setattr(config.cpp, "vec_isa_ok", False)
    torch._dynamo.reset()

    @functools.partial(torch.compile, fullgraph=True)
    def step(x: Any) -> Any:
        total = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        return functional.all_gather_tensor(total + 1, 0, dist.group.WORLD) * 2

    for key in range(3):
        total = 2 * sum(whole(r, 3, key=key) for r in range(size)) + 1
        same(step(whole(rank, 3, key=key)), 2 * torch.cat([total] * size))
    torch._dynamo.reset()
