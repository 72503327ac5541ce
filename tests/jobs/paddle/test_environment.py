"""What Paddle knows before init: scripts that ask for the world size, or never call init."""

from __future__ import annotations

import sys
from pathlib import Path

import job
import pytest
from paddlempi.testing import launch


def guarded() -> None:
    import os

    import paddle
    import paddle.distributed as dist

    assert dist.get_world_size() == 1  # asked too early, and remembered by Paddle
    import paddlempi
    import paddlempi.paddle
    from ranks_tools import done

    rank = dist.get_rank()
    assert sorted((rank, 1 - rank)) == [0, 1]
    assert not paddlempi.is_initialized()
    assert dist.ParallelEnv().nranks == 2 and dist.ParallelEnv().local_rank == rank
    assert os.environ["PADDLE_RANK_IN_NODE"] == os.environ["PADDLE_LOCAL_RANK"] == str(rank)
    assert "PADDLE_TRAINER_ENDPOINTS" not in os.environ
    # A sampler that is made before init has this rank's part.
    sampler = paddle.io.DistributedBatchSampler(list(range(8)), batch_size=2)
    for _ in range(2):
        if dist.get_world_size() > 1:
            dist.init_parallel_env()
        assert paddlempi.get_rank() == dist.get_rank() == rank
        found: list[list[int]] = []
        dist.all_gather_object(found, [i for batch in sampler for i in batch])
        assert sorted(found[0] + found[1]) == list(range(8))
        dist.destroy_process_group()
        assert "PADDLE_TRAINER_ENDPOINTS" not in os.environ
    paddlempi.paddle.uninstall()
    assert dist.get_world_size() == 1
    assert [name for name in os.environ if name.startswith("PADDLE_")] == []
    assert "PADDLEMPI_FILLED_PADDLE" not in os.environ
    done()


@pytest.mark.launcher("what Paddle is told before its import, by a launcher")
def test_a_guarded_init() -> None:
    ended = job.succeed(2, guarded)
    assert "RuntimeWarning" not in ended.output


ASKS = """
import os, sys
place = os.environ["PADDLE_RANK_IN_NODE"]  # as who sets CUDA_VISIBLE_DEVICES does
assert "paddlempi._core" not in sys.modules, "Paddle would take Go's signal handlers"
import paddle
import paddle.distributed as dist

if dist.ParallelEnv().nranks > 1 and "init" in sys.argv:
    dist.init_parallel_env()
    assert dist.get_rank() == int(place)
    x = paddle.ones([2])
    dist.all_reduce(x)
    assert __name__ == "__main__" and __file__ == sys.argv[0], (__name__, __file__, sys.argv)
    sys.stdout.write(f"{dist.get_backend()} {x.tolist()} {sys.argv[1:]}\\n")
if "wrong" in sys.argv:
    raise SystemExit(3)
sys.stdout.write("end\\n")
"""


@pytest.mark.launcher("`run` under a launcher, before Paddle is imported")
@pytest.mark.parametrize(("word", "status", "told"), [("init", 0, 0), ("", 0, 2), ("wrong", 3, 0)])
def test_a_script_that_asks(tmp_path: Path, word: str, status: int, told: int) -> None:
    """``paddlempi run`` runs a script as it is, which it tells its place before Paddle is imported.

    It warns without an init.
    """
    script = tmp_path / "train.py"
    script.write_text(ASKS)
    command = [sys.executable, "-m", "paddlempi", "run", str(script), "--epochs", "3", word]
    ended = launch.run(2, command, timeout=60)
    assert ended.returncode == status, ended.output
    assert ended.stdout.count("end\n") == (0 if status else 2), ended.output
    said = "MPI [2.0, 2.0] ['--epochs', '3', 'init']\n"
    assert ended.stdout.count(said) == (2 if word == "init" else 0), ended.output
    assert ended.stderr.count("RuntimeWarning: paddlempi: rank") == told, ended.output


def never() -> None:
    import paddlempi.paddle  # noqa: F401
    from ranks_tools import done

    done()


@pytest.mark.launcher("what Paddle is told before its import, by a launcher")
def test_an_import_and_no_init() -> None:
    said = job.succeed(2, never).result.stderr
    for rank in range(2):
        assert said.count(f"RuntimeWarning: paddlempi: rank {rank} of the 2 that ") == 1, said
    quiet = {"PYTHONWARNINGS": "ignore:paddlempi"}
    assert "paddlempi: rank" not in job.succeed(2, never, env=quiet).output
    assert "paddlempi: rank" not in job.succeed(1, never).output


def told_otherwise() -> None:
    import os

    import paddle.distributed as dist

    os.environ["PADDLE_TRAINERS_NUM"] = "1"  # as paddle.distributed.launch says to one process
    import paddlempi.paddle  # noqa: F401
    from paddlempi import errors
    from ranks_tools import done, raises

    rank = int(os.environ["PADDLE_TRAINER_ID"])
    assert dist.get_world_size() == 1, "the variable that the user has set must count"
    with raises(errors.LauncherError, "PADDLE_TRAINERS_NUM=1", "MPI has 2", "unset it"):
        dist.init_parallel_env()
    os.environ["PADDLE_TRAINERS_NUM"] = "2"
    os.environ["PADDLE_TRAINER_ID"] = "1"
    with raises(errors.LauncherError, "PADDLE_TRAINER_ID=1", "MPI's rank 0", "unset it"):
        dist.init_parallel_env()  # rank 1 raises too, although its variable is right
    os.environ["PADDLE_TRAINER_ID"] = str(rank)
    dist.init_parallel_env()
    assert dist.get_rank() == rank
    done()


def test_variables_that_contradict_mpi() -> None:
    job.succeed(2, told_otherwise)


PARENT = """
import multiprocessing, os, subprocess, sys
import paddle
import paddle.distributed as dist
import paddlempi.paddle

CHILD = '''
import os, sys
import paddlempi.paddle
import paddle.distributed as dist

if dist.get_world_size() > 1:
    raise SystemExit("it is told that it is a rank")
assert "PADDLE_TRAINER_ID" not in os.environ
if "init" in sys.argv:
    dist.init_parallel_env()
'''

def run(*words):
    command = [sys.executable, "-c", CHILD, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)

def work(answer):
    answer.put((dist.get_rank(), dist.get_world_size(), os.environ["PADDLE_TRAINER_ID"]))

if __name__ == "__main__":
    dist.init_parallel_env()
    rank = dist.get_rank()
    if rank == 0:
        # A program of its own is no rank: it works alone, and may not start MPI as this one.
        alone = run()
        assert alone.returncode == 0 and "paddlempi: rank" not in alone.stderr, alone.stderr
        again = run("init")
        assert again.returncode == 1, again.stderr
        said = f"LauncherError: init_parallel_env: process {os.getpid()}"
        assert said in again.stderr, again.stderr
    # A worker, as a DataLoader has them, works for its rank.
    for method in ("fork", "spawn", "forkserver") if rank else ("fork",):
        context = multiprocessing.get_context(method)
        answer = context.SimpleQueue()
        process = context.Process(target=work, args=(answer,))
        process.start()
        assert answer.get() == (rank, 2, str(rank)), method
        process.join()
        assert process.exitcode == 0
    dist.barrier()
    sys.stdout.write("end\\n")
"""


@pytest.mark.launcher("a child that comes to MPI again")
def test_what_a_rank_starts(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PARENT)
    ended = launch.run(2, script, timeout=120)
    assert ended.returncode == 0 and ended.stdout.count("end\n") == 2, ended.output
    assert "RuntimeWarning" not in ended.output


SPAWNS = """
import os, sys
import paddle.distributed as dist
import paddlempi.paddle
from paddlempi.errors import LauncherError
from paddlempi.paddle import patches

def train():
    dist.init_parallel_env()
    assert dist.get_world_size() == 2
    assert str(dist.get_rank()) == os.environ["PADDLE_TRAINER_ID"]

if __name__ == "__main__":
    assert sys.modules["paddle.distributed.spawn"].spawn is dist.spawn
    try:
        dist.spawn(train, nprocs=2)
    except LauncherError as error:
        assert "has started 2 processes" in str(error) and "call train(...) itself" in str(error)
    if os.environ["PADDLE_TRAINER_ID"] == "1":
        # Who has Paddle's own all the same: the nearest start decides, so the children are a world.
        del os.environ["PADDLE_TRAINERS_NUM"]
        patches.original(sys.modules["paddle.distributed.spawn"], "spawn")(train, nprocs=2)
    sys.stdout.write("spawned\\n")
"""


@pytest.mark.launcher("the children of a rank must not take themselves for ranks of its launcher")
def test_spawn_inside_a_job(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SPAWNS)
    ended = launch.run(2, script, timeout=120)
    assert ended.stdout.count("spawned\n") == 2, ended.output


def fits() -> None:
    import numpy as np
    import paddle
    import paddle.distributed as dist
    import paddlempi.paddle  # noqa: F401
    from paddle import nn
    from ranks_tools import done

    class Net(nn.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.unused = nn.Linear(8, 1), nn.Linear(3, 3)

        def forward(self, x: object) -> object:
            return self.one(x)

    x = np.random.default_rng(0).standard_normal((32, 8)).astype("float32")
    data = paddle.io.TensorDataset([paddle.to_tensor(x), paddle.to_tensor(x[:, :1])])
    paddle.seed(1)
    model = paddle.Model(Net())  # it calls init_parallel_env, because the variables say 2
    alone = Net()
    alone.set_state_dict(model.network.state_dict())
    nets = [model.network, alone]
    model.prepare(paddle.optimizer.SGD(0.1, parameters=nets[0].parameters()), nn.MSELoss())
    model.fit(data, batch_size=4, epochs=2, shuffle=False, verbose=0)
    optimizer = paddle.optimizer.SGD(0.1, parameters=alone.parameters())
    for batch in np.split(x, 4) * 2:
        (alone(paddle.to_tensor(batch)) - paddle.to_tensor(batch[:, :1])).square().mean().backward()
        optimizer.step()
        optimizer.clear_grad()
    assert dist.is_initialized()
    for mine, its in zip(*(net.parameters() for net in nets), strict=True):
        np.testing.assert_allclose(mine.numpy(), its.numpy(), rtol=1e-4, atol=1e-5)
    done()


def test_hapi() -> None:
    """Model.fit works unchanged. One rank reports the layer that no step uses."""
    ended = job.succeed(2, fits, timeout=120)
    assert ended.output.count("no rank's backward reached parameter 'unused.weight'") == 1
