"""DTensor's choices by what was measured of this machine.

Where an operation can be made in several ways, DTensor asks a cost model which way communicates
least. torch's model knows GPUs: 87.7 GB/s and 0.6 us between those of a host, 19.3 GB/s and 2.7 us
over a network. It takes every dimension of a mesh of CPUs for a network.

What is replaced is private in torch: ``MeshTopoInfo.build_from_mesh`` of
``torch.distributed.tensor._collective_utils``, which gives each dimension of a mesh two numbers. It
is there in torch 2.8 to 2.15.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ... import _native
from ...errors import UnsupportedError
from ...planner.costs import Costs
from ...planner.machine import Machine
from ..process_group import ProcessGroupMPI
from .measured_machine import of_rank_0

__all__ = ["Numbers", "numbers", "shapes", "use_measured_costs"]

_BASE = 6.6
"""Microseconds that torch's formulas add to each collective."""

_LEAST_BASE = 0.5
"""Microseconds that a collective has to cost at least: a cost of 0 means that nothing is sent."""

_LENGTHS = tuple(4**power for power in range(5, 13))  # 1 KiB to 16 MiB
_GB = float(1 << 30)  # what torch's formulas call so

_CALLS = 50
"""Of each kind, by which is measured what DTensor adds."""

_HOPS = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}

_torchs: Callable[[Any], Any] | None = None
"""torch's own function, from the first use on."""


class Numbers(NamedTuple):
    """What torch's formulas want of a dimension of a mesh.

    Attributes:
        latency: of a hop, in microseconds. Below 0 where a collective takes less than torch's 6.6.
        bandwidth: in GiB/s.
    """

    latency: float
    bandwidth: float


def use_measured_costs(machine: Machine | str | os.PathLike[str] | None) -> None:
    """Let DTensor choose by what was measured of this machine.

    It holds for meshes of CPUs whose groups are of this backend, for what is asked of them from now
    on. What DTensor itself adds to a call is measured now, which takes some milliseconds: on CPUs
    it may be more than the call. Meshes of other devices and other backends keep torch's numbers.

    What DTensor has chosen before is forgotten in this thread: its caches of operations and
    redistributions are cleared. Other threads that have run the same operation with the same
    placements before keep their choice, and so do graphs that ``torch.compile`` has made.

    All ranks call it, after ``init_process_group``: the machine of rank 0 counts on all, because
    ranks that choose differently would wait for each other for ever. Before it, each process takes
    its own, and all must give the same.

    A change of the sharded dimension stays cheaper in torch's formulas than it is: on CPUs torch
    gathers the whole tensor for it.

    Args:
        machine: what ``python -m paddlempi bench --calibrate FILE`` has measured, or its file; None
            gives torch's own numbers back.

    Raises:
        ArgumentError: the file cannot be read, or was measured on another machine: its processor,
            cpus or mpi are not those of this job; or it has no groups like those of this job. All
            ranks raise it.
        UnsupportedError: this torch has no such cost model.
    """
    global _torchs
    utils = _utils()
    measured = of_rank_0(machine, "use_measured_costs")
    if _torchs is None:
        _torchs = utils.MeshTopoInfo.build_from_mesh
    if measured is None:
        utils.MeshTopoInfo.build_from_mesh = staticmethod(_torchs)
    else:
        costs = Costs(measured)
        _try(costs)
        added = _added()
        utils.MeshTopoInfo.build_from_mesh = staticmethod(_cached(costs, added, _torchs))
    _forget()


def _utils() -> ModuleType:
    """Return torch's module with the cost model. Importing DTensor takes a second."""
    try:
        from torch.distributed.tensor import _collective_utils as utils

        found: ModuleType = utils
        found.MeshTopoInfo.build_from_mesh  # noqa: B018 (whether it is there)
    except (ImportError, AttributeError):
        raise UnsupportedError(
            f"use_measured_costs: torch {torch.__version__} has no MeshTopoInfo.build_from_mesh "
            "in torch.distributed.tensor._collective_utils, as torch 2.8 to 2.15 have"
        ) from None
    return found


def _try(costs: Costs) -> None:
    """Ask now for what operations will ask for later, in this job."""
    nodes = _nodes()
    if not nodes:
        return
    members = max(nodes.count(node) for node in nodes)
    for shape in {(1, members), (len(set(nodes)), 1)} - {(1, 1)}:
        numbers(costs, *shape)


def _added() -> float:
    """Return the seconds by which a redistribution takes longer than its collective.

    They are those of rank 0, in products of small matrices with and without a redistribution. It is
    0 if there is no group of this backend with several ranks. Collective, if there is.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return 0.0
    from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard

    world = dist.group.WORLD
    mesh = DeviceMesh.from_group(world, "cpu")
    if not _is_ours(mesh):
        return 0.0
    part, whole = torch.ones(8, 8), torch.ones(8, 8 * mesh.size())
    rows = DTensor.from_local(part, mesh, [Shard(0)], run_check=False)
    ready = DTensor.from_local(whole, mesh, [Replicate()], run_check=False)
    cut = DTensor.from_local(part, mesh, [Shard(1)], run_check=False)
    with torch.no_grad():
        without = _median(lambda: torch.mm(rows, ready))
        call = _median(lambda: dist.all_gather_into_tensor(whole.view(-1, 8), part))
        told = [_median(lambda: torch.mm(rows, cut)) - without - call]
    dist.broadcast_object_list(told)
    return max(0.0, told[0])


def _median(call: Callable[[], object]) -> float:
    took = []
    for _ in range(_CALLS):
        begun = time.perf_counter()
        call()
        took.append(time.perf_counter() - begun)
    return statistics.median(took)


# Which numbers


def _cached(costs: Costs, added: float, torchs: Callable[[Any], Any]) -> Any:
    @functools.lru_cache(None)
    def build_from_mesh(mesh: Any) -> Any:
        """Return torch's description of a mesh, with measured numbers where it is ours."""
        found = torchs(mesh)
        nodes = _nodes()
        if not _is_ours(mesh) or int(mesh.mesh.max()) >= len(nodes):
            return found
        latency, bandwidth = list(found.mesh_dim_latency), list(found.mesh_dim_bandwidth)
        for dim, shape in enumerate(shapes(mesh.mesh, nodes)):
            if shape != (1, 1):
                latency[dim], bandwidth[dim] = numbers(costs, *shape, added)
        return dataclasses.replace(found, mesh_dim_latency=latency, mesh_dim_bandwidth=bandwidth)

    return build_from_mesh


def _nodes() -> list[int]:
    """Return the node of each rank of the world; nothing before init."""
    nodes: list[int] = _native.control("info")["node"]
    return nodes


def _is_ours(mesh: Any) -> bool:
    """Whether this rank is in a mesh of CPUs whose groups are of this backend."""
    if mesh.device_type != "cpu" or mesh.get_coordinate() is None:
        return False
    try:
        groups = [mesh.get_group(dim) for dim in range(mesh.ndim)]
        of_cpus = [group._get_backend(torch.device("cpu")) for group in groups]
    except RuntimeError:  # a mesh without groups, or groups without a backend of CPUs
        return False
    return all(isinstance(group, ProcessGroupMPI) for group in of_cpus)


def shapes(ranks: torch.Tensor, nodes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the nodes x ranks of the groups of each dimension of a mesh, alike on all its ranks.

    Args:
        ranks: the mesh: global ranks.
        nodes: the node of each rank.

    Of the groups of a dimension those count that spread over most nodes.
    """
    for dim, length in enumerate(ranks.shape):
        rows = ranks.movedim(dim, -1).reshape(-1, length).tolist()
        yield max(_shape([nodes[rank] for rank in row]) for row in rows)


def _shape(of: Sequence[int]) -> tuple[int, int]:
    return len(set(of)), max(of.count(node) for node in set(of))


@functools.lru_cache(64)
def numbers(costs: Costs, nodes: int, ranks: int, added: float = 0.0) -> Numbers:
    """Return the numbers with which torch's formulas come closest to what was measured.

    torch's formulas are ``6.6 us + hops (latency + bytes / members / bandwidth)``, where
    ``all_reduce`` has twice as many hops as the others. The squares of the logarithms of
    formula / measured are smallest, over all three and over lengths of 1 KiB to 16 MiB.

    Args:
        costs: of the machine.
        nodes, ranks: the shape of the dimension's groups.
        added: seconds that DTensor adds to each call.

    Raises:
        ArgumentError: the machine has no groups like that.
    """
    members = nodes * ranks
    measured: list[tuple[float, float, float]] = []  # hops, GiB of all of them, us
    for operation, factor in _HOPS.items():
        hops = factor * (members - 1)
        for length in _LENGTHS:
            took = 1e6 * (costs.collective(operation, length, nodes, ranks).middle + added)
            measured.append((hops, length / _GB * hops / members, max(took, 1e-3)))
    latency, per_gb = _fitted(measured, (_LEAST_BASE - _BASE) / (2 * (members - 1)))
    return Numbers(latency, 1e6 / per_gb)


def _fitted(measured: Sequence[tuple[float, float, float]], least: float) -> tuple[float, float]:
    """Return x >= least and y > 0 for which 6.6 + a x + b y is closest to t, of rows (a, b, t).

    The squares of (f - t) / sqrt(f t) are smallest, which are those of log(f / t) near 1; f of the
    weights is that of the round before.
    """
    rate = max(b / t for _, b, t in measured)  # no row may take less than its bytes at this rate
    x, y = 0.0, 1 / rate
    for _ in range(50):
        rows = [(a, b, t - _BASE, 1 / ((_BASE + a * x + b * y) * t)) for a, b, t in measured]
        x, y = _least_squares(rows, least, 1e-3 / rate)
    return x, y


def _least_squares(
    rows: Iterable[tuple[float, float, float, float]], least_x: float, least_y: float
) -> tuple[float, float]:
    """Return x and y, not below their limits, with the least sum of w (a x + b y - t)^2."""
    rows = list(rows)

    def total(of: Callable[[float, float, float], float]) -> float:
        return math.fsum(w * of(a, b, t) for a, b, t, w in rows)

    aa, ab = total(lambda a, b, t: a * a), total(lambda a, b, t: a * b)
    bb = total(lambda a, b, t: b * b)
    at, bt = total(lambda a, b, t: a * t), total(lambda a, b, t: b * t)
    determinant = aa * bb - ab * ab
    x = (at * bb - bt * ab) / determinant
    y = (bt * aa - at * ab) / determinant
    if x < least_x:
        x = least_x
        y = (bt - ab * x) / bb
    if y < least_y:
        y = least_y
        x = max(least_x, (at - ab * y) / aa)
    return x, y


# What torch remembers


def _forget() -> None:
    """Clear what DTensor remembers of choices that were made by other numbers."""
    from torch.distributed.tensor import DTensor, _redistribute

    propagator = DTensor._op_dispatcher.sharding_propagator
    propagator.propagate_op_sharding.cache.cache_clear()
    _redistribute._gen_transform_infos.cache_clear()
    # Since 2.10 or so: choices that C++ remembers, and plans of redistributions.
    for owner, name in (
        (torch._C, "_clear_DTensor_sharding_propagator_cache"),
        (_redistribute, "clear_redistribute_planner_cache"),
    ):
        clear = getattr(owner, name, None)
        if clear is not None:
            clear()
