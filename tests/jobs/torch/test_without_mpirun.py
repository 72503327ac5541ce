"""torch's groups over ranks that torchrun, spawn or the program has started, without an MPI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import job
import pytest
from ports import unused

TRAIN = """
import os, sys
import torch
import torch.distributed as dist

torch.set_num_threads(1)
attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
assert dist.is_mpi_available() and dist.is_backend_available("mpi")
backends = sys.argv[1].split(",")
for backend in backends:
    dist.init_process_group(backend)
    rank = dist.get_rank()
    assert dist.get_world_size() == 2 and rank == int(os.environ["RANK"])
    x = torch.tensor([1.0 + rank])
    dist.all_reduce(x)
    assert x.item() == 3
    names = [None, None]
    dist.all_gather_object(names, rank)
    assert names == [0, 1]
    if "restarts" not in sys.argv:  # DDP imports for seconds, and the store is no matter of it
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        model(torch.full((2, 4), 1.0 + rank)).sum().backward()
        assert model.module.weight.grad.eq(3).all()
    if backend == backends[-1]:  # in a world after it gloo may read the addresses of this one
        gloo = dist.new_group(backend="gloo")
        dist.all_reduce(x, group=gloo)
        assert x.item() == 6
    if "restarts" in sys.argv and attempt == 0 and rank == 0:
        os.kill(os.getpid(), 9)
    dist.barrier()
    dist.destroy_process_group()
    print(f"done with {backend} in attempt {attempt}", flush=True)
assert not any("libmpi" in line for line in open("/proc/self/maps")), "it has loaded an MPI"
dist.init_process_group("gloo")
dist.all_reduce(x)
assert x.item() == 12
assert type(dist.new_group(backend="mpi")).__name__ == "ProcessGroupMPI"
dist.destroy_process_group()
print("all done", flush=True)
"""


def run(*command: str, **variables: str) -> str:
    """Run a Python program; return its output. Fail unless it succeeds."""
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


OTHERS = pytest.mark.launcher("torchrun, spawn, or no launcher")


def torchrun(*words: str, **variables: str) -> str:
    options = ["--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    return run("-m", "torch.distributed.run", *options, *words, **variables)


@OTHERS
def test_torchrun(tmp_path: Path) -> None:
    """One program with all names. With another one first: test_torchrun_restarts, test_run_np."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    backends = ["cpu:mpi", "paddlempi", "mpi"]
    output = torchrun(str(script), ",".join(backends))
    for name in backends:
        assert output.count(f"done with {name} in") == 2, output
    assert output.count("all done") == 2, output


@OTHERS
def test_torchrun_restarts(tmp_path: Path) -> None:
    """The store, its port and all keys stay."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    output = torchrun("--max-restarts=1", str(script), "mpi", "restarts")
    assert output.count("done with mpi in attempt 1") == 2, output
    assert output.count("all done") == 2, output


DEFAULT = """
import os
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

init_device_mesh("cpu", (2,))
x = torch.ones(1)
dist.all_reduce(x)
assert x.item() == 2
os.write(1, f"kind {type(dist.group.WORLD).__name__}\\n".encode())  # in one piece
dist.destroy_process_group()
"""


@OTHERS
@pytest.mark.parametrize(("default", "kind"), [("", "ProcessGroup"), ("cpu", "ProcessGroupMPI")])
def test_a_program_that_names_no_backend(tmp_path: Path, default: str, kind: str) -> None:
    """It keeps gloo, unless the user chooses otherwise."""
    script = tmp_path / "train.py"
    script.write_text(DEFAULT)
    output = torchrun(str(script), PADDLEMPI_TORCH_DEFAULT=default)
    assert re.findall(r"kind (\w+)", output) == [kind] * 2, output


@pytest.mark.parametrize("backend", ["mpi", "paddlempi"])
def test_run_np(tmp_path: Path, backend: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    ended = job.run(2, [sys.executable, str(script), backend])
    assert ended.returncode == 0, ended.output
    assert ended.output.count("all done") == 2, ended.output


AGAIN = """
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

torch.set_num_threads(1)
held = []
for backend in ("mpi", "cpu:mpi", "cpu:mpi,cuda:gloo", "cpu:gloo,cuda:mpi", "mpi"):
    dist.init_process_group(backend)
    store = _get_default_store()
    dist.barrier()
    assert not store.check(["said"]), backend
    dist.barrier()
    store.set("said", backend)
    for group in (dist.group.WORLD, dist.new_group(), dist.new_group(backend="gloo")):
        x = torch.ones(3)
        dist.all_reduce(x, group=group)
        assert x.tolist() == [2.0] * 3
    held.append((dist.group.WORLD, store, group))
    dist.destroy_process_group()
print("done", flush=True)
"""


def test_worlds_one_after_another(tmp_path: Path) -> None:
    """A program that keeps what it had of a world finds nothing of it in the next one's store."""
    script = tmp_path / "again.py"
    script.write_text(AGAIN)
    ended = job.run(2, script)
    assert ended.returncode == 0, ended.output
    assert ended.output.count("done") == 2, ended.output


SPAWN = """
import os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PORTS = [int(word) for word in sys.argv[2:]]
FILE = "file://" + sys.argv[1]

def train(rank):
    torch.set_num_threads(1)
    for way in ("variables", "address", "file", "tcp", "torch's tcp", "store", "gloo"):
        one(rank, way)

def one(rank, way):
    numbers = {"rank": rank, "world_size": 2}
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORTS[0])}
    if way == "variables":
        told = dict(variables, RANK=str(rank), WORLD_SIZE="2")
        os.environ.update(told)
        dist.init_process_group("mpi")
        for name in told:
            del os.environ[name]
    elif way == "address":
        os.environ.update(variables)
        dist.init_process_group("mpi", **numbers)
    elif way == "file":
        dist.init_process_group("mpi", init_method=FILE, **numbers)
    elif way == "tcp":
        dist.init_process_group("mpi", init_method=f"tcp://127.0.0.1:{PORTS[1]}", **numbers)
    elif way == "torch's tcp":
        dist.init_process_group("paddlempi", init_method=f"tcp://127.0.0.1:{PORTS[2]}", **numbers)
    elif way == "store":
        store = dist.TCPStore("127.0.0.1", PORTS[3], 2, rank == 0)
        dist.init_process_group("mpi", store=store, **numbers)
    elif way == "gloo":
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{PORTS[4]}", **numbers)
    group = dist.new_group(backend="mpi") if way == "gloo" else None
    x = torch.tensor([1.0 + rank])
    dist.all_reduce(x, group=group)
    assert x.item() == 3
    dist.destroy_process_group()
    print("done", way, flush=True)

if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
    assert not os.path.exists(sys.argv[1])
"""


@OTHERS
def test_spawn(tmp_path: Path) -> None:
    script = tmp_path / "spawn.py"
    script.write_text(SPAWN)
    ports = [str(unused()) for _ in range(5)]
    assert run(str(script), str(tmp_path / "meeting"), *ports).count("done") == 14


WRONG = """
import sys
import torch.distributed as dist
from paddlempi.errors import ArgumentError, Error, TimeoutError
from datetime import timedelta

for given, kind, text in (
    ({"rank": 0, "world_size": 2}, ArgumentError, "MASTER_ADDR and MASTER_PORT not set"),
    ({"rank": 2, "world_size": 2, "init_method": "file://" + sys.argv[1]}, ArgumentError, "from 0"),
    (
        {"rank": 0, "world_size": 2, "init_method": "file://" + sys.argv[1],
         "timeout": timedelta(seconds=1)},
        TimeoutError,
        "rank(s) [1] of 2 had not come",
    ),
):
    try:
        dist.init_process_group("mpi", **given)
    except Error as error:
        assert isinstance(error, kind) and text in str(error), error
    else:
        raise AssertionError("no error")
    assert not dist.is_initialized()
print("done")
"""


@OTHERS
def test_what_is_wrong(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text(WRONG)
    assert "done" in run(str(script), str(tmp_path / "meeting"))
    assert not (tmp_path / "meeting").exists()
