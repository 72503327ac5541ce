"""Layers cut over ranks, alone and under FSDP2, against the whole layers in one process."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
from ranks_data import real
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

close = torch.testing.assert_close


class Block(torch.nn.Module):
    """A norm, and two layers with a ReLU between, 24 features wide inside; a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(12)
        self.up = torch.nn.Linear(12, 24)
        self.down = torch.nn.Linear(24, 12)

    def forward(self, x: Any) -> Any:
        return x + self.down(self.up(self.norm(x)).relu())


@pytest.fixture(scope="module")
def line(dist: ModuleType) -> Any:
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))


@pytest.fixture(scope="module")
def grid(dist: ModuleType) -> Any:
    """2 x 2 for four ranks: data parallel down, tensor parallel along."""
    size = dist.get_world_size()
    return init_device_mesh("cpu", (size // 2 or 1, 2), mesh_dim_names=("dp", "tp"))


def block() -> Any:
    torch.manual_seed(1)
    return Block()


def compare(got: Any, wanted: Any) -> None:
    """Compare a parallel module's parameters and gradients, put together, with the whole ones."""
    for name, parameter in wanted.named_parameters():
        mine = got.get_parameter(name)
        for a, b in ((mine, parameter), (mine.grad, parameter.grad)):
            close(a.full_tensor() if hasattr(a, "full_tensor") else a, b)


def test_columns_then_rows(line: Any, rank: int, size: int) -> None:
    wanted = block()
    got = parallelize_module(
        copy.deepcopy(wanted), line, {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )
    assert got.up.weight.to_local().shape == (24 // size, 12)
    assert got.down.weight.to_local().shape == (12, 24 // size)
    x = real(0, 4, 12)
    for model in (wanted, got):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
    close(got(x), wanted(x))
    compare(got, wanted)


def test_sequence_parallel(line: Any, rank: int, size: int) -> None:
    """The norm works on a part of the sequence, the layers work on all of it."""
    wanted = block()
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    got = parallelize_module(copy.deepcopy(wanted), line, plan)
    x = real(0, 2, 2 * size, 12)
    out = got(distribute_tensor(x, line, [Shard(1)]))
    assert out.placements == (Shard(1),)
    close(out.full_tensor(), wanted(x))
    out.full_tensor().square().sum().backward()
    wanted(x).square().sum().backward()
    compare(got, wanted)


def test_embedding(line: Any, rank: int, size: int) -> None:
    torch.manual_seed(2)
    words = torch.tensor([[0, 5, 11], [7, 7, 1]])
    for style in (RowwiseParallel(input_layouts=Replicate()), ColwiseParallel()):
        wanted = torch.nn.Embedding(12, 24)
        got = parallelize_module(copy.deepcopy(wanted), line, style)
        out = got(words)
        if isinstance(style, RowwiseParallel):
            close(out, wanted(words))
        else:
            close(out, wanted(words).chunk(size, 2)[rank])


def test_loss_parallel(line: Any, rank: int, size: int) -> None:
    """A cross entropy whose classes are spread over the ranks."""
    torch.manual_seed(3)
    wanted = torch.nn.Linear(6, 12)
    got = parallelize_module(
        copy.deepcopy(wanted),
        line,
        ColwiseParallel(output_layouts=Shard(1), use_local_output=False),
    )
    x, labels = real(0, 5, 6), torch.tensor([0, 3, 11, 6, 6])
    loss = functional.cross_entropy(wanted(x), labels)
    loss.backward()
    with loss_parallel():
        mine = functional.cross_entropy(got(x), labels)
        close(mine.full_tensor(), loss)
        mine.backward()
    compare(got, wanted)


@pytest.mark.mpi([2, 4])
def test_under_fsdp2(grid: Any, rank: int, size: int) -> None:
    """Tensor parallel along, fully_shard down: every pair of ranks has its own data."""
    pairs = size // 2
    wanted = block()
    got = parallelize_module(
        copy.deepcopy(wanted), grid["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )
    fully_shard(got, mesh=grid["dp"])
    batches = [real(pair, 4, 12) for pair in range(pairs)]
    for model, inputs in ((wanted, torch.cat(batches)), (got, batches[rank // 2])):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        for _ in range(3):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
    compare(got, wanted)
