"""What DTensor chooses by torch's numbers of GPUs and by measured ones, and how long both take.

    python benchmarks/on_hosts.py --mpi openmpi --shape 2x2 --program benchmarks/dtensor_costs.py
    python benchmarks/on_hosts.py --mpi openmpi --shape 2x2 --rate 1gbit --program ...
    mpirun -np 4 python benchmarks/dtensor_costs.py [--machine FILE] [--blocks N]

The mesh has a row for each host. Each case is an operation that DTensor can make in several ways:

    sum       of a tensor that is cut over the hosts and one that is cut over the ranks of a host,
              along the same dimension: one of both has to be gathered
    linear    a linear layer whose input, weight and bias are cut over the hosts: either the input
              is gathered, in one call, or weight and bias, in two

Without --machine the collectives of this job are measured first. Then torch's numbers and the
measured ones take turns in blocks of calls. A row has the collectives of a call, the median time of
a call on the slowest rank, and how many times longer torch's choice took than the other in a pair
of blocks: the median with the quartiles. --json writes the rows.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import paddlempi.torch
import torch
import torch.distributed as dist
from paddlempi import _native
from paddlempi.planner import here
from paddlempi.planner.machine import Collective, Compute, Machine, Range, processor, read
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode

SIZES = tuple(4**power for power in range(5, 12))  # 1 KiB to 4 MiB


def timed(call: Callable[[], object], times: int) -> list[float]:
    """Return the seconds of calls, each of the slowest rank."""
    took = []
    for _ in range(times):
        dist.barrier()
        begun = time.perf_counter()
        call()
        took.append(time.perf_counter() - begun)
    slowest = torch.tensor(took)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    found: list[float] = slowest.tolist()
    return found


def spread(values: list[float]) -> Range:
    low, middle, high = statistics.quantiles(values, n=4)
    return Range(middle, low, high)


def collectives(mesh: DeviceMesh) -> Iterator[Collective]:
    """Measure each dimension of the mesh, all groups of it at once."""
    for dim in range(mesh.ndim):
        group, members = mesh.get_group(dim), mesh.size(dim)
        if members == 1:
            continue
        shape = (members, 1) if dim == 0 else (1, members)
        for size in SIZES:
            whole, part = torch.zeros(size // 4), torch.zeros(size // 4 // members)
            calls = {
                "all_reduce": lambda g=group, w=whole: dist.all_reduce(w, group=g),
                "all_gather": lambda g=group, w=whole, p=part: dist.all_gather_into_tensor(
                    w, p, group=g
                ),
                "reduce_scatter": lambda g=group, w=whole, p=part: dist.reduce_scatter_tensor(
                    p, w, group=g
                ),
            }
            for operation, call in calls.items():
                timed(call, 40)  # the core looks for the fastest way meanwhile
                took = spread(timed(call, 40))
                yield Collective(operation, *shape, size, took, took)


def measured(mesh: DeviceMesh) -> Machine:
    """Measure what DTensor asks for; what it does not ask for is 1."""
    place = here.place()
    places: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(places, place)
    cpus = len({cpu for one in places if one.node == place.node for cpu in one.cpus})
    one = Compute(*[Range(1, 1, 1)] * 3)
    return Machine(
        made=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        version=paddlempi.__version__,
        processor=processor(),
        cpus=cpus,
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        mpi=str(place.mpi),
        nodes=mesh.size(0),
        ranks=mesh.size(1),
        threads=torch.get_num_threads(),
        rss=1,
        alone=one,
        together=one,
        collectives=tuple(collectives(mesh)),
        steps=(),
    )


def cut(shape: tuple[int, ...], mesh: DeviceMesh, *places: Placement) -> DTensor:
    """Return a tensor of ones that is cut over a mesh. Nothing is sent."""
    mine = list(shape)
    for dim, place in enumerate(places):
        if isinstance(place, Shard):
            mine[place.dim] //= mesh.size(dim)
    return DTensor.from_local(torch.ones(mine), mesh, places, run_check=False)


def cases(mesh: DeviceMesh, chosen: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Yield the name of a case and its call."""
    for rows in chosen.sums:
        left = cut((rows, rows), mesh, Shard(1), Replicate())
        right = cut((rows, rows), mesh, Replicate(), Shard(1))
        yield f"sum {rows}x{rows}", lambda a=left, b=right: a + b
    hosts = mesh["hosts"]
    for rows in chosen.linears:
        given = cut((rows, 256), hosts, Shard(0))
        weight, bias = cut((64, 256), hosts, Shard(0)), cut((64,), hosts, Shard(0))
        yield (
            f"linear {rows}x256 to 64",
            lambda x=given, w=weight, b=bias: torch.nn.functional.linear(x, w, b),
        )


def sent(call: Callable[[], object]) -> str:
    with CommDebugMode() as seen:
        call()
    counts = {name.__name__: times for name, times in seen.get_comm_counts().items()}
    return ", ".join(f"{times} {name}" for name, times in counts.items()) or "nothing"


def compare(call: Callable[[], Any], machine: Machine, chosen: argparse.Namespace) -> Any:
    """Let both take turns. Return what is known of a case."""
    names = {"torch": None, "measured": machine}
    took: dict[str, list[float]] = {name: [] for name in names}
    found: dict[str, Any] = {}
    for block in range(chosen.blocks + 1):
        for name in sorted(names, reverse=bool(block % 2)):
            paddlempi.torch.use_measured_costs(names[name])
            found[name] = f"{sent(call)} -> {call().placements}"
            timed(call, chosen.warmup if block else 60)
            if block:
                took[name].append(statistics.median(timed(call, chosen.calls)))
    ratios = [a / b for a, b in zip(took["torch"], took["measured"], strict=True)]
    return {
        "choice": found,
        "us": {name: 1e6 * statistics.median(times) for name, times in took.items()},
        "ratio": spread(ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--machine", metavar="FILE", help="of python -m paddlempi bench --calibrate"
    )
    parser.add_argument("--blocks", type=int, default=12, metavar="N", help="pairs of blocks")
    parser.add_argument("--calls", type=int, default=20, metavar="N", help="in a block")
    parser.add_argument("--warmup", type=int, default=5, metavar="N", help="calls before a block")
    for name, sizes in (("sums", [256, 512, 1024]), ("linears", [128, 256, 384])):
        parser.add_argument(f"--{name}", type=int, nargs="*", default=sizes, metavar="ROWS")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()

    # torch says of each change of a sharded dimension that it gathers on CPUs.
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    dist.init_process_group("mpi")
    node = _native.control("info")["node"]
    nodes = len(set(node))
    mesh = init_device_mesh("cpu", (nodes, len(node) // nodes), mesh_dim_names=("hosts", "ranks"))
    first = dist.get_rank() == 0
    machine = read(chosen.machine) if chosen.machine else measured(mesh)
    if first and chosen.machine is None:
        for row in machine.collectives:
            print(
                f"{row.operation:15} {row.nodes}x{row.ranks} {row.bytes:9} bytes "
                f"{1e6 * row.seconds.middle:9.1f} us"
            )
    rows = []
    for name, call in cases(mesh, chosen):
        row = {"case": name, **compare(call, machine, chosen)}
        rows.append(row)
        if first:
            ratio = row["ratio"]
            print(f"{name}: {ratio.middle:.2f} ({ratio.low:.2f} to {ratio.high:.2f})")
            for one, choice in row["choice"].items():
                print(f"    {one:9} {row['us'][one]:9.1f} us  {choice}", flush=True)
    if first and chosen.json:
        chosen.json.write_text(json.dumps({"cases": rows}, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
