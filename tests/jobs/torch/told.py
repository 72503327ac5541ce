"""What ``import torch`` tells a rank about itself, and what other processes see of that.

This is the program of every rank. test_environment.py starts it. Rank 0 starts it again under
torchrun, and then it runs :func:`below`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

ABOUT_ME = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}
NAMES = (*sorted(ABOUT_ME), "MASTER_ADDR", "MASTER_PORT")


def seen(*_: object) -> dict[str, str | None]:
    """Return the variables, in this process or in a worker of a DataLoader."""
    return {name: os.environ.get(name) for name in NAMES}


def loaded() -> list[str]:
    """Return the loaded modules that could start MPI or Go."""
    return [name for name in sys.modules if name.partition(".")[0] in ("paddlempi", "mpi4py")]


def told() -> dict[str, str | None]:
    found = seen()
    rank = str(found["RANK"])
    assert rank in ("0", "1")
    assert 10_000 <= int(str(found["MASTER_PORT"])) < 30_000
    assert found == {
        "RANK": rank,
        "WORLD_SIZE": "2",
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": found["MASTER_PORT"],
    }
    assert dist.is_mpi_available() and dist.is_backend_available("mpi")
    assert loaded() == []
    return found


def gloo(rank: int) -> None:
    """gloo meets by the variables, and also by a rank and a port that the program chooses."""
    before = os.environ["MASTER_PORT"]
    port: list[Any] = [None]
    for mine, more in ((rank, {}), (1 - rank, {"rank": 1 - rank, "world_size": 2})):
        dist.init_process_group("gloo", **more)
        assert (dist.get_rank(), dist.get_world_size()) == (mine, 2)
        x = torch.full((1,), 1.0 + rank)
        dist.all_reduce(x)
        assert x.item() == 3
        if mine == 0:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port[0] = free.getsockname()[1]
        dist.broadcast_object_list(port, 0)
        dist.destroy_process_group()
        os.environ["MASTER_PORT"] = str(port[0])
    os.environ["MASTER_PORT"] = before
    assert loaded() == []


def children(found: dict[str, str | None], rank: int) -> None:
    """Children of rank 1 have its variables. A torchrun that rank 0 starts sets its own."""
    if rank == 0:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
        command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", sys.argv[0]]
        child = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        assert child.stdout.decode().count("below fine") == 2, child.stdout
        return
    show = f"import os, torch; print({{n: os.environ.get(n) for n in {NAMES!r}}})"
    child = subprocess.run([sys.executable, "-c", show], stdout=subprocess.PIPE, check=True)
    assert child.stdout.decode().strip() == str(found)
    loader = DataLoader([0], num_workers=1, multiprocessing_context="spawn", collate_fn=seen)
    assert next(iter(loader)) == found


def below() -> None:
    assert dist.is_mpi_available()
    dist.init_process_group("gloo")
    x = torch.full((1,), 1.0 + dist.get_rank())
    dist.all_reduce(x)
    assert (x.item(), dist.get_world_size()) == (3, 2)
    dist.destroy_process_group()
    assert loaded() == []
    dist.init_process_group("mpi")  # torchrun is nearer than the mpirun above it
    dist.all_reduce(x)
    assert (x.item(), dist.get_world_size()) == (6, 2)
    dist.destroy_process_group()
    print("below fine", flush=True)


def mpi(found: dict[str, str | None], rank: int) -> None:
    """The core and MPI agree with what was told, and a caller may give the same numbers."""
    from paddlempi import _native
    from paddlempi_bootstrap import mpi_launcher

    started, core = mpi_launcher.find(), _native.control("launcher")
    assert started is not None
    for name, value in started._asdict().items():
        assert core[name] == value, (name, core[name], value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dist.init_process_group("mpi", rank=rank, world_size=2)
    assert (dist.get_rank(), dist.get_world_size()) == (rank, 2)
    assert os.environ["MASTER_PORT"] != found["MASTER_PORT"], "it must be the port of the store"
    dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        below()
        return
    found = told()
    rank = int(str(found["RANK"]))
    gloo(rank)
    children(found, rank)
    mpi(found, rank)
    print("done", flush=True)


if __name__ == "__main__":
    main()
