"""Trainings of Paddle whose optimizer's states are divided (ZeRO) go on when a rank is killed.

The weights at the end have the bits of a replay in one process, which adds the gradients of the
ranks in their order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import contract
import numpy as np
import paddle
import pytest

MODEL = """
def network():
    paddle.seed(0)
    paddle.set_default_dtype("float64")
    nn = paddle.nn
    return nn.Sequential(nn.Linear(8, 30), nn.Tanh(), nn.Linear(30, 8))


def optimizer_of(net):
    rate = paddle.optimizer.lr.StepDecay(0.01, 5, gamma=0.5)
    return paddle.optimizer.AdamW(rate, parameters=net.parameters()), rate


def loss_of(net, step, rank):
    x = paddle.to_tensor(np.random.default_rng([step, rank]).standard_normal((4, 8)))
    return (net(x) - x).square().mean()
"""

PROGRAM = (
    """
import json, os, signal, sys, time
import numpy as np
import paddle
import paddlempi.paddle
"""
    + MODEL
    + """
me, folder, level, every = int(os.environ["RANK"]), sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
victim, where, when, steps = sys.argv[4], sys.argv[5], int(sys.argv[6]), int(sys.argv[7])
first = not os.path.exists(f"{folder}/dead")  # no replacement has begun


def dies(point, step):
    if first and (str(me), point, step) == (victim, where, when):
        open(f"{folder}/dead", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.net = network()
        self.register_buffer("forwards", paddle.zeros([1]))

    def forward(self, x):
        self.forwards += 1
        return self.net(x)


def fleets():
    from paddle.distributed import fleet

    strategy, size = fleet.DistributedStrategy(), paddle.distributed.get_world_size()
    strategy.hybrid_configs = {"dp_degree": 1, "sharding_degree": size}
    fleet.init(is_collective=True, strategy=strategy)
    model = Net()
    optimizer, rate = optimizer_of(model)
    return fleet.distributed_model(model), fleet.distributed_optimizer(optimizer), rate


def build():
    if level == 0:
        return fleets()
    context = paddlempi.get_context()
    context.enable_data_parallel, context.zero_opt_level = True, level
    model = Net()
    if level == 1:
        model = paddle.DataParallel(model)
    optimizer, rate = optimizer_of(model)
    zero = optimizer._paddlempi_zero
    update = zero._update_owned

    def updated(step):  # the owners have changed their parameters, and told nobody
        update(step)
        dies("torn", job.done)

    zero._update_owned = updated
    model.parameters()[0].register_hook(lambda gradient: dies("backward", job.done))
    return model, optimizer, rate


paddle.nn.Linear(1, 1 + me)  # Paddle's names of layers differ from process to process
for _ in range(me):
    paddle.nn.Linear(1, 1)
with paddlempi.paddle.elastic(min_ranks=2) as job:
    state = paddlempi.paddle.Sharded(build, every=every)
    job.attach(state)
    for step in job.steps(steps):
        with step:
            with open(f"{folder}/{me}-{os.getpid()}.log", "a") as file:
                said = {"step": step.number, "rank": job.rank, "world": job.generation}
                file.write(json.dumps(said) + "\\n")
            loss = loss_of(state.model, step.number, job.rank)
            dies("between", step.number)
            loss.backward()
            state.optimizer.step()
            state.optimizer.clear_grad()
            state.scheduler.step()
            dies("after", step.number)
            time.sleep(1.0 if job.size == 2 and steps > 20 else 0)  # until a replacement comes
    model = getattr(state.model, "_layers", state.model)
    assert model.forwards.item() == steps
    weights = {name: value.numpy() for name, value in model.net.state_dict().items()}
    np.savez(f"{folder}/{me}.npz", rate=state.optimizer.get_lr(), **weights)
"""
)


def train(folder: Path, level: int, every: int, death: tuple[int, str, int], *options: str) -> Any:
    """Run three ranks, of which one dies; return by step the ranks whose gradients count.

    Args:
        death: the rank, the place and the step.
    """
    steps = 40 if "--no-replace" not in options else 12
    script = folder / "train.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "paddlempi", "run", "-np", "3", "--elastic", "2", *options),
            *map(str, (script, folder, level, every, *death, steps)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("was ended by SIGKILL") == 1, done.stdout
    lines = [
        json.loads(line) for path in folder.glob("*.log") for line in path.read_text().splitlines()
    ]
    last: dict[int, int] = {}  # the world of a step's last try, which counts
    for line in lines:
        last[line["step"]] = max(last.get(line["step"], 0), line["world"])
    assert sorted(last) == list(range(steps))
    return {
        step: sorted(x["rank"] for x in lines if (x["step"], x["world"]) == (step, last[step]))
        for step in range(steps)
    }


def check(folder: Path, ranks: dict[int, list[int]]) -> None:
    """Compare the weights that the ranks have at the end with a replay in this process."""
    scope: dict[str, Any] = {"paddle": paddle, "np": np}
    before = paddle.get_default_dtype()
    try:
        exec(MODEL, scope)
        net = scope["network"]()
        optimizer, rate = scope["optimizer_of"](net)
        for step, of in ranks.items():
            sums: list[Any] = []
            for rank in of:
                scope["loss_of"](net, step, rank).backward()
                parts = [p.grad.numpy() * (1 / len(of)) for p in net.parameters()]
                sums = [a + b for a, b in zip(sums, parts, strict=True)] if sums else parts
                optimizer.clear_grad()
            for parameter, total in zip(net.parameters(), sums, strict=True):
                parameter.grad = paddle.to_tensor(total)
            optimizer.step()
            optimizer.clear_grad()
            rate.step()
    finally:
        paddle.set_default_dtype(before)
    found = [np.load(path) for path in folder.glob("*.npz")]
    assert len(found) == len(ranks[max(ranks)])
    for one in found:
        assert one["rate"] == optimizer.get_lr()
        for name, value in net.state_dict().items():
            assert (one[name] == value.numpy()).all(), name


@pytest.mark.launcher("run --elastic")
def test_a_replacement_takes_states(tmp_path: Path) -> None:
    """Two go on from a neighbour's copy, although parameters were torn; then there are three."""
    ranks = train(tmp_path, 2, 2, (0, "torn", 5))
    assert [len(ranks[step]) for step in (3, 4, 5, 39)] == [3, 2, 2, 3]
    check(tmp_path, ranks)


SHRINKS = [(1, 3, (1, "backward", 8))]
if contract.ALL:
    SHRINKS += [
        (level, every, (rank, place, 6))
        for level in (1, 2)
        for rank, place, every in ((0, "between", 4), (2, "after", 1), (1, "torn", 1))
    ]
    SHRINKS += [(0, 1, (1, "between", 6)), (0, 4, (0, "after", 6))]  # level 0: fleet's own


@pytest.mark.launcher("run --elastic")
@pytest.mark.parametrize(("level", "every", "death"), SHRINKS)
def test_two_go_on(level: int, every: int, death: tuple[int, str, int], tmp_path: Path) -> None:
    ranks = train(tmp_path, level, every, death, "--no-replace")
    back = death[2] - death[2] % every  # the step of the last copy
    assert [len(ranks[step]) for step in (back - 1, back, 11)] == [3, 2, 2]
    check(tmp_path, ranks)
