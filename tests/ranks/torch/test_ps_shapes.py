"""Dense parameters of a transpiled model have their shapes in cuts and in exported files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from paddlempi import errors, ps
from paddlempi.ps.dense import layout
from paddlempi.testing import World
from ps_roles import BOTH, folder

__all__ = ["folder"]

pytestmark = pytest.mark.mpi(ranks=[2])


@pytest.fixture(autouse=True)
def ended(mpi_world: World) -> Any:
    torch.set_num_threads(1)
    yield
    ps.shutdown()


class Net(torch.nn.Module):
    def __init__(self, *shape: int, sparse: bool = False) -> None:
        super().__init__()
        if sparse:
            self.weight: Any = torch.nn.Embedding(*shape, sparse=True)
        else:
            self.weight = torch.nn.Module()
            self.weight.weight = torch.nn.Parameter(torch.rand(shape))
        self.scale = torch.nn.Parameter(torch.tensor(3.0))
        self.bias = torch.nn.Parameter(torch.rand(5))


def spread(model: torch.nn.Module, **more: Any) -> Any:
    return ps.transpile(model, torch.optim.SGD(model.parameters(), 0.1), BOTH, timeout=30, **more)


def test_an_exported_file_has_the_shapes(folder: Path, rank: int, dist: Any) -> None:
    """Its tensors go into the state dict of the single-machine model."""
    plan = spread(Net(3, 50, 70))
    ps.save(folder, 1)
    if rank == 0:
        ps.export(folder, folder / "file", "numpy")
        with np.load(folder / "file") as archive:
            state = {name.removeprefix("plan."): torch.tensor(archive[name]) for name in archive}
        now = plan.state_dict()
        assert {name: one.shape for name, one in state.items()} == {
            name: one.shape for name, one in now.items()
        }
        assert all((one == now[name]).all() for name, one in state.items())
        Net(3, 50, 70).load_state_dict(state)
    dist.barrier()


def test_a_cut_of_another_shape_is_refused(folder: Path) -> None:
    """Also one of as many elements or blocks, and a table in the place of a parameter."""
    spread(Net(100, 100))
    ps.save(folder, 1)
    ps.shutdown()
    others = [Net(150, 150), Net(50, 200), Net(10000), Net(2, 8192, sparse=True)]
    for other in others:
        plan = spread(other)
        before = {name: one.clone() for name, one in plan.state_dict().items()}
        for strict in (True, False):
            with pytest.raises(errors.ArgumentError, match="it is a dense parameter of shape 100x"):
                ps.restore(folder, strict=strict)
        plan.optimizer.refresh()
        assert all((one == before[name]).all() for name, one in plan.state_dict().items())
        ps.shutdown()
    spread(Net(100, 100))
    ps.restore(folder)


def test_servers_hold_what_the_plan_says() -> None:
    """But for indexes, locks and begun slabs."""
    layers = [torch.nn.Linear(300, 300), torch.nn.Linear(1000, 1000, bias=False)]
    rows = torch.nn.Embedding(1000, 16, sparse=True)
    model = torch.nn.ModuleList([*layers, rows, *(torch.nn.LayerNorm(50) for _ in range(9))])
    plan = ps.transpile(model, torch.optim.Adagrad(model.parameters(), 0.1), BOTH, timeout=30)
    rows_now = next(iter(plan.layers.values()))
    rows_now.table.pull(torch.arange(1000))
    ps.barrier()
    told = [table for at in ps.stats()["servers"] for table in at["tables"]]
    for one in plan.parameters:
        held = sum(table["bytes"] for table in told if table["name"] == one.table)
        count = sum(table["rows"] for table in told if table["name"] == one.table)
        assert one.memory() <= held <= 1.4 * one.memory() + 400 * min(count, 128) + (16 << 10) * 2
    ps.barrier("told")


def test_a_layout_of_many_shapes_is_short() -> None:
    many = [[20, 30 + n] for n in range(5000)]
    assert layout(many).startswith("20x30, 20x31, 20x32 and 4997 more (digest ")
    assert len(layout(many)) < 100 and layout(many) != layout(many[::-1])
    assert layout([[20, 30], [], [7]]) == "20x30, scalar, 7"


def test_vectors_of_several_parameters(folder: Path) -> None:
    """With dense="server" the parameters of a group are one vector."""

    def wrap(*shapes: tuple[int, ...]) -> None:
        ps.init(BOTH, timeout=30)
        own = [torch.nn.Parameter(torch.rand(shape)) for shape in shapes]
        ps.DistributedOptimizer(torch.optim.SGD(own, 0.1), dense="server")

    wrap((100, 50), (100, 50))
    ps.save(folder, 1)
    for shapes in ([(100, 100)], [(50, 100), (100, 50)], [(10000,)]):
        ps.shutdown()
        wrap(*shapes)
        with pytest.raises(errors.ArgumentError, match="of shape 100x50, 100x50 in the cut and a"):
            ps.restore(folder)
    ps.shutdown()
    wrap((100, 50), (100, 50))
    ps.restore(folder)
