"""What ``python -m paddlempi doctor`` and ``info`` print in real jobs, with the fake driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import interposed
import pytest
from paddlempi.testing import launch

DOCTOR = [sys.executable, "-m", "paddlempi", "doctor"]


@pytest.fixture(scope="module")
def mpi(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build an MPI that says that it takes CUDA memory, and does. Return its path."""
    return str(interposed.build(tmp_path_factory.mktemp("doctor")))


def doctor(*options: str, ranks: int = 2, status: int = 0, **settings: str) -> str:
    """Run the doctor as a job and return what it prints."""
    env = {**os.environ, **settings}
    ended = launch.run(ranks, [*DOCTOR, *options], timeout=100, env=env)
    assert not ended.timed_out and bool(ended.returncode) == bool(status), ended.output
    return ended.stdout


def findings(text: str) -> dict[str, dict[str, Any]]:
    """Return the findings of ``--json`` by name."""
    return {finding["name"]: finding for finding in json.loads(text)["findings"]}


def test_two_ranks() -> None:
    text = doctor()
    for line in (
        "2 ranks, as many as MPI says",
        "threads     multiple",
        "float32 and float64: right",
        "CUDA 12.4",
        "rank 0: device 0, Fake CUDA device 0",
        "rank 1: device 1, Fake CUDA device 1",
        "no: asked: MPIX_Query_cuda_support says 0",
        "1 MiB of the next rank's GPU memory was mapped and read",
        "all reach each other",
        "rank 1: to the GPU",
        "all_reduce: ipc",
        "0 failed",
    ):
        assert line in text, text


def test_an_mpi_that_takes_gpu_memory(mpi: str) -> None:
    found = findings(doctor("--json", PADDLEMPI_MPI=mpi))
    assert found["cuda-aware"]["status"] == "ok"
    assert "1 MiB went from rank to rank" in found["cuda-aware"]["found"]


def test_an_mpi_that_claims_to_take_it(mpi: str) -> None:
    settings = {"PADDLEMPI_MPI": mpi, "PMPI_INTERPOSED": "closed"}
    found = findings(doctor("--json", **settings))
    assert found["cuda-aware"]["status"] == "warn"
    assert "the child process that tried it" in found["cuda-aware"]["found"]
    # If the user says that this MPI takes it, the doctor reports the failure and goes on.
    found = findings(doctor("--json", PADDLEMPI_CUDA_AWARE="1", status=1, **settings))
    assert found["cuda-aware"]["status"] == "fail"


def test_one_gpu_for_two_ranks_without_ipc_or_peers() -> None:
    settings = {"PMPI_FAKECUDA_DEVICES": "1", "PMPI_FAKECUDA_IPC": "0"}
    found = findings(doctor("--json", **settings))
    assert "ranks 0-1 share GPU-" in found["shared gpu"]["found"]
    assert found["ipc"]["status"] == "warn" and "--ipc=host" in found["ipc"]["advice"]
    assert "all_reduce: staged" in found["gpu path"]["found"]
    found = findings(doctor("--json", PMPI_FAKECUDA_PEER="0"))
    assert found["peer access"]["status"] == "warn"


def test_a_path_that_cannot_serve() -> None:
    found = findings(doctor("--json", PADDLEMPI_CUDA_PATHS="direct", status=1))
    assert found["gpu path"]["status"] == "fail"


def test_a_driver_that_is_too_old() -> None:
    found = findings(doctor("--json", PMPI_FAKECUDA_VERSION="10020", status=1))
    assert found["cuda"]["status"] == "fail" and "10.2" in found["cuda"]["found"]


def alone(**settings: str | None) -> subprocess.CompletedProcess[str]:
    """Run the doctor without a launcher."""
    env = {**os.environ, **settings}
    kept = {name: value for name, value in env.items() if value is not None}
    return subprocess.run(
        DOCTOR, env=kept, capture_output=True, text=True, timeout=100, check=False
    )


def test_without_launcher_and_gpu() -> None:
    ended = alone(PADDLEMPI_CUDA=None, CUDA_VISIBLE_DEVICES=None)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "none: a job of one" in ended.stdout
    assert "skip  cuda        no CUDA driver" in ended.stdout


def test_what_the_user_named_is_not_there(tmp_path: Path) -> None:
    ended = alone(PADDLEMPI_CUDA=str(tmp_path / "libcuda.so"))
    assert ended.returncode == 1
    assert "fail  cuda        no CUDA driver" in ended.stdout
    ended = alone(PADDLEMPI_CUDA=None, PADDLEMPI_MPI=str(tmp_path / "libmpi.so"))
    assert ended.returncode == 1, ended.stdout
    assert "fail  mpi" in ended.stdout and "no such file" in ended.stdout


def show() -> None:
    from paddlempi.cli import info, main

    info._torch_backend = lambda: "not looked at, which takes seconds"
    raise SystemExit(main(["info"]))


def test_info_shows_the_driver(mpi: str) -> None:
    ended = launch.run(2, show, timeout=100, env={**os.environ, "PADDLEMPI_MPI": mpi})
    assert ended.returncode == 0, ended.output
    assert "cuda        12.4, " in ended.stdout and "device 1: Fake CUDA device 1" in ended.stdout
    assert "MPI takes GPU memory (tried: " in ended.stdout
