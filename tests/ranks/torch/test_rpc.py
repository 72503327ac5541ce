"""``torch.distributed.rpc`` does not use MPI. RPC and collectives do not disturb each other."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from ranks_data import same, whole
from torch.distributed import rpc

pytestmark = pytest.mark.filterwarnings("ignore:You are using a Backend")


@pytest.fixture
def peers(dist: ModuleType, rank: int, size: int) -> Iterator[list[str]]:
    """RPC between all ranks. They meet by ``env://``, over MPI because no port is set."""
    options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=50)
    names = [f"worker{r}" for r in range(size)]
    rpc.init_rpc(names[rank], rank=rank, world_size=size, rpc_backend_options=options)
    store = rpc.api._get_current_rpc_agent().store  # that of rank 0 serves all ranks
    yield names
    rpc.shutdown()
    dist.barrier()
    del store  # now no rank reads there any more


def own_collective(dist: ModuleType, rank: int, size: int) -> None:
    tensor = whole(rank, 4)
    dist.all_reduce(tensor)
    same(tensor, sum(whole(r, 4) for r in range(size)))


def test_calls_and_collectives(dist: ModuleType, peers: list[str], rank: int, size: int) -> None:
    assert dist.get_backend() == "mpi"
    there = (rank + 1) % size
    calls = [
        rpc.rpc_async(peers[there], torch.add, args=(whole(rank, 3, key=key), there))
        for key in range(5)
    ]
    own_collective(dist, rank, size)
    for key, call in enumerate(calls):
        same(call.wait(), whole(rank, 3, key=key) + there)
    far = rpc.remote(peers[there], torch.mul, args=(whole(rank, 3), 2))
    same(far.to_here(), whole(rank, 3) * 2)


def test_a_call_that_fails(dist: ModuleType, peers: list[str], rank: int, size: int) -> None:
    with pytest.raises(RuntimeError, match="size"):
        rpc.rpc_sync(peers[(rank + 1) % size], torch.add, args=(torch.ones(2), torch.ones(3)))
    own_collective(dist, rank, size)


def test_gradients_through_calls(dist: ModuleType, peers: list[str], rank: int, size: int) -> None:
    from torch.distributed import autograd

    weight = whole(rank, 3).requires_grad_()
    with autograd.context() as context:
        there = (rank + 1) % size
        out = rpc.rpc_sync(peers[there], torch.mul, args=(weight, whole(rank, 3, key=1)))
        autograd.backward(context, [out.sum()])
        gradients: Any = autograd.get_gradients(context)
        same(gradients[weight], whole(rank, 3, key=1))
        own_collective(dist, rank, size)
        dist.barrier()


def test_after_it(dist: ModuleType, rank: int, size: int) -> None:
    own_collective(dist, rank, size)
