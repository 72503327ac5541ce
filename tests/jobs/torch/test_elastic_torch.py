"""Trainings of torch that go on when ranks are killed, compared with a replay in one process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import contract
import pytest
import torch

DEADLINE = 200
SEEDS = range(50) if contract.ALL else (1,)  # of kills at random

COMMON = """
import json, os, random, signal, sys, time
import numpy as np
import torch
import torch.distributed as dist
import paddlempi.torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

torch.set_num_threads(1)
me, folder = int(os.environ["RANK"]), sys.argv[1]
plan = json.loads(sys.argv[2])  # where each rank dies, and in which step
where, when = plan.get(str(me), ("", -1))
first = not os.path.exists(f"{folder}/{me}.dead")  # not a replacement
SIZE = 120
data = torch.utils.data.TensorDataset(torch.arange(SIZE))


def dies(point, step):
    if first and point == where and step == when:
        open(f"{folder}/{me}.dead", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


def inputs(ids):
    return (ids[:, None] * torch.arange(1, 9)).double().cos()


def log(**what):
    with open(f"{folder}/{me}-{os.getpid()}.log", "a") as file:
        file.write(json.dumps(what) + "\\n")


class Dies(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, step):
        ctx.step = step
        dies("forward", step)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        dies("backward", ctx.step)
        return gradient, None


def loader():
    sampler = paddlempi.torch.Sampler(data, seed=3)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
    return paddlempi.torch.Batches(loader)
"""

MODEL = """
def network():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 30), torch.nn.Tanh(), torch.nn.Linear(30, 8))
    return net.double()


def optimizer_of(net):
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
"""

DDP = (
    COMMON
    + MODEL
    + """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()
        self.register_buffer("forwards", torch.zeros(()))

    def forward(self, x, step):
        self.forwards += 1
        return self.net[2](Dies.apply(self.net[1](self.net[0](x)), step))


with paddlempi.torch.elastic(min_ranks=1) as job:
    model = torch.nn.parallel.DistributedDataParallel(Net(), gradient_as_bucket_view=True)
    optimizer, scheduler = optimizer_of(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=7)
    batches = loader()
    if sys.argv[3:] == ["hook"]:
        model.register_comm_hook(None, allreduce_hook)
    job.attach(model, optimizer, scheduler, scaler, batches)
    optimizer.register_step_pre_hook(lambda *_: dies("step", job.done))
    torch.manual_seed(job.rank + me), np.random.seed(me), random.seed(me)
    for step in job.steps(24):
        with step:
            drawn = [torch.rand(()).item(), np.random.rand(), random.random()]
            log(step=step.number, drawn=drawn)
            (ids,) = next(batches)
            log(step=step.number, ids=ids.tolist(), rank=job.rank, world=job.generation)
            x = inputs(ids)
            optimizer.zero_grad()
            loss = (model(x, step.number) - x).square().mean()
            dies("between", step.number)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            dies("unscaled", step.number)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            dies("after", step.number)
            time.sleep(0.1 if sys.argv[3:] == ["slow"] else 0)
            dist.all_reduce(loss.detach())  # whoever averages the loss must not step twice
    assert dist.get_rank() == job.rank and dist.get_world_size() == job.size
    assert dist.get_process_group_ranks(dist.group.WORLD) == list(range(job.size))
    half = dist.new_group([0])
    assert (dist.get_rank(half) == 0) == (job.rank == 0)
    forwards = model.module.forwards.item()
    log(scale=scaler.get_scale(), lr=scheduler.get_last_lr()[0], forwards=forwards)
    torch.save(model.module.net.state_dict(), f"{folder}/{me}.pt")
"""
)

FSDP = (
    COMMON
    + MODEL
    + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

kind, every = sys.argv[3], int(sys.argv[4])
hybrid = kind == "hybrid"


def zero(net):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    return torch.nn.parallel.DistributedDataParallel(net), optimizer, scheduler


def build():
    net, size = network(), dist.get_world_size()
    if kind == "zero":
        return zero(net)
    shape = (size // 2, 2) if size % 2 == 0 else (1, size)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("copies", "shards")) if hybrid else None
    fully_shard(net[0], mesh=mesh)
    fully_shard(net[2], mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net, *optimizer_of(net)


with paddlempi.torch.elastic(min_ranks=2) as job:
    state, batches = paddlempi.torch.Sharded(build, every=every), loader()
    job.attach(state, batches)
    for step in job.steps(100 if len(sys.argv) > 5 else 24):
        with step:
            (ids,) = next(batches)
            log(step=step.number, ids=ids.tolist(), rank=job.rank, world=job.generation)
            x = inputs(ids)
            state.optimizer.zero_grad()
            hidden = Dies.apply(state.model(x), step.number)
            loss = (hidden - x).square().mean()
            dies("between", step.number)
            loss.backward()
            dies("step", step.number)
            state.optimizer.step()
            state.scheduler.step()
            time.sleep(1.0 if job.size == 2 and len(sys.argv) > 5 else 0)  # until it comes
            dies("after", step.number)
            dist.all_reduce(loss.detach())
    full = {
        name.removeprefix("module."): p.detach() if kind == "zero" else p.full_tensor()
        for name, p in state.model.named_parameters()
    }
    log(lr=state.scheduler.get_last_lr()[0], generation=job.generation)
    torch.save(full, f"{folder}/{me}.pt")
"""
)


def train(
    tmp_path: Path,
    program: str,
    plan: dict[int, Any],
    ranks: int,
    *words: str,
    kills: Callable[[], int] | None = None,
) -> list[Any]:
    """Run a program; return what each process has logged.

    Args:
        plan: where and when ranks die.
        words: options of run, ``--``, and arguments of the program.
        kills: kills processes from outside, while the job runs, and returns how many.
    """
    script = tmp_path / "train.py"
    script.write_text(program)
    at = words.index("--")
    command = [sys.executable, "-m", "paddlempi", "run", "-np", str(ranks), *words[:at]]
    told = json.dumps({str(rank): point for rank, point in plan.items()})
    with subprocess.Popen(
        [*command, str(script), str(tmp_path), told, *words[at + 1 :]],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:
        try:
            dead = len(plan) + (kills() if kills is not None else 0)
            output, _ = job.communicate(timeout=DEADLINE)
        finally:
            job.terminate()
    assert job.returncode == 0, output
    deaths = [line for line in output.splitlines() if "was ended by SIGKILL" in line]
    assert len(deaths) >= (dead > 0) and (kills or len(deaths) == dead), output
    return [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(tmp_path.glob("*.log"))
    ]


def counted(logs: list[Any]) -> dict[int, dict[int, list[int]]]:
    """Return the samples of each step that counts, by step and rank. Each is of one world."""
    lines = [line for process in logs for line in process if "ids" in line]
    last = {line["step"]: 0 for line in lines}  # of its last try, which counts
    for line in lines:
        last[line["step"]] = max(last[line["step"]], line["world"])
    steps: dict[int, dict[int, list[int]]] = {number: {} for number in sorted(last)}
    for line in lines:
        if line["world"] == last[line["step"]]:
            steps[line["step"]][line["rank"]] = line["ids"]
    return steps


def replayed(steps: dict[int, dict[int, list[int]]]) -> Any:
    """Train in this process on the same samples; return the weights and the learning rate."""
    scope: dict[str, Any] = {"torch": torch}
    exec(MODEL, scope)
    net = scope["network"]()
    optimizer, scheduler = scope["optimizer_of"](net)
    for number in range(len(steps)):
        optimizer.zero_grad()
        for ids in steps[number].values():
            x = (torch.tensor(ids)[:, None] * torch.arange(1, 9)).double().cos()
            loss = (net(x) - x).square().mean() / len(steps[number])
            loss.backward()
        optimizer.step()
        scheduler.step()
    return net.state_dict(), scheduler.get_last_lr()[0]


def check_weights(tmp_path: Path, weights: Any, count: int) -> None:
    found = [torch.load(path) for path in tmp_path.glob("*.pt")]
    assert len(found) == count
    for one in found:
        for name, value in weights.items():
            torch.testing.assert_close(one[name], value, rtol=1e-9, atol=1e-12)
            assert torch.equal(one[name], found[0][name])


@pytest.mark.launcher("run --elastic")
def test_ranks_die_one_after_another(tmp_path: Path) -> None:
    """In every place of a step, rank 0 among them; and the last rank goes on alone."""
    places = ("backward", "step", "after", "forward")
    plan = {rank: (place, 3 + 4 * rank) for rank, place in enumerate(places)}
    logs = train(tmp_path, DDP, plan, 5, "--elastic", "1", "--no-replace", "--")
    steps = counted(logs)
    assert list(steps) == list(range(24))
    sizes = [len(of) for _, of in steps.items()]
    assert sizes[0] == 5 and sizes[-1] == 1
    # Every sample of an epoch counts once. An epoch ends with the batch that has its last samples.
    epoch: list[int] = []
    for _, of in steps.items():
        epoch += [sample for ids in of.values() for sample in ids]
        if len(epoch) >= 120:
            assert set(epoch) == set(range(120)) and len(epoch) < 125
            epoch = []
    assert len(set(epoch)) == len(epoch)
    # A step that comes again draws the same numbers.
    for process in logs:
        drawn: dict[int, Any] = {}
        for line in process:
            if "drawn" in line:
                assert drawn.setdefault(line["step"], line["drawn"]) == line["drawn"]
    weights, rate = replayed(steps)
    check_weights(tmp_path, weights, 1)
    (end,) = [line for process in logs for line in process if "scale" in line]
    assert end == {"scale": 4.0 * 2 ** (24 // 7), "lr": rate, "forwards": 24.0}


@pytest.mark.launcher("run --elastic")
def test_one_dies_with_unscaled_gradients(tmp_path: Path) -> None:
    """Under a hook of DDP, which the new reducer has, too."""
    options = ("--elastic", "1", "--no-replace", "--", "hook")
    logs = train(tmp_path, DDP, {1: ("unscaled", 6)}, 3, *options)
    weights, _ = replayed(counted(logs))
    check_weights(tmp_path, weights, 2)


@pytest.mark.launcher("run --elastic")
@pytest.mark.parametrize("seed", SEEDS)
def test_killed_at_random(seed: int, tmp_path: Path) -> None:
    """From outside, in any moment after the first step: also rank 0, also a replacement."""
    chosen = random.Random(seed)
    replace = [] if seed % 2 else ["--no-replace"]
    ranks = chosen.randint(2, 4)

    def kills() -> int:
        killed: set[int] = set()
        until = time.monotonic() + DEADLINE / 2
        for _ in range(1 if ranks == 2 else chosen.randint(1, 2)):
            pids: list[int] = []
            while len(pids) + len(killed) < ranks and time.monotonic() < until:
                time.sleep(0.01)
                names = [path.stem.split("-") for path in tmp_path.glob("*.log")]
                pids = sorted({int(pid) for _, pid in names} - killed)
            time.sleep(chosen.uniform(0, 0.4))
            victim = chosen.choice(pids)
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
        return len(killed)

    options = ("--elastic", "1", *replace, "--", "slow")
    logs = train(tmp_path, DDP, {}, ranks, *options, kills=kills)
    steps = counted(logs)
    weights, _ = replayed(steps)
    check_weights(tmp_path, weights, len(steps[max(steps)]))


@pytest.mark.launcher("run --elastic")
@pytest.mark.parametrize(
    ("kind", "every", "size"),
    [("plain", 3, 3), ("hybrid", 0, 4), ("zero", 3, 3)],
    ids=["fsdp", "hsdp", "zero"],
)
def test_shards(kind: str, every: int, size: int, tmp_path: Path) -> None:
    """FSDP2 and ZeroRedundancyOptimizer go back to the last copy, HSDP loses nothing."""
    plan = {1: ("backward", 8)}
    options = ("--elastic", "2", "--no-replace", "--")
    logs = train(tmp_path, FSDP, plan, size, *options, kind, str(every))
    steps = counted(logs)
    assert len(steps[5]) == size and len(steps[8]) == size - 1
    assert len(steps[7]) == (size if kind == "hybrid" else size - 1)
    weights, rate = replayed(steps)
    check_weights(tmp_path, weights, size - 1)
    assert [line["lr"] for process in logs for line in process if "lr" in line] == [rate] * (
        size - 1
    )


@pytest.mark.launcher("run --elastic")
def test_a_replacement_takes_shards(tmp_path: Path) -> None:
    logs = train(tmp_path, FSDP, {0: ("step", 4)}, 3, "--elastic", "2", "--", "plain", "1", "long")
    steps = counted(logs)
    assert len(steps[3]) == 3 and len(steps[5]) == 2 and len(steps[99]) == 3
    weights, _ = replayed(steps)
    check_weights(tmp_path, weights, 3)
