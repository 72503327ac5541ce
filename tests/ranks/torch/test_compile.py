"""``torch.compile`` of models that train on several ranks."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
from models import Net, agree, alone, close, loss_of, seeded, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

BACKEND = "aot_eager"
"""Inductor would write the same graphs as C++, which takes 20 s. test_functional.py has it."""

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    # A third rank compiles the same code.
    pytest.mark.mpi(ranks=[1, 2], timeout=300),
]


def test_ddp(dist: ModuleType, rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo cuts the graph at DDP's buckets, so that their all-reduces overlap."""
    monkeypatch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 256)
    start = seeded(Net)
    model = DDP(copy.deepcopy(start), bucket_cap_mb=0.0005)
    compiled: Any = torch.compile(model, backend=BACKEND)
    train(compiled, loss_of(size), rank)
    close(model, alone(start, loss_of(size), size))
    agree(dist, model)


def test_fsdp2(dist: ModuleType, rank: int, size: int) -> None:
    start = seeded(Net)
    mesh = init_device_mesh("cpu", (size,))
    model: nn.Module = copy.deepcopy(start)
    for layer in (model.first, model.middle, model.last):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    compiled: Any = torch.compile(model, backend=BACKEND)
    train(compiled, loss_of(size), rank)
    got = [p.detach().full_tensor() for p in model.parameters()]
    close(got, alone(start, loss_of(size), size))
    agree(dist, got)
