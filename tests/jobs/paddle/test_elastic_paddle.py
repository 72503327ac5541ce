"""Trainings of Paddle that go on when ranks are killed, compared with a replay in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    return paddle.optimizer.Adam(rate, parameters=net.parameters()), rate


def inputs(step, rank):
    return paddle.to_tensor(np.random.default_rng([step, rank]).standard_normal((4, 8)))
"""

PROGRAM = (
    """
import json, os, signal, sys
import numpy as np
import paddle
import paddle.distributed as dist
import paddlempi.paddle
"""
    + MODEL
    + """
me, folder = int(os.environ["RANK"]), sys.argv[1]
where, when = json.loads(sys.argv[2]).get(str(me), ("", -1))


def dies(point, step):
    if point == where and step == when:
        os.kill(os.getpid(), signal.SIGKILL)


class Dies(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, x, step):
        dies("forward", step)
        ctx.step = step
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        dies("backward", ctx.step)
        return gradient


class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.net = network()
        self.register_buffer("forwards", paddle.zeros([1]))

    def forward(self, x, step):
        self.forwards += 1
        return self.net[2](Dies.apply(self.net[1](self.net[0](x)), step))


with paddlempi.paddle.elastic(min_ranks=1) as job:
    model = paddle.DataParallel(Net())
    optimizer, rate = optimizer_of(model)
    job.attach(model, optimizer)
    paddle.seed(me)
    drawn = {}
    for step in job.steps(16):
        with step:
            number = paddle.rand([1]).item()
            assert drawn.setdefault(step.number, number) == number
            with open(f"{folder}/{me}.log", "a") as file:
                said = {"step": step.number, "rank": job.rank, "world": job.generation}
                file.write(json.dumps(said) + "\\n")
            x = inputs(step.number, job.rank)
            loss = (model(x, step.number) - x).square().mean()
            dies("between", step.number)
            loss.backward()
            dies("step", step.number)
            optimizer.step()
            optimizer.clear_grad()
            rate.step()
            dies("after", step.number)
            dist.all_reduce(loss.detach())
    assert dist.get_rank() == job.rank and dist.get_world_size() == job.size
    assert model._layers.forwards.item() == 16
    weights = {name: value.numpy() for name, value in model._layers.net.state_dict().items()}
    np.savez(f"{folder}/{me}.npz", rate=optimizer.get_lr(), **weights)
"""
)


@pytest.mark.launcher("run --elastic")
def test_ranks_die_one_after_another(tmp_path: Path) -> None:
    """In every place of a step, rank 0 among them; and the last rank goes on alone."""
    places = ("backward", "step", "after", "forward")
    plan = {str(rank): (place, 2 + 3 * rank) for rank, place in enumerate(places)}
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "paddlempi", "run", "-np", "5", "--elastic", "1"),
            *("--no-replace", str(script), str(tmp_path), json.dumps(plan)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("was ended by SIGKILL") == 4, done.stdout
    lines = [
        json.loads(line)
        for path in tmp_path.glob("*.log")
        for line in path.read_text().splitlines()
    ]
    weights, rate = replayed(lines)
    (path,) = tmp_path.glob("*.npz")
    found = np.load(path)
    assert found["rate"] == rate
    for name, value in weights.items():
        np.testing.assert_allclose(found[name], value.numpy(), rtol=1e-9, atol=1e-12)


def replayed(lines: list[Any]) -> Any:
    """Train in this process on the same samples; return the weights and the learning rate."""
    last: dict[int, int] = {}  # the world of a step's last try, which counts
    for line in lines:
        last[line["step"]] = max(last.get(line["step"], 0), line["world"])
    assert sorted(last) == list(range(16))
    scope: dict[str, Any] = {"paddle": paddle, "np": np}
    before = paddle.get_default_dtype()
    try:
        exec(MODEL, scope)
        net = scope["network"]()
        optimizer, rate = scope["optimizer_of"](net)
        for step in range(16):
            ranks = [x["rank"] for x in lines if (x["step"], x["world"]) == (step, last[step])]
            for rank in sorted(ranks):
                x = scope["inputs"](step, rank)
                ((net(x) - x).square().mean() / len(ranks)).backward()
            optimizer.step()
            optimizer.clear_grad()
            rate.step()
    finally:
        paddle.set_default_dtype(before)
    return net.state_dict(), optimizer.get_lr()
