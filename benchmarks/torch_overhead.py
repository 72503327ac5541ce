"""What torch.distributed costs over paddlempi, over gloo, and over a group that does nothing.

    mpirun -np 2 python benchmarks/torch_overhead.py [--json FILE]    # or: make bench-torch

The same functions of torch are called in the same processes, in turn, on three process groups:
paddlempi's, gloo's, and one that does nothing ("noop"), which shows what torch's wrapper costs. A
round has one block of calls for every group, in changing order. The time of a block divided by its
calls is one sample. The program prints the medians, and how many times as long gloo takes as
paddlempi. This ratio is computed round by round and printed with its quartiles, because on a shared
machine only times measured one after the other can be compared.

For an all_reduce of 8 bytes a fourth contender ("core") calls the core without torch. What
paddlempi's group takes longer than "noop" and "core" together is the cost of its own code.

The program also measures a training step over paddlempi and over gloo: DDP and FSDP2 of a small
MLP.

Every result is checked before it is timed. A wrong result ends the program, except in a training
step over gloo, which is then not measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sampling import Call, quartiles, sample  # first: importing torch forgets this folder

# isort: split

import paddlempi.torch  # noqa: F401 (if the package is installed, its entry point does it)
import torch
import torch.distributed as dist
from paddlempi import _native
from torch._C._distributed_c10d import ProcessGroup, Work

SIZES = (8, 64 << 10, 1 << 20, 32 << 20)

# The aims: how many times as long as ours gloo should take, by the operation and the bytes.
AIMS = {
    ("all_reduce", 8): 40.0,
    ("all_reduce", 64 << 10): 20.0,
    ("all_reduce", 1 << 20): 5.0,
    ("all_reduce", 32 << 20): 2.0,
    ("all_gather_into_tensor", 1 << 20): 5.0,
    ("reduce_scatter_tensor", 1 << 20): 5.0,
}
AIM_US = 1.5  # of the code of our process group, in an all_reduce of 8 bytes


class Nothing(Work):  # type: ignore[misc]
    """A work that is over."""

    def wait(self, timeout: Any = None) -> bool:
        return True


class NoOp(ProcessGroup):  # type: ignore[misc]
    """A process group that moves nothing. Every call returns the same work."""

    METHODS = (
        *("allreduce", "broadcast", "all_gather_single", "_allgather_base", "send", "recv"),
        *("reduce_scatter_single", "_reduce_scatter_base", "all_to_all_single", "alltoall_base"),
    )

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._name = ""
        work = Nothing()
        for name in NoOp.METHODS:
            setattr(self, name, lambda *arguments: work)

    def getBackendName(self) -> str:
        return "noop"

    def _get_backend(self, device: Any) -> NoOp:
        return self

    @property
    def _device_types(self) -> list[Any]:
        known = dist.distributed_c10d._world.pg_map
        return [torch.device("cpu")] if self in known else []

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        pass

    group_desc = "noop"
    bound_device_id = None


def make_groups() -> dict[str, Any]:
    """Make the process groups of the contenders. Their names are those in the tables."""

    def create(options: Any, more: Any) -> NoOp:
        return NoOp(options.group_rank, options.group_size)

    dist.Backend.register_backend("noop", create, extended_api=True, devices=["cpu"])
    return {
        "paddlempi": dist.group.WORLD,
        "gloo": dist.new_group(backend="gloo"),
        "noop": dist.new_group(backend="noop"),
    }


# The operations, on float32. Each function returns a call on a group, and a check of its result.


def all_reduce(group: Any, count: int) -> tuple[Call, Call]:
    x = torch.zeros(count)

    def check() -> bool:
        x.fill_(dist.get_rank() + 1)
        dist.all_reduce(x, group=group)
        size = dist.get_world_size()
        right = bool((x == size * (size + 1) / 2).all())
        x.zero_()  # so that repeated sums stay 0
        return right

    return lambda: dist.all_reduce(x, group=group), check


def exchange(group: Any, count: int) -> tuple[Call, Call]:
    """Send to the next rank, and receive from the rank before."""
    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    sent, received = torch.full((count,), rank + 1.0), torch.zeros(count)

    def call() -> None:
        first = dist.irecv(received, before, group=group)
        second = dist.isend(sent, after, group=group)
        first.wait()
        second.wait()

    def check() -> bool:
        received.zero_()
        call()
        return bool((received == before + 1).all())

    return call, check


def all_gather_into_tensor(group: Any, count: int) -> tuple[Call, Call]:
    size = dist.get_world_size()
    sent, received = torch.full((count,), dist.get_rank() + 1.0), torch.zeros(size * count)

    def call() -> None:
        dist.all_gather_into_tensor(received, sent, group=group)

    def check() -> bool:
        received.zero_()
        call()
        expected = torch.arange(1.0, size + 1).repeat_interleave(count)
        return bool((received == expected).all())

    return call, check


def reduce_scatter_tensor(group: Any, count: int) -> tuple[Call, Call]:
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = torch.arange(1.0, size + 1).repeat_interleave(count) * (rank + 1)
    received = torch.zeros(count)

    def call() -> None:
        dist.reduce_scatter_tensor(received, sent, group=group)

    def check() -> bool:
        received.zero_()
        call()
        return bool((received == (rank + 1) * size * (size + 1) / 2).all())

    return call, check


def all_to_all_single(group: Any, count: int) -> tuple[Call, Call]:
    rank, size = dist.get_rank(), dist.get_world_size()
    part = max(1, count // size)
    sent = torch.arange(float(size)).repeat_interleave(part) + 100 * rank
    received = torch.zeros_like(sent)

    def call() -> None:
        dist.all_to_all_single(received, sent, group=group)

    def check() -> bool:
        received.zero_()
        call()
        expected = 100 * torch.arange(float(size)).repeat_interleave(part) + rank
        return bool((received == expected).all())

    return call, check


def broadcast(group: Any, count: int) -> tuple[Call, Call]:
    x = torch.zeros(count)

    def call() -> None:
        dist.broadcast(x, 0, group=group)

    def check() -> bool:
        x.fill_(dist.get_rank() + 5)
        call()
        return bool((x == 5).all())

    return call, check


OPERATIONS = {
    "all_reduce": all_reduce,
    "isend/irecv": exchange,
    "all_gather_into_tensor": all_gather_into_tensor,
    "reduce_scatter_tensor": reduce_scatter_tensor,
    "all_to_all_single": all_to_all_single,
    "broadcast": broadcast,
}
"""The bytes of a row are those of a rank's input; for reduce_scatter_tensor, of its output."""


def core_all_reduce(count: int) -> Call:
    """Return a call of the core, without torch's wrapper and without the process group."""
    x, submit = torch.zeros(count), _native.submit
    return lambda: submit(3, 0, None, x, 1)


# Training steps


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 256) for _ in range(4)]
    return torch.nn.Sequential(*(m for layer in layers for m in (layer, torch.nn.ReLU())))


def batch(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1 + rank)
    return torch.randn(32, 256), torch.randn(32, 256)


def backward(model: torch.nn.Module, data: torch.Tensor, target: torch.Tensor) -> None:
    torch.nn.functional.mse_loss(model(data), target).backward()


def flat(tensors: Iterable[Any]) -> torch.Tensor:
    full = [t.full_tensor() if hasattr(t, "full_tensor") else t for t in tensors]
    return torch.cat([t.detach().flatten() for t in full])


def trainer(model: torch.nn.Module) -> tuple[Call, Call]:
    """Return a step of SGD on this rank's data, and a check of its gradients."""
    data, target = batch(dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        backward(model, data, target)
        optimizer.step()

    def check() -> bool:
        """Make the first step; return whether its gradients are the mean over the ranks."""
        step()
        alone = mlp()
        for rank in range(dist.get_world_size()):
            backward(alone, *batch(rank))
        expected = flat(p.grad for p in alone.parameters()) / dist.get_world_size()
        return torch.allclose(flat(p.grad for p in model.parameters()), expected, atol=1e-6)

    return step, check


def ddp(group: Any) -> tuple[Call, Call]:
    return trainer(torch.nn.parallel.DistributedDataParallel(mlp(), process_group=group))


def fsdp2(group: Any) -> tuple[Call, Call]:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")
    model = mlp()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return trainer(fully_shard(model, mesh=mesh))


STEPS = {"DDP step": ddp, "FSDP2 step": fsdp2}


# Measuring


def summarize(name: str, nbytes: int | None, samples: dict[str, list[float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"operation": name, "bytes": nbytes, "rounds": len(samples["paddlempi"])}
    row["us"] = {contender: statistics.median(values) for contender, values in samples.items()}
    if "gloo" in samples:
        pairs = zip(samples["gloo"], samples["paddlempi"], strict=True)
        row["gloo_ratio"] = quartiles([gloo / ours for gloo, ours in pairs])
        row["aim"] = AIMS.get((name, nbytes or 0))
    if "core" in samples:
        parts = zip(samples["paddlempi"], samples["noop"], samples["core"], strict=True)
        row["share_us"] = quartiles([ours - wrapper - core for ours, wrapper, core in parts])
    return row


def measure(
    groups: dict[str, Any], name: str, nbytes: int, rounds: int, calls: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the row of one operation and size, and why contenders are not in it, by name."""
    contenders: dict[str, Call] = {}
    absent: dict[str, str] = {}
    for contender, group in groups.items():
        call, check = OPERATIONS[name](group, max(1, nbytes // 4))
        if contender != "noop":
            try:
                right = check()
            except RuntimeError as error:
                if contender == "paddlempi":
                    raise
                absent[contender] = str(error).splitlines()[0]
                continue
            if not right:
                raise SystemExit(f"{contender}: {name} of {nbytes} bytes gave a wrong result")
        contenders[contender] = call
    if (name, nbytes) == ("all_reduce", 8):
        contenders["core"] = core_all_reduce(2)
    return summarize(name, nbytes, sample(contenders, calls, rounds, dist.barrier, warm=2)), absent


def measure_step(
    groups: dict[str, Any], name: str, rounds: int, calls: int
) -> tuple[dict[str, Any], dict[str, str]]:
    steps: dict[str, Call] = {}
    absent: dict[str, str] = {}
    for contender in ("paddlempi", "gloo"):
        try:
            step, check = STEPS[name](groups[contender])
            right = check()
        except RuntimeError as error:
            if contender == "paddlempi":
                raise
            absent[contender] = str(error).splitlines()[0]
            continue
        if right:
            steps[contender] = step
        elif contender == "paddlempi":
            raise SystemExit(f"paddlempi: the {name} gave wrong gradients")
        else:
            absent[contender] = "its gradients are not the mean over the ranks"
    return summarize(name, None, sample(steps, calls, rounds, dist.barrier, warm=2)), absent


def show(row: dict[str, Any]) -> None:
    times = "".join(f"{row['us'].get(name, float('nan')):12.2f}" for name in GROUPS)
    text = f"{row['operation']:24}{row['bytes'] or '':>9}{times}"
    if "gloo_ratio" in row:
        low, middle, high = row["gloo_ratio"]
        text += f"  {middle:7.2f} ({low:.2f} to {high:.2f})"
        if row["aim"]:
            reached = "reached" if middle >= row["aim"] else "not reached"
            text += f"  aim {row['aim']:g}: {reached}"
    print(text, flush=True)
    if "share_us" in row:
        low, middle, high = row["share_us"]
        reached = "reached" if middle <= AIM_US else "not reached"
        print(
            f"    the core alone {row['us']['core']:.2f} us; our share beyond it and the wrapper "
            f"{middle:.2f} ({low:.2f} to {high:.2f}) us; aim {AIM_US:g}: {reached}"
        )


GROUPS = ("paddlempi", "gloo", "noop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="a few rounds of the small sizes")
    parser.add_argument("--rounds", type=int, help="default 40; fewer are made of large sizes")
    parser.add_argument("--sizes", type=int, nargs="+", help=f"bytes; default {SIZES}")
    options = parser.parse_args()
    rounds = options.rounds or (2 if options.quick else 40)
    sizes = options.sizes or (SIZES[:2] if options.quick else SIZES)

    torch.set_num_threads(1)
    dist.init_process_group("mpi")
    groups = make_groups()
    rank = dist.get_rank()
    if rank == 0:
        mpi = _native.control("info")["mpi"]
        print(
            f"torch {torch.__version__}, {mpi['name']}, {dist.get_world_size()} ranks, "
            f"{os.cpu_count()} CPUs; microseconds a call, medians"
        )
        heads = "".join(f"{name:>12}" for name in GROUPS)
        print(f"{'operation':24}{'bytes':>9}{heads}  gloo : paddlempi (quartiles)")
    gc.disable()
    rows: list[dict[str, Any]] = []
    reasons: dict[str, str] = {}
    for name, nbytes in [(name, size) for name in OPERATIONS for size in sizes]:
        some_rounds = max(2, min(rounds, rounds * (4 << 20) // max(nbytes, 1)))
        calls = 5 if options.quick else max(1, min(100, (2 << 20) // max(nbytes, 1)))
        row, absent = measure(groups, name, nbytes, some_rounds, calls)
        rows.append(row)
        reasons.update({f"{name}, {contender}": reason for contender, reason in absent.items()})
        gc.collect()
        if rank == 0:
            show(row)
    for name in STEPS:
        row, absent = measure_step(groups, name, rounds, 1 if options.quick else 3)
        rows.append(row)
        reasons.update({f"{name}, {contender}": reason for contender, reason in absent.items()})
        gc.collect()
        if rank == 0:
            show(row)
    if rank == 0:
        for what, reason in reasons.items():
            print(f"not measured: {what}: {reason}")
        if options.json:
            record = {
                "torch": torch.__version__,
                "mpi": mpi,
                "ranks": dist.get_world_size(),
                "cpus": os.cpu_count(),
                "machine": platform.machine(),
                "rows": rows,
                "not_measured": reasons,
            }
            Path(options.json).write_text(json.dumps(record, indent=1))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
