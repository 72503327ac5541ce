"""Tensors that stand for others, and transforms of functions: as with torch's own groups."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as functional
from paddlempi import errors
from torch.utils._pytree import tree_map


class Wrapped(torch.Tensor):
    """A tensor without memory of its own; torch's operators get the one that it holds."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Wrapped:
        made: Wrapped = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def inner(one: Any) -> Any:
            return one.held if isinstance(one, cls) else one

        return func(*tree_map(inner, args), **tree_map(inner, kwargs or {}))


def waiting(dist: ModuleType, rank: int) -> Any:
    """An AsyncCollectiveTensor, as a layer that is tensor-parallel returns it: all ones."""
    size = dist.get_world_size()
    made = functional.all_reduce(torch.full((3,), 1.0 / size), "sum", dist.group.WORLD)
    assert type(made) is functional.AsyncCollectiveTensor
    return made


def wrapped(dist: ModuleType, rank: int) -> Any:
    return Wrapped(torch.ones(3))


def values(tensor: Any) -> list[float]:
    held = tensor.held if isinstance(tensor, Wrapped) else tensor
    found: list[float] = (held.wait() if hasattr(held, "wait") else held).tolist()
    return found


@pytest.fixture(params=[waiting, wrapped], ids=["AsyncCollectiveTensor", "wrapper"])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_collectives(dist: ModuleType, rank: int, size: int, make: Any) -> None:
    x = make(dist, rank)
    dist.all_reduce(x)
    assert values(x) == [size] * 3
    work = dist.all_reduce(make(dist, rank), async_op=True)
    work.wait()
    x = make(dist, rank)
    dist.broadcast(x, 0)
    assert values(x) == [1.0] * 3
    outs = [torch.zeros(3) for _ in range(size)]
    dist.all_gather(outs, make(dist, rank))
    assert [out.tolist() for out in outs] == [[1.0] * 3] * size
    out = torch.zeros(3 * size)
    dist.all_gather_into_tensor(out, make(dist, rank))
    assert out.tolist() == [1.0] * 3 * size
    x = make(dist, rank)
    dist.reduce(x, 0)
    if rank == 0:
        assert values(x) == [size] * 3


@pytest.mark.mpi(min=2)
def test_messages(dist: ModuleType, rank: int, make: Any) -> None:
    x = make(dist, rank)  # by all ranks
    if rank == 0:
        dist.send(x, 1)
        dist.isend(x, 1).wait()
    elif rank == 1:
        for receive in (dist.recv, lambda tensor, src: dist.irecv(tensor, src).wait()):
            tensor = torch.zeros(3)
            receive(tensor, 0)
            assert tensor.tolist() == [1.0] * 3
    y = make(dist, rank)
    if rank == 0:
        dist.send(torch.full((3,), 7.0), 1)
    elif rank == 1:
        dist.recv(y, 0)
        assert values(y) == [7.0] * 3


def test_transforms(dist: ModuleType, size: int) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y.sum()

    # As with gloo: what all_reduce does has no derivative.
    assert torch.func.grad(function)(torch.ones(3)).tolist() == [2.0] * 3
    found = torch.func.functionalize(lambda x: function(x) + x)(torch.ones(2))
    assert found.tolist() == [2.0 * 2 * size + 1] * 2


def test_a_distributed_tensor_says_to_local(dist: ModuleType, line: Any) -> None:
    from torch.distributed.tensor import DTensor, Replicate

    tensor = DTensor.from_local(torch.ones(3), line, [Replicate()])
    with pytest.raises(errors.DtypeError, match="to_local"):
        dist.all_reduce(tensor)
    dist.barrier()
