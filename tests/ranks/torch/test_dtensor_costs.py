"""DTensor chooses by measured numbers, alike on all ranks, and back by torch's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from paddlempi.errors import ArgumentError
from paddlempi.planner import here
from paddlempi.planner.machine import Collective, Compute, Machine, Range
from paddlempi.torch import use_measured_costs
from paddlempi.torch.planner import dtensor_costs
from ranks_data import real, same
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

ONE = Range(1.0, 1.0, 1.0)
SLOW = 60e-6, 1e7
"""The seconds of a short message, and bytes in a second: what DTensor adds counts for little."""
MEMORY = 5e-6, 5e9


@pytest.fixture(autouse=True)
def torchs_numbers() -> Iterator[None]:
    yield
    use_measured_costs(None)


def machine(dist: Any, shapes: dict[tuple[int, int], tuple[float, float]]) -> Machine:
    """Make up what was measured of this job. Collective."""
    places: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(places, here.place())
    rows = []
    for (nodes, ranks), (latency, rate) in shapes.items():
        for operation in ("all_reduce", "all_gather", "reduce_scatter"):
            for length in (1 << 10, 1 << 16, 1 << 22):
                took = Range(*[latency + length / rate] * 3)
                rows.append(Collective(operation, nodes, ranks, length, took, took))
    return Machine(
        made="2026-12-01T00:00:00+00:00",
        version="0",
        processor=places[0].processor,
        cpus=len({cpu for one in places for cpu in one.cpus}),
        memory=1,
        mpi=places[0].mpi,
        nodes=1,
        ranks=dist.get_world_size(),
        threads=1,
        rss=1,
        alone=Compute(ONE, ONE, ONE),
        together=Compute(ONE, ONE, ONE),
        collectives=tuple(rows),
        steps=(),
    )


class Layer:
    """A linear layer, cut over a line: the input is gathered, or weight and bias in two calls."""

    def __init__(self, line: Any) -> None:
        x, self.weight, self.bias = real(0, 240, 256), real(0, 48, 256, key=1), real(0, 48, key=2)
        self.wanted = torch.nn.functional.linear(x, self.weight, self.bias)
        self.cut = [distribute_tensor(t, line, [Shard(0)]) for t in (x, self.weight, self.bias)]

    def calls(self) -> int:
        """Return how many collectives DTensor makes of it."""
        with CommDebugMode() as seen:
            got = torch.nn.functional.linear(*self.cut)
        calls = seen.get_total_counts()
        torch.testing.assert_close(got.full_tensor(), self.wanted)
        return int(calls)


@pytest.mark.mpi(min=2)
def test_a_layer_is_made_otherwise_and_back(dist: Any, line: Any, rank: int, size: int) -> None:
    layer = Layer(line)
    assert layer.calls() == 1  # DTensor remembers this
    slow = machine(dist, {(1, size): SLOW})
    use_measured_costs(slow)
    assert layer.calls() == 2
    use_measured_costs(None)
    assert layer.calls() == 1


@pytest.mark.mpi(min=2)
def test_rank_0_decides(dist: Any, line: Any, rank: int, size: int, tmp_path: Path) -> None:
    layer = Layer(line)
    slow = machine(dist, {(1, size): SLOW})
    use_measured_costs(slow if rank == 0 else tmp_path / "missing.json")
    assert layer.calls() == 2
    with pytest.raises(ArgumentError, match=r"machine: .*missing\.json"):
        use_measured_costs(slow if rank else tmp_path / "missing.json")
    assert layer.calls() == 2  # an error changes nothing


@pytest.mark.mpi(min=2)
def test_refused_on_all_ranks(dist: Any, line: Any, rank: int, size: int) -> None:
    """Machines with other groups, and of another place."""
    with pytest.raises(ArgumentError, match="nothing is known of all_gather over several ranks"):
        use_measured_costs(machine(dist, {(2, 1): SLOW}))
    slow = machine(dist, {(1, size): SLOW})
    for field, value in (("cpus", 999), ("mpi", "LAM/MPI 7"), ("processor", "8086")):
        values = {name: getattr(slow, name) for name in slow.__dataclass_fields__}
        with pytest.raises(ArgumentError, match=f"on another one: .*{field}"):
            use_measured_costs(Machine(**{**values, field: value}))
    assert Layer(line).calls() == 1


@pytest.mark.mpi(ranks=4)
def test_the_cheaper_dimension_is_taken(
    dist: Any, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on two hosts with two ranks each: a sum of tensors that are cut over either dimension."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("hosts", "ranks"))
    across, within = [Shard(1), Replicate()], [Replicate(), Shard(1)]
    x, y = real(0, 512, 512), real(0, 512, 512, key=1)
    a, b = distribute_tensor(x, mesh, across), distribute_tensor(y, mesh, within)
    monkeypatch.setattr(dtensor_costs, "_nodes", lambda: [0, 0, 1, 1])
    found = machine(dist, {(2, 1): SLOW, (1, 2): MEMORY})
    use_measured_costs(found)
    near = a + b
    use_measured_costs(None)
    far = a + b
    same(near.full_tensor(), x + y)
    same(far.full_tensor(), x + y)
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15):  # others do not ask for sums
        assert near.placements[0] == Shard(1)  # as "a" is: over the hosts nothing was sent
        assert far.placements[0] != Shard(1)
