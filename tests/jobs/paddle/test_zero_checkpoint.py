"""A checkpoint of sharded states is whole: any number of ranks can go on from it."""

from __future__ import annotations

import sys
from pathlib import Path

import job
import pytest

# The program of every job. Every process names its layers from linear_0 on.
HEAD = """
import sys

import numpy as np
import paddle
import paddle.distributed as dist
import paddlempi
import paddlempi.paddle

folder, level, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
dist.init_parallel_env()
rank, size = dist.get_rank(), dist.get_world_size()
context = paddlempi.get_context()
context.enable_data_parallel = True
context.zero_opt_level = level
if rank and level:
    paddle.nn.Linear(1, 1)  # from here on Paddle names this rank's layers otherwise
paddle.seed(5)
model = paddle.nn.Sequential(paddle.nn.Linear(6, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 2))
scheduler = paddle.optimizer.lr.StepDecay(0.02, step_size=2)
optimizer = paddle.optimizer.Adam(scheduler, parameters=model.parameters())
if first:
    model.set_state_dict(paddle.load(f"{folder}/weights"))
    optimizer.set_state_dict(paddle.load(f"{folder}/states"))
for step in range(first, last):
    random = np.random.RandomState(step)
    x, y = random.randn(12, 6).astype("float32"), random.randn(12, 2).astype("float32")
    given, wanted = paddle.to_tensor(x[rank::size]), paddle.to_tensor(y[rank::size])
    ((model(given) - wanted) ** 2).mean().backward()
    optimizer.step()
    optimizer.clear_grad()
    scheduler.step()
states = optimizer.state_dict()
assert len(states) == 4 * 4 + 1, sorted(states)
if rank == 0:
    paddle.save(model.state_dict(), f"{folder}/weights")
    paddle.save(states, f"{folder}/states")
dist.barrier()
sys.stdout.write("done\\n")
"""


def steps(folder: Path, np: int, level: int, first: int, last: int) -> None:
    program = folder.parent / "steps.py"
    program.write_text(HEAD)
    words = [sys.executable, str(program), str(folder), str(level), str(first), str(last)]
    job.succeed(np, words)


@pytest.mark.parametrize("level", [1, 2])
def test_other_numbers_of_ranks_go_on(tmp_path: Path, level: int) -> None:
    import paddle

    for name in ("alone", "mixed"):
        (tmp_path / name).mkdir()
    steps(tmp_path / "alone", 1, 0, 0, 5)
    steps(tmp_path / "mixed", 3, level, 0, 2)
    steps(tmp_path / "mixed", 2, level, 2, 4)
    steps(tmp_path / "mixed", 1, 0, 4, 5)
    for kind in ("weights", "states"):
        wanted = paddle.load(str(tmp_path / "alone" / kind))
        found = paddle.load(str(tmp_path / "mixed" / kind))
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            if paddle.is_tensor(tensor):
                assert found[name].shape == tensor.shape
                assert float((found[name] - tensor).abs().max()) < 2e-6, (kind, name)
            else:
                assert found[name] == tensor, (kind, name)
