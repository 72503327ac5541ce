"""The parts of an elastic job of torch, in one process that says which rank it is."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from paddlempi import errors
from paddlempi.elasticity import generators
from paddlempi.torch.parts import batches
from paddlempi.torch.parts.batches import Batches, Sampler
from paddlempi.torch.parts.generators import Random
from paddlempi.torch.parts.modules import Module
from paddlempi.torch.parts.optimizers import Optimizer, Scaler, Scheduler
from paddlempi.torch.parts.tensors import piece_of
from torch.utils.data import DataLoader, TensorDataset


class World:
    """Which rank this process is, and of how many."""

    rank, size = 0, 1

    def get_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.size


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(batches, "dist", world)
    return world


def made(count: int, batch: int, workers: int = 0, drop_last: bool = False) -> Batches:
    data = TensorDataset(torch.arange(count))
    sampler = Sampler(data, seed=1, drop_last=drop_last)
    return Batches(DataLoader(data, batch, sampler=sampler, num_workers=workers))


def step_of(world: World, ranks: list[Batches]) -> list[int]:
    """One step of all ranks; return the samples."""
    used: list[int] = []
    world.size = len(ranks)
    for world.rank, part in enumerate(ranks):
        part.before()
        used += next(part)[0].tolist()
    return used


@pytest.mark.parametrize("workers", [0, 1])
def test_every_sample_of_an_epoch_is_used_once(workers: int, world: World) -> None:
    ranks = [made(56, 4, workers) for _ in range(3)]
    used = [*step_of(world, ranks), *step_of(world, ranks)]
    again = step_of(world, ranks)  # lost: its samples come again, in other parts
    for part in ranks:
        part.back()
        part.reformed(None)
    ranks.pop(1)
    repeated = step_of(world, ranks)
    assert set(repeated) < set(again)
    used += repeated
    newcomer = made(56, 4, workers)
    newcomer.load(ranks[0].state())
    for part in (*ranks, newcomer):
        part.reformed(None)
    ranks.append(newcomer)
    while len(used) < 56:
        used += step_of(world, ranks)
    assert sorted(used) == sorted(range(56))
    assert {part.epoch for part in ranks} == {0}
    step_of(world, ranks)
    assert {part.epoch for part in ranks} == {1}


def test_epochs_differ_and_ends_are_filled_or_dropped(world: World) -> None:
    ranks = [made(7, 2) for _ in range(2)]
    first = step_of(world, ranks) + step_of(world, ranks)
    assert len(first) == 8 and set(first) == set(range(7))  # one is used twice
    second = step_of(world, ranks) + step_of(world, ranks)
    assert set(second) == set(range(7)) and second != first
    ranks = [made(7, 2, drop_last=True) for _ in range(2)]
    first = step_of(world, ranks) + step_of(world, ranks)
    assert len(first) == len(set(first)) == 6
    world.size = 8
    few = made(7, 2, drop_last=True)
    with pytest.raises(errors.ArgumentError, match="7 samples are too few"):
        next(few)


def test_a_loader_draws_nothing_of_the_programs_numbers(world: World) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    next(made(10, 2))
    assert torch.equal(torch.rand(3), expected)


def test_loaders_that_are_none(world: World) -> None:
    data = TensorDataset(torch.arange(4))
    with pytest.raises(errors.ArgumentError, match="a RandomSampler"):
        Batches(DataLoader(data, 2, shuffle=True))
    with pytest.raises(errors.ArgumentError, match="batch_size=None"):
        Batches(DataLoader(data, None, sampler=Sampler(data)))


def test_a_step_gives_buffers_back() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(2)
            self.register_buffer("seen", torch.zeros(1))
            self.register_buffer("nothing", None)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = torch.cat([self.seen, torch.ones(1)])
            return self.norm(x)

    model = Counts()
    part, seen = Module(model), model.seen
    for _ in range(2):
        part.before()
        model(torch.randn(4, 2)).sum().backward()
        part.back()
        assert model.seen is seen and seen.tolist() == [0]
        assert model.norm.num_batches_tracked == 0 and model.norm.running_mean.eq(0).all()
    model(torch.randn(4, 2))
    part.before()
    model(torch.randn(4, 2))
    part.back()
    assert model.seen.tolist() == [0, 1] and model.norm.num_batches_tracked == 1
    part.reformed(None)
    assert model.norm.weight.grad is None


def test_an_optimizer_tells_what_it_has_done() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    part, rate = Optimizer(optimizer), Scheduler(schedule)
    for often in (1, 2):
        part.before()
        rate.before()
        assert part.whole() and not part.made()
        weight.grad = torch.ones(2)
        for _ in range(often):
            optimizer.step()
        assert not part.whole() and part.made()
    part.before()
    rate.before()
    optimizer.step()
    assert not part.made()  # there were two in the step before
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    part.back()
    rate.back()
    assert optimizer.param_groups[0]["lr"] == 1.0 and schedule.get_last_lr() == [1.0]
    assert schedule.last_epoch == 0 and part.whole()

    def fails(*_: Any) -> None:
        raise RuntimeError

    optimizer.register_step_pre_hook(fails)
    part.before()
    with pytest.raises(RuntimeError):
        optimizer.step()
    assert not part.whole() and not part.made()


def test_a_scaler_may_unscale_again() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    part = Scaler(scaler)
    part.before()
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    part.back()
    weight.grad = None
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)
    assert weight.grad is not None and weight.grad.eq(1).all() and scaler.get_scale() == 8


def drawn() -> list[float]:
    return [torch.rand(()).item(), np.random.rand(), random.random()]


def seeded(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


@pytest.mark.parametrize("alike", [True, False])
def test_numbers_of_a_repeated_step_and_of_a_replacement(
    alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeded(1)
    old = Random()
    old.before()
    first = drawn()
    old.back()
    assert drawn() == first
    said = (old.seeded(), True, old.state())
    after = drawn()
    monkeypatch.setattr(generators, "told", lambda value, root: said)
    monkeypatch.setattr(generators.group, "get_rank", lambda: 2)
    seeded(1 if alike else 7)
    Random().share(0)
    mine = drawn()
    assert (mine == after) is alike
    seeded(1 if alike else 7)
    Random().share(0)
    assert drawn() == mine
    old.share(0)  # a rank that was there keeps its numbers
    assert drawn() != mine


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex128])
def test_pieces_are_the_memory_of_tensors(dtype: torch.dtype) -> None:
    weight = torch.nn.Parameter(torch.ones(3, 4).to(dtype), requires_grad=False)
    for tensor in (weight, weight.t(), weight[1, 1], weight[:0]):
        box, array = piece_of(tensor)
        assert box == (tuple(tensor.shape), str(dtype)[6:], dtype.itemsize, box.begin, box.shape, 0)
        assert array.shape == tensor.shape and array.itemsize == dtype.itemsize
        array[...] = 0
        assert not tensor.any()
        weight.fill_(1)


def test_a_zero_optimizer_needs_sharded() -> None:
    class ZeroRedundancyOptimizer(torch.optim.SGD):
        pass

    with pytest.raises(errors.UnsupportedError, match=r"attach paddlempi\.torch\.Sharded"):
        Optimizer(ZeroRedundancyOptimizer([torch.nn.Parameter(torch.ones(2))], lr=1.0))
