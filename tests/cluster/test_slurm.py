"""Ranks on two nodes of a Slurm: started by srun, by mpirun in a batch job, by a wrong srun."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import expectations
import pytest
import reports
from conftest import ALL
from hosts import Hosts, Result
from mpis import MPI, NAMES, ROOT
from slurm import Slurm

# The plugins of `srun --mpi` that each MPI can use.
SPOKEN = [("openmpi", "pmix"), ("mpich", "pmi2"), ("impi", "pmix"), ("impi", "pmi2")]

# With these every rank would be a world of its own. MPICH with pmix would abort in MPI_Init.
NOT_SPOKEN = [
    ("openmpi", "pmi2"),
    ("openmpi", "none"),
    ("mpich", "none"),
    ("mpich", "pmix"),
    ("impi", "none"),
]

FIRST_SPOKEN = [("openmpi", "pmix"), ("mpich", "pmi2"), ("impi", "pmi2")]

# Every MPI passes a status on; that an exception is one, and is printed, is the library's.
ENDS = [(*spoken, "exit") for spoken in FIRST_SPOKEN]
ENDS += [(*spoken, "raise") for spoken in (FIRST_SPOKEN if ALL else FIRST_SPOKEN[:1])]

# The front of Paddle knows no launcher and no MPI.
TRAINED = [FIRST_SPOKEN[0], *((name, "mpirun") for name in NAMES if ALL)]


def environment(mpi: MPI, plugin: str) -> dict[str, str]:
    env = mpi.environment()
    if (mpi.name, plugin) == ("impi", "pmix"):
        # Intel MPI has no PMIx client of its own and loads Slurm's from this directory.
        (library,) = Path("/usr/lib").glob("*/pmix2/lib")
        env["LD_LIBRARY_PATH"] = str(library)
    return env


def srun(
    slurm: Slurm, mpi: MPI, plugin: str, *program: str | Path, ranks: int = 2, timeout: float = 60
) -> Result:
    """Run a program on both nodes, with `ranks` ranks on each."""
    command = [mpi.python, *program]
    env = environment(mpi, plugin)
    return slurm.srun(plugin, 2, ranks, command, timeout=timeout, env=env)


@pytest.mark.parametrize(("mpi", "plugin"), SPOKEN, indirect=["mpi"])
def test_srun_makes_one_world(slurm: Slurm, hosts: Hosts, mpi: MPI, plugin: str) -> None:
    with reports.directory(hosts) as place:
        result = srun(slurm, mpi, plugin, reports.HERE / "ranks_world.py", place)
        found = reports.read(place)
    assert result.code == 0 and not result.timed_out and not result.strays, str(result)
    expectations.assert_two_by_two(found)
    expectations.assert_results_right(found)
    expectations.assert_errors_everywhere(found)


@pytest.mark.parametrize(("mpi", "plugin"), NOT_SPOKEN, indirect=["mpi"])
def test_srun_with_a_plugin_the_mpi_does_not_speak_is_an_error(
    slurm: Slurm, hosts: Hosts, mpi: MPI, plugin: str
) -> None:
    with reports.directory(hosts) as place:
        result = srun(slurm, mpi, plugin, reports.HERE / "ranks_world.py", place, ranks=1)
        found = reports.read(place)
    assert result.code != 0 and not result.timed_out, str(result)
    assert [r["start"]["error"] for r in found] == ["LauncherError"] * 2, str(result)
    (way_out,) = (spoken for name, spoken in FIRST_SPOKEN if name == mpi.name)
    assert all(f"--mpi={way_out}" in r["start"]["message"] for r in found), found


def test_mpirun_in_a_batch_job_makes_one_world(slurm: Slurm, hosts: Hosts, mpi: MPI) -> None:
    with reports.directory(hosts) as place:
        program = [mpi.python, reports.HERE / "ranks_world.py", place]
        command = shlex.join(["mpirun", "-np", "4", *(str(word) for word in program)])
        result = slurm.sbatch(2, 2, command, timeout=60, env=mpi.environment())
        found = reports.read(place)
    assert result.code == 0 and not result.timed_out, str(result)
    expectations.assert_two_by_two(found)
    expectations.assert_results_right(found)


@pytest.mark.parametrize(("mpi", "plugin", "way"), ENDS, indirect=["mpi"])
def test_a_rank_that_fails_ends_the_srun_job(
    slurm: Slurm, hosts: Hosts, mpi: MPI, plugin: str, way: str
) -> None:
    with reports.directory(hosts) as place:
        result = srun(slurm, mpi, plugin, reports.HERE / "ranks_exit.py", place, way, timeout=30)
        found = reports.read(place)
    assert not result.timed_out, str(result)
    assert len(found) == 1, f"{found}\n{result}"
    assert result.ended - found[0]["left"] < 15, str(result)
    status = 3 if way == "exit" else 1
    # srun ends with 137 if it knows only that it killed the ranks. MPI's message has the status.
    told = result.code == status or (result.code == 137 and f"Abort({status})" in result.text)
    assert told, str(result)
    if way == "raise":
        assert "ValueError: rank 1 gave up" in result.err, str(result)


@pytest.mark.parametrize(("mpi", "plugin"), FIRST_SPOKEN[:1], indirect=["mpi"])
def test_a_rank_ends_before_init(slurm: Slurm, mpi: MPI, plugin: str) -> None:
    """Its host's other rank names it, and the other host's ranks end at the deadline, too."""
    result = srun(slurm, mpi, plugin, reports.HERE / "ranks_before_init.py", timeout=30)
    assert not result.timed_out and not result.strays, str(result)
    assert result.code == 1, str(result)
    (line,) = result.out.splitlines()
    named = r"rank 0: init: after 3\.\d s (local )?rank\(s\) \[1\] of the 2 ranks of this host had"
    assert re.match(named, line), str(result)
    for rank in (2, 3):
        text = rf"rank {rank} has waited for \S+ s in MPI_Init: all 2 ranks of this host have"
        assert re.search(text, result.err), str(result)


@pytest.mark.parametrize(("mpi", "plugin"), TRAINED, indirect=["mpi"])
def test_train_runs_on_two_hosts(slurm: Slurm, mpi: MPI, plugin: str) -> None:
    program = ROOT / "examples" / "train.py"
    if plugin == "mpirun":
        result = mpi.run(slurm.hosts, (("h1", 2), ("h2", 2)), [program], timeout=120)
    else:
        result = srun(slurm, mpi, plugin, program, timeout=120)
    expectations.assert_trained(result)
