"""Ranks that start their MPI themselves (PADDLEMPI_TRANSPORT=mpi), here all on one host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from contract import MPI, WHEEL
from fresh_signals import take_signals
from outside import environment
from paddlempi.testing import launch

# arguments: rank, number of ranks, the file in which they meet, and what happens
PROGRAM = """
import ctypes, os, signal, sys, time
import numpy as np
import paddlempi as dist
from paddlempi import _native

rank, size, meeting, what = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5]
given = {"rank": rank, "world_size": size, "init_method": f"file://{meeting}", "timeout": 30.0}

def total():
    x = np.full(5000, rank + 1.0)
    dist.all_reduce(x)
    return x[4999]

library = None
if what == "alone before" and rank == 1:
    library = ctypes.CDLL(_native.control("info", sys_prefix=sys.prefix)["mpi"]["path"])
    library.MPI_Init_thread(None, None, 3, ctypes.byref(ctypes.c_int()))
try:
    for _ in range(2):  # the second world finds MPI running
        dist.init_process_group(**given)
        assert total() == size * (size + 1) / 2
        core = _native.control("info")
        assert (core["transport"], core["local_size"]) == ("mpi", size), core
        assert not [name for name in os.environ if name.startswith("PMI_")]
        if what != "sum":
            break
        dist.destroy_process_group()
    if what == "spawn":
        dist.spawn([sys.executable, "-c", ""], 1)
    if what == "exit" and rank == 1:
        sys.exit(5)
    while what == "exit":
        total()
    print("right", flush=True)
except dist.Error as error:
    print(type(error).__name__, error, flush=True)
    if library:
        library.MPI_Finalize()
    sys.exit(3)
"""


def found() -> dict[str, str]:
    """Return the variables by which ranks find an MPI that is in no wheel."""
    if WHEEL:
        return {}
    here = Path(launch.mpirun_path()).resolve().parent
    root = here.parent
    folders = [*root.glob("usr/lib/*-linux-gnu"), *root.glob("lib/*-linux-gnu"), here]
    name = "libmpi.so.40" if MPI == "openmpi" else "libmpich.so.12"
    library = next(folder / name for folder in folders if (folder / name).exists())
    path = ":".join(map(str, folders))
    return {"LD_LIBRARY_PATH": path, "PADDLEMPI_MPI": str(library)}


def job(tmp_path: Path, what: str, size: int = 3) -> tuple[list[int], list[str]]:
    """Run the program on `size` ranks. Return statuses and outputs."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    env = environment() | {"PADDLEMPI_TRANSPORT": "mpi", **found()}
    words = [str(size), str(tmp_path / "meeting"), what]
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), *words],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=take_signals,
        )
        for rank in range(size)
    ]
    try:
        outputs = [p.communicate(timeout=60)[0] for p in processes]
    finally:
        for p in processes:
            p.kill()
            p.communicate()
    return [p.returncode for p in processes], outputs


def test_open_mpi_cannot(tmp_path: Path) -> None:
    statuses, outputs = job(tmp_path, "sum")
    assert statuses == [3] * 3, outputs
    for output in outputs:
        assert output.startswith("LauncherError"), output
        assert "pip install mpich, or pip install impi-rt" in output


def test_two_worlds(tmp_path: Path) -> None:
    statuses, outputs = job(tmp_path, "sum")
    assert (statuses, outputs) == ([0] * 3, ["right\n"] * 3)


def test_what_only_mpirun_can(tmp_path: Path) -> None:
    statuses, outputs = job(tmp_path, "spawn", size=2)
    assert statuses == [3] * 2, outputs
    assert all(o.startswith("UnsupportedError") and "no mpirun has started" in o for o in outputs)


def test_an_exit_ends_no_other_rank(tmp_path: Path) -> None:
    statuses, outputs = job(tmp_path, "exit")
    assert statuses == [3, 5, 3], outputs
    for rank in (0, 2):
        assert outputs[rank].startswith("PeerDiedError") and "[1]" in outputs[rank], outputs[rank]


def test_an_mpi_that_was_started_alone_before(tmp_path: Path) -> None:
    statuses, outputs = job(tmp_path, "alone before", size=2)
    assert statuses == [3, 3], outputs
    for output in outputs:
        assert output.startswith("LauncherError"), output
        assert "mpi4py" in output and "as rank 0 of a job of 1" in output
