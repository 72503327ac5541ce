"""Pipelines with one or two stages a rank: losses, outputs and gradients of the whole model."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
from ranks_data import real
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    SplitPoint,
    pipeline,
)
from torch.nn.functional import mse_loss

WIDTH, CHUNKS = 6, 4
close = torch.testing.assert_close


def layers(count: int) -> Any:
    """Return as many small layers as there are stages, the same on every rank."""
    torch.manual_seed(11)
    return torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(count))
    )


class Named(torch.nn.Module):
    """The same layers under names, because torch 2.8 cannot trace a Sequential."""

    def __init__(self, parts: Any) -> None:
        super().__init__()
        for i, part in enumerate(parts):
            self.add_module(f"layer{i}", part)

    def forward(self, x: Any) -> Any:
        for layer in self.children():
            x = layer(x)
        return x


def whole_model(model: Any, x: Any, y: Any) -> tuple[Any, list[Any]]:
    """Return the output and every microbatch's loss in one process. The model gets gradients.

    They are divided by the number of microbatches, as a schedule does.
    """
    out = model(x)
    losses = [mse_loss(a, b) for a, b in zip(out.chunk(CHUNKS), y.chunk(CHUNKS), strict=True)]
    (sum(losses) / CHUNKS).backward()
    return out.detach(), [loss.detach() for loss in losses]


def compare(parts: dict[int, Any], wanted: Any) -> None:
    """Assert that this rank's stages have the gradients of the whole model."""
    for index, part in parts.items():
        for mine, parameter in zip(part.parameters(), wanted[index].parameters(), strict=True):
            close(mine.grad, parameter.grad)


@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
def test_one_stage_a_rank(dist: ModuleType, rank: int, size: int, schedule: Any) -> None:
    wanted, x, y = layers(size), real(0, 8, WIDTH), real(0, 8, WIDTH, key=1)
    mine = copy.deepcopy(wanted[rank])
    out, losses = whole_model(wanted, x, y)

    stage = PipelineStage(mine, rank, size, torch.device("cpu"))
    run = schedule(stage, CHUNKS, loss_fn=mse_loss)
    for _ in range(2):  # the second step reuses the buffers of the first
        mine.zero_grad()
        got_losses: list[Any] = []
        if rank == size - 1:
            close(run.step(target=y, losses=got_losses).detach(), out)
            close(torch.stack(got_losses).detach(), torch.stack(losses))
        else:
            run.step(*((x,) if rank == 0 else ()))
        compare({rank: mine}, wanted)


def test_interleaved(dist: ModuleType, rank: int, size: int) -> None:
    """Two stages a rank: rank and rank + size."""
    count = 2 * size
    microbatches = 2 * size  # a multiple of the number of ranks, as the schedule requires
    wanted = layers(count)
    x, y = real(0, 2 * microbatches, WIDTH), real(0, 2 * microbatches, WIDTH, key=1)
    indices = (rank, rank + size)
    mine = {index: copy.deepcopy(wanted[index]) for index in indices}
    out = wanted(x)
    losses = [
        mse_loss(a, b) for a, b in zip(out.chunk(microbatches), y.chunk(microbatches), strict=True)
    ]
    (sum(losses) / microbatches).backward()

    stages = [PipelineStage(mine[i], i, count, torch.device("cpu")) for i in indices]
    run = ScheduleInterleaved1F1B(stages, microbatches, loss_fn=mse_loss)
    got_losses: list[Any] = []
    if rank == size - 1:
        close(run.step(target=y, losses=got_losses).detach(), out.detach())
        close(torch.stack(got_losses).detach(), torch.stack(losses).detach())
    else:
        run.step(*((x,) if rank == 0 else ()))
    compare(mine, wanted)


def test_cut_out_of_a_whole_model(dist: ModuleType, rank: int, size: int) -> None:
    """torch traces the model and cuts it before the named layers."""
    wanted, x, y = layers(size), real(0, 8, WIDTH), real(0, 8, WIDTH, key=1)
    cut = pipeline(
        Named(copy.deepcopy(wanted)),
        mb_args=(x.chunk(CHUNKS)[0],),
        split_spec={f"layer{i}": SplitPoint.BEGINNING for i in range(1, size)},
    )
    stage = cut.build_stage(rank, torch.device("cpu"))
    out, losses = whole_model(wanted, x, y)
    run = ScheduleGPipe(stage, CHUNKS, loss_fn=mse_loss)
    got_losses: list[Any] = []
    if rank == size - 1:
        close(run.step(target=y, losses=got_losses).detach(), out)
        close(torch.stack(got_losses).detach(), torch.stack(losses))
    else:
        run.step(*((x,) if rank == 0 else ()))
    compare({rank: stage.submod}, wanted)
