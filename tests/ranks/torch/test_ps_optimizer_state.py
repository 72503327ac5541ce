"""States of optimizers on several servers: all trainers get one, and go on in step."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from paddlempi import errors, ps
from paddlempi.testing import World
from ps_roles import BOTH, folder

__all__ = ["folder"]

pytestmark = pytest.mark.mpi(ranks=[2, 3])

ROWS, DIM = 9, 3


@pytest.fixture(autouse=True)
def ended(mpi_world: World) -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    ps.shutdown()


class Net(torch.nn.Module):
    """Rows, and a dense parameter of several blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(ROWS, DIM, sparse=True)
        self.up = torch.nn.Linear(DIM, 4000)
        self.down = torch.nn.Linear(4000, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(torch.tanh(self.up(self.rows(ids))))
        return out


def made(seed: int) -> tuple[Any, list[Any]]:
    torch.manual_seed(seed)
    model = Net()
    dense = [*model.up.parameters(), *model.down.parameters()]
    return model, [
        torch.optim.SparseAdam([model.rows.weight], 0.01),
        torch.optim.AdamW(dense, 0.01),
    ]


def train(model: Any, optimizers: list[Any], begin: int, end: int, ranks: range) -> None:
    for step in range(begin, end):
        for one in optimizers:
            one.zero_grad()
        for rank in ranks:
            model(torch.tensor([step % ROWS, 2 + rank])).square().sum().mul(9).backward()
        for one in optimizers:
            one.step()


def close(found: Any, wanted: Any, **more: float) -> None:
    torch.testing.assert_close(found, wanted, **(more or {"rtol": 1e-3, "atol": 1e-4}))


def states(optimizers: list[Any]) -> list[Any]:
    return [one.state_dict() for one in optimizers]


def test_from_one_process_to_all_trainers_and_back(rank: int, size: int) -> None:
    alone, theirs = made(7)
    train(alone, theirs, 0, 4, range(size))
    begun = copy.deepcopy(
        {"model": alone.state_dict(), "optimizer": [one.state_dict() for one in theirs]}
    )
    plan = ps.transpile(*made(rank), BOTH, average=False)
    other = copy.deepcopy(begun)
    if rank:  # the first trainer's count
        for index in (0, 1, 2):
            other["optimizer"][1]["state"][index]["exp_avg"] += 7
    plan.set_state_dict(other, optimizer=True)
    close(plan.state_dict(optimizer=True), begun, rtol=0, atol=0)
    ps.barrier()
    train(plan.model, plan.optimizer, 4, 8, range(rank, rank + 1))
    train(alone, theirs, 4, 8, range(size))
    ended = plan.state_dict(optimizer=True)
    close(ended, {"model": dict(alone.state_dict()), "optimizer": states(theirs)})
    back, mine = made(8)
    back.load_state_dict(ended["model"])
    for one, state in zip(mine, ended["optimizer"], strict=True):
        one.load_state_dict(copy.deepcopy(state))
    train(back, mine, 8, 12, range(size))
    train(alone, theirs, 8, 12, range(size))
    close(states(mine), states(theirs))
    close(dict(back.state_dict()), dict(alone.state_dict()))


def test_optimizers_that_have_begun_are_carried_over(rank: int, size: int) -> None:
    """Those of the first trainer; another one may even have new ones."""
    alone, theirs = made(7)
    train(alone, theirs, 0, 4, range(size))
    model, mine = made(7)
    if rank == 0:
        train(model, mine, 0, 4, range(size))
    plan = ps.transpile(model, mine, BOTH, average=False)
    close(states(plan.optimizer), states(theirs), rtol=0, atol=0)
    ps.barrier()
    train(plan.model, plan.optimizer, 4, 8, range(rank, rank + 1))
    train(alone, theirs, 4, 8, range(size))
    close(plan.state_dict(), dict(alone.state_dict()))


def test_states_of_a_mode_that_exchanges(rank: int, size: int) -> None:
    """In mode geo each trainer has states of its own, and each sets them."""
    model, mine = made(7)
    plan = ps.transpile(model, mine, BOTH, mode="geo", geo_step=3)
    train(plan.model, plan.optimizer, 0, 4, range(rank, rank + 1))
    before = states(plan.optimizer)
    seen = before[0]["state"][0]["exp_avg"].abs().sum(1) > 0
    assert seen.tolist() == [at in {0, 1, 2, 3, 2 + rank} for at in range(ROWS)]
    train(plan.model, plan.optimizer, 4, 6, range(rank, rank + 1))
    for one, state in zip(plan.optimizer, before, strict=True):
        one.load_state_dict(state)
    close(states(plan.optimizer), before, rtol=0, atol=0)
    ps.barrier()


def test_states_of_a_table(rank: int, folder: Path) -> None:
    """Each trainer reads what another one has written, and so does a cut."""
    ps.init(BOTH)
    table = ps.RemoteTable("t", DIM, ps.Adam(bias_correction="row"))
    ids = torch.tensor([5, -3, 2**60])
    width = 2 * DIM + 1
    values = torch.arange(3.0 * width).view(3, width)
    if rank == 0:
        table.write_states(ids, values, 17)
    ps.barrier()
    states, steps = table.read_states(ids.flip(0))
    assert steps == 17 and (states == values.flip(0)).all()
    none, _ = table.read_states(torch.tensor([6]))
    assert (none == 0).all()
    assert len(table) == 3
    ps.save(folder, 1)
    loaded = ps.load(folder, train=True)["t"]
    assert loaded.optimizer == table.optimizer
    state = loaded.state_dict()
    assert state["steps"] == 17 and (state["states"] == values.numpy()[[1, 0, 2]]).all()
    ps.shutdown()
    ps.init(BOTH)
    ps.RemoteTable("t", DIM, "adam")
    with pytest.raises(errors.ArgumentError, match="bias_correction is row in the cut and table"):
        ps.restore(folder)
