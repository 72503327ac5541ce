"""How a world begins and ends, and the ways to start it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import job
import pytest


def again() -> None:
    import os

    import paddle
    import paddle.distributed as dist
    import paddlempi
    import paddlempi.paddle
    from ranks_tools import done

    for leave in (dist.destroy_process_group, paddlempi.destroy_process_group):
        group = dist.init_parallel_env()
        assert dist.init_parallel_env() is group, "a second init must return the same group"
        assert dist.is_initialized() and paddlempi.is_initialized()
        assert dist.get_world_size() == paddlempi.get_world_size() == 2
        assert dist.ParallelEnv().rank == dist.get_rank() == paddlempi.get_rank()
        assert dist.get_backend() == "MPI"
        part = dist.new_group([1], backend=dist.get_backend())
        x = paddle.ones([3])
        dist.all_reduce(x)
        assert x.tolist() == [2.0] * 3
        if dist.get_rank() == 1:
            dist.all_reduce(x, group=part)
            assert x.tolist() == [2.0] * 3
        dist.barrier()
        leave()
        assert not dist.is_initialized() and not paddlempi.is_initialized()
        assert "PADDLE_CURRENT_ENDPOINT" not in os.environ
        assert dist.get_world_size() == 2, "it must be the launcher's number, as before init"
    done()


def test_init_after_destroy() -> None:
    job.succeed(2, again)


def by_name() -> None:
    import paddle
    import paddlempi
    from ranks_tools import done

    paddlempi.init_process_group("mpi", framework="paddle")
    x = paddle.ones([2])
    paddle.distributed.all_reduce(x)
    assert x.tolist() == [2.0, 2.0]
    paddlempi.all_reduce(x)
    assert x.tolist() == [4.0, 4.0]
    done()


def test_init_process_group_with_framework() -> None:
    job.succeed(2, by_name)


def groups() -> None:
    import warnings

    import paddle
    import paddle.distributed as dist
    import paddlempi.paddle  # noqa: F401
    from paddlempi import errors
    from ranks_tools import done, raises

    dist.init_parallel_env()
    rank = dist.get_rank()
    # Paddle sorts the ranks. A rank that is no member does not wait.
    tail = dist.new_group([2, 1])
    assert tail.ranks == [1, 2] and tail.nranks == 2
    assert dist.get_group(tail.id) is tail
    x = paddle.full([2], float(rank))
    if rank:
        assert tail.rank == dist.get_rank(tail) == rank - 1
        assert dist.get_world_size(tail) == 2
        dist.broadcast(x, 2, group=tail)
        assert x.tolist() == [2.0, 2.0]
        dist.reduce(x, 1, group=tail)
        assert x.tolist() == [4.0 if rank == 1 else 2.0] * 2
    else:
        assert not tail.is_member() and tail.process_group is None
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            dist.all_reduce(x, group=tail)
        assert any("is not in group" in str(one.message) for one in seen)
        assert x.tolist() == [0.0, 0.0]
    with raises(errors.ArgumentError, "gloo", "mpi"):
        dist.new_group([0, 1], backend="gloo")
    with raises(errors.ArgumentError, "out of range"):
        dist.new_group([0, 3])
    dist.destroy_process_group(tail)
    with raises(errors.ArgumentError, "destroyed before"):
        dist.destroy_process_group(tail)
    dist.barrier()
    done()


def test_groups() -> None:
    job.succeed(3, groups)


def late() -> None:
    import time
    from datetime import timedelta

    import paddle
    import paddle.distributed as dist
    import paddlempi.paddle  # noqa: F401
    from paddlempi import errors
    from ranks_tools import done, raises

    dist.init_parallel_env()
    group = dist.new_group([0, 1], timeout=timedelta(seconds=0.5))
    x = paddle.ones([2])
    if dist.get_rank() == 0:
        with raises(errors.TimeoutError, "all_reduce", ranks=[1]):
            dist.all_reduce(x, group=group)
    else:
        time.sleep(2)
    dist.all_reduce(x)
    assert x.tolist() == [2.0, 2.0]
    done()


def test_timeout_of_a_group() -> None:
    job.succeed(2, late)


def whole_fleet() -> None:
    import numpy as np
    import paddle
    import paddlempi.paddle  # noqa: F401
    from paddle.distributed import fleet
    from paddlempi import errors
    from ranks_tools import done, raises

    fleet.init(is_collective=True)
    rank = paddle.distributed.get_rank()
    assert fleet.worker_num() == 2 and fleet.worker_index() == rank
    assert fleet.is_first_worker() == (rank == 0)
    assert len(set(fleet.worker_endpoints())) == 2
    fleet.barrier_worker()
    assert fleet.util.all_reduce([[rank, 1.5]], "sum").tolist() == [[1.0, 3.0]]
    assert fleet.util.all_reduce(np.array([rank]), "max").tolist() == [1]
    assert fleet.util.all_gather(rank * 2.5) == [0.0, 2.5]
    fleet.util.barrier()
    with raises(errors.ArgumentError, "server"):
        fleet.util.barrier("server")
    assert fleet.util.get_file_shard(["a", "b", "c"]) == [["a", "b"], ["c"]][rank]
    done()


def test_fleet() -> None:
    job.succeed(2, whole_fleet)


def parallelized() -> None:
    import numpy as np
    import paddle
    import paddle.distributed as dist
    import paddlempi.paddle  # noqa: F401
    from ranks_tools import done

    dist.init_parallel_env()
    mesh = dist.ProcessMesh([0, 1], dim_names=["dp"])
    paddle.seed(1)
    net, alone = paddle.nn.Linear(4, 2), paddle.nn.Linear(4, 2)
    alone.set_state_dict(net.state_dict())
    optimizer = paddle.optimizer.AdamW(0.1, parameters=net.parameters())
    net, optimizer = dist.parallelize(net, optimizer, mesh, {"dp_config": {"sharding_level": 0}})
    its = paddle.optimizer.AdamW(0.1, parameters=alone.parameters())
    x = np.random.default_rng(0).standard_normal((6, 4)).astype("float32")
    for _ in range(3):
        whole = paddle.to_tensor(x)
        for model, steps, batch in (
            (net, optimizer, dist.shard_tensor(whole, mesh, [dist.Shard(0)])),
            (alone, its, whole),
        ):
            model(batch).square().mean().backward()
            steps.step()
            steps.clear_grad()
    for mine, expected in zip(net.parameters(), alone.parameters(), strict=True):
        np.testing.assert_allclose(mine._local_value().numpy(), expected.numpy(), rtol=1e-4)
    done()


def test_auto_parallel() -> None:
    job.succeed(2, parallelized)


def restored() -> None:
    import paddle.distributed as dist
    from paddle.base import core
    from paddle.distributed import collective, parallel

    before = dist.init_parallel_env, collective.new_group, dist.wait, hasattr(core, "nccl_version")
    import paddlempi.paddle as front
    from ranks_tools import done

    assert front.installed() and parallel.init_parallel_env is not before[0]
    front.uninstall()
    after = dist.init_parallel_env, collective.new_group, dist.wait, hasattr(core, "nccl_version")
    assert after == before and not front.installed()
    front.install()
    dist.init_parallel_env()
    assert dist.get_backend() == "MPI"
    done()


def test_uninstall_puts_paddles_own_back() -> None:
    job.succeed(1, restored)


def test_launched_by_paddle_alone() -> None:
    """paddle.distributed.launch sets these variables, but MPI connects no processes then."""
    environment = {**os.environ, "PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ID": "0"}
    program = "import paddlempi.paddle, paddle; paddle.distributed.init_parallel_env()"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode != 0
    assert "LauncherError" in ended.stderr and "mpirun -np 2" in ended.stderr, ended.stderr


WITHOUT_MPIRUN = """
import sys
import paddlempi.paddle
import paddle
import paddle.distributed as dist

def train():
    paddlempi.paddle.install()
    dist.init_parallel_env()
    x = paddle.full([2], 1.0 + dist.get_rank())
    dist.all_reduce(x)
    assert x.tolist() == [3, 3] and dist.get_world_size() == 2 and dist.get_backend() == "MPI"
    dist.destroy_process_group()
    dist.init_parallel_env()  # the address has served once
    dist.barrier()
    assert not any("libmpi" in line for line in open("/proc/self/maps")), "it has loaded an MPI"
    with open(f"{sys.argv[1]}-{dist.get_rank()}", "w") as file:
        file.write("done")

if __name__ == "__main__":
    if sys.argv[2:] == ["spawn"]:
        dist.spawn(train, nprocs=2, backend="gloo")
    else:
        train()
"""


@pytest.mark.launcher("those of Paddle")
@pytest.mark.parametrize("way", ["launch", "spawn"])
def test_without_mpirun(tmp_path: Path, way: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(WITHOUT_MPIRUN)
    words = [str(script), str(tmp_path / "rank")]
    command = [sys.executable, *words, "spawn"]
    if way == "launch":
        options = ["--nproc_per_node", "2", "--backend", "gloo", "--log_dir", str(tmp_path / "log")]
        command = [sys.executable, "-m", "paddle.distributed.launch", *options, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert (tmp_path / f"rank-{rank}").read_text() == "done"
