"""How the backends' names come into torch, and a world of size 1 without a launcher."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a folder that makes the package look installed to Python, with its entry point."""
    folder = tmp_path / "paddlempi-0.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: paddlempi\nVersion: 0.0\n")
    (folder / "entry_points.txt").write_text(
        "[torch.backends]\npaddlempi = paddlempi_bootstrap.torch_autoload:autoload\n"
    )
    return tmp_path


def run(
    program: Callable[[], object], folder: Path, *command: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the body of a function, without a launcher, by ``command`` (default: this Python)."""
    body = inspect.getsource(program).partition("\n")[2]
    script = folder / f"{program.__name__}.py"
    script.write_text(textwrap.dedent(body))
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *command, str(script)],
        env={**os.environ, "PYTHONPATH": path, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


def succeed(program: Callable[[], object], folder: Path, **env: str) -> None:
    done = run(program, folder, **env)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("done\n"), done.stdout


def lazily() -> None:
    import os
    import sys

    import torch
    import torch.distributed as dist

    def loaded() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] == "paddlempi"]

    before = dict(os.environ)
    assert "paddlempi_bootstrap.torch_autoload" in sys.modules
    assert dist.is_mpi_available()
    for name in ("mpi", "MPI", "paddlempi", "PADDLEMPI"):
        assert dist.is_backend_available(name.lower())
        assert dist.Backend(name) == name.lower()
    # A program that uses another backend never loads paddlempi.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.new_group([0], backend="gloo")
    dist.monitored_barrier(group)
    dist.destroy_process_group()
    assert loaded() == []
    assert os.environ == before

    for name in ("mpi", "MPI", "PaddleMPI", "cpu:mpi", "cpu:gloo,cuda:mpi"):
        dist.init_process_group(name)
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
        assert dist.get_backend() == name.lower()
        x = torch.arange(3.0)
        dist.all_reduce(x)
        assert x.tolist() == [0.0, 1.0, 2.0]
        dist.destroy_process_group()
    assert loaded() != []
    assert "RANK" not in os.environ, "it must not be set without a launcher"

    print("done")


def test_import_torch_alone(installed: Path) -> None:
    succeed(lazily, installed)


def explicitly() -> None:
    import sys

    import torch.distributed as dist
    from torch.distributed import init_process_group, monitored_barrier, new_group, split_group

    assert "paddlempi_bootstrap.torch_autoload" not in sys.modules
    assert not dist.is_mpi_available()

    import paddlempi.torch

    assert not sys.modules["paddlempi._native"].loaded(), "without a launcher it is not needed"
    assert dist.is_mpi_available()
    init_process_group("mpi")
    monitored_barrier()
    for group in (new_group([0]), split_group(split_ranks=[[0]])):
        assert type(group) is paddlempi.torch.ProcessGroupMPI
        assert dist.get_backend(group) == "mpi"
    dist.destroy_process_group()
    print("done")


def test_explicit_import_where_loading_is_off(installed: Path) -> None:
    succeed(explicitly, installed, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
