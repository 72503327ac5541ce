"""What DTensor's formulas get of a machine, and which machines are refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as calls  # noqa: E402
from paddlempi.errors import ArgumentError, UnsupportedError  # noqa: E402
from paddlempi.planner import here  # noqa: E402
from paddlempi.planner.costs import Costs  # noqa: E402
from paddlempi.planner.machine import Collective, Compute, Machine, Range, processor  # noqa: E402
from paddlempi.torch import use_measured_costs  # noqa: E402
from paddlempi.torch.planner import dtensor_costs  # noqa: E402
from torch.distributed.tensor import _collective_utils as utils  # noqa: E402

ONE = Range(1.0, 1.0, 1.0)
LENGTHS = [8 << 3 * k for k in range(8)]
COSTS = {
    "all_gather": utils.allgather_cost,
    "reduce_scatter": utils.reduce_scatter_cost,
    "all_reduce": utils.allreduce_cost,
}


def machine(
    seconds: Callable[[str, int, int], float],
    shapes: tuple[tuple[int, int], ...] = ((2, 1), (1, 2)),
    **fields: Any,
) -> Machine:
    """Make one up. ``seconds`` gets the operation, the members and the bytes."""
    rows = []
    for operation in COSTS:
        for nodes, ranks in shapes:
            for length in LENGTHS:
                took = Range(*[seconds(operation, nodes * ranks, length)] * 3)
                rows.append(Collective(operation, nodes, ranks, length, took, took))
    given = {"processor": processor(), "cpus": 2, "mpi": "Open MPI v5.0", **fields}
    return Machine(
        made="2026-12-01T00:00:00+00:00",
        version="0",
        memory=1,
        nodes=2,
        ranks=2,
        threads=1,
        rss=1,
        alone=Compute(ONE, ONE, ONE),
        together=Compute(ONE, ONE, ONE),
        collectives=tuple(rows),
        steps=(),
        **given,
    )


def by_formula(latency: float, bandwidth: float) -> Callable[[str, int, int], float]:
    """Return the seconds of a machine that torch's formulas describe."""

    def seconds(operation: str, members: int, length: int) -> float:
        topology = utils.MeshTopoInfo(None, [members], [bandwidth], [latency])
        return COSTS[operation](length / 2**30, topology, 0) / 1e6

    return seconds


@pytest.fixture(autouse=True)
def torchs_numbers() -> Iterator[None]:
    yield
    use_measured_costs(None)


@pytest.mark.parametrize(("latency", "bandwidth"), [(20, 0.11), (0.6, 87.7), (-1.5, 6.0)])
@pytest.mark.parametrize("shape", [(2, 1), (1, 4), (4, 2)], ids=str)
def test_numbers_of_a_machine_that_the_formulas_describe(
    shape: tuple[int, int], latency: float, bandwidth: float
) -> None:
    members = shape[0] * shape[1]
    if latency < 0:  # as low as torch's 6.6 us for each call allow
        latency /= members - 1
    costs = Costs(machine(by_formula(latency, bandwidth), (shape,)))
    found = dtensor_costs.numbers(costs, *shape)
    # Between its lengths the machine is interpolated.
    assert found.latency == pytest.approx(latency, rel=0.15, abs=0.15)
    assert found.bandwidth == pytest.approx(bandwidth, rel=0.15)


def test_numbers_of_another_machine_are_close_and_costs_are_above_0() -> None:
    """A call of 1.5 us is shorter than what torch's formulas add to each."""

    def seconds(operation: str, members: int, length: int) -> float:
        return 1.5e-6 + length / 5e9 * (2 if operation == "all_reduce" else 1)

    found = dtensor_costs.numbers(Costs(machine(seconds, ((1, 4),))), 1, 4)
    topology = utils.MeshTopoInfo(None, [4], [found.bandwidth], [found.latency])
    for operation, cost in COSTS.items():
        assert cost(0, topology, 0) > 0
        for length in (1 << 20, 16 << 20):
            measured = 1e6 * seconds(operation, 4, length)
            assert 0.7 < cost(length / 2**30, topology, 0) / measured < 1.4


def test_what_dtensor_adds_counts_for_each_call() -> None:
    costs = Costs(machine(by_formula(20, 1.0)))
    plain, more = (dtensor_costs.numbers(costs, 2, 1, added) for added in (0.0, 200e-6))
    assert 60 < more.latency - plain.latency < 220  # an all_reduce has two hops, others one
    assert more.bandwidth == pytest.approx(plain.bandwidth, rel=0.2)


@pytest.mark.parametrize(
    ("mesh", "nodes", "shapes"),
    [
        ([[0, 1], [2, 3]], [0, 0, 1, 1], [(2, 1), (1, 2)]),
        ([[0, 1], [2, 3]], [0, 1, 0, 1], [(1, 2), (2, 1)]),
        ([[0, 2], [1, 3]], [0, 0, 1, 1], [(1, 2), (2, 1)]),
        ([0, 1, 2, 3], [0, 0, 1, 1], [(2, 2)]),
        ([0, 1, 2], [0, 0, 1], [(2, 2)]),
        ([[0, 1, 2, 3]], [0, 0, 0, 0], [(1, 1), (1, 4)]),
    ],
)
def test_shapes(mesh: Any, nodes: list[int], shapes: list[tuple[int, int]]) -> None:
    assert list(dtensor_costs.shapes(torch.tensor(mesh), nodes)) == shapes


def test_other_meshes_keep_torchs_numbers() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torchs = utils.MeshTopoInfo.build_from_mesh
    calls.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        use_measured_costs(machine(by_formula(20, 0.11)))
        assert utils.MeshTopoInfo.build_from_mesh is not torchs
        found = utils.MeshTopoInfo.build_from_mesh(init_device_mesh("cpu", (4,)))
    finally:
        calls.destroy_process_group()
    assert (found.mesh_dim_latency, found.mesh_dim_bandwidth) == ([2.7], [87.7 * 0.22])
    use_measured_costs(None)
    assert utils.MeshTopoInfo.build_from_mesh is torchs


def test_refused(tmp_path: Path) -> None:
    torchs = utils.MeshTopoInfo.build_from_mesh
    other = machine(by_formula(1, 1), processor="Another CPU")
    with pytest.raises(ArgumentError, match="processor is 'Another CPU'"):
        use_measured_costs(other)
    with pytest.raises(ArgumentError, match="machine is a int"):
        use_measured_costs(3)
    with pytest.raises(ArgumentError, match="bench --calibrate writes it"):
        use_measured_costs(tmp_path / "missing.json")
    other.write(str(tmp_path / "other.json"))
    with pytest.raises(ArgumentError, match="Another CPU"):
        use_measured_costs(tmp_path / "other.json")
    assert utils.MeshTopoInfo.build_from_mesh is torchs


def test_a_torch_without_this_cost_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(utils.MeshTopoInfo, "build_from_mesh")
    text = re.escape(f"torch {torch.__version__} has no MeshTopoInfo.build_from_mesh")
    with pytest.raises(UnsupportedError, match=text):
        use_measured_costs(machine(by_formula(1, 1)))
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, ""),
        ({"cpus": 4}, "cpus=4 there, and the ranks of a node here may use 2"),
        ({"mpi": ""}, "its mpi is '', and that of rank 0 is 'Open MPI v5.0'"),
        ({"processor": "X"}, "its processor is 'X'"),
    ],
)
def test_difference(fields: dict[str, Any], text: str) -> None:
    places = [here.Place(processor(), "Open MPI v5.0", rank // 2, (rank % 2,)) for rank in range(4)]
    found = here.difference(machine(by_formula(1, 1), **fields), places)
    assert text in found and bool(found) == bool(text)


def test_before_init_a_rank_compares_its_processor_alone() -> None:
    place = here.Place(processor(), None, None, (0,))
    assert here.difference(machine(by_formula(1, 1), cpus=64), [place]) == ""


def test_the_name_of_an_mpi() -> None:
    assert here.mpi_name(None) == ""
    long = {"name": "Open MPI", "version": "Open MPI v5.0.11, package: Open MPI user@localhost"}
    assert here.mpi_name(long) == "Open MPI v5.0.11"
    assert here.mpi_name({"name": "MPICH", "version": "5.0.1\nABI: 1"}) == "MPICH 5.0.1"
