"""Ranks on two hosts under every MPI, started by its mpirun."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import expectations
import pytest
import reports
from hosts import Hosts, wait_for
from mpis import MPI, NAMES, ROOT

TWO_BY_TWO = (("h1", 2), ("h2", 2))


@pytest.fixture(scope="session")
def run_world(hosts: Hosts) -> Callable[[MPI], expectations.Reports]:
    """A function that runs ranks_world.py once for each MPI and returns its reports."""

    @functools.cache
    def run(mpi: MPI) -> expectations.Reports:
        with reports.directory(hosts) as place:
            result = mpi.run(
                hosts, TWO_BY_TWO, [reports.HERE / "ranks_world.py", place], timeout=60
            )
            assert result.code == 0 and not result.timed_out, str(result)
            assert not result.strays, str(result)
            return reports.read(place)

    return run


@pytest.fixture
def world(mpi: MPI, run_world: Callable[[MPI], expectations.Reports]) -> expectations.Reports:
    return run_world(mpi)


def test_world_and_local_ranks_are_right(world: expectations.Reports) -> None:
    expectations.assert_two_by_two(world)


def test_collectives_and_messages_across_hosts_are_right(world: expectations.Reports) -> None:
    expectations.assert_results_right(world)


def test_a_mismatch_and_a_refusal_raise_on_every_host(world: expectations.Reports) -> None:
    expectations.assert_errors_everywhere(world)


def test_a_rank_that_never_comes_is_named_on_every_host(mpi: MPI, hosts: Hosts) -> None:
    with reports.directory(hosts) as place:
        program = [reports.HERE / "ranks_missing.py", place]
        result = mpi.run(hosts, TWO_BY_TWO, program, timeout=60)
        found = reports.read(place)
    assert not result.timed_out, str(result)
    assert [r["rank"] for r in found] == [0, 1, 2], str(result)
    assert [r["error"] for r in found] == ["TimeoutError"] * 3
    assert [r["ranks"] for r in found] == [[3]] * 3
    assert all("all_reduce" in r["message"] for r in found)
    assert all(1.4 < r["seconds"] < 12 for r in found), found
    assert [r["afterwards"]["error"] for r in found] == ["GroupBrokenError"] * 3


@pytest.mark.parametrize("how", ["deadline", "interrupt"])
def test_a_rank_that_gives_up_is_named_on_every_host(mpi: MPI, hosts: Hosts, how: str) -> None:
    with reports.directory(hosts) as place:
        program = [reports.HERE / "ranks_giveup.py", place, how]
        result = mpi.run(hosts, TWO_BY_TWO, program, timeout=60)
        first, *others = reports.read(place)
    assert not result.timed_out, str(result)
    assert first["error"] == {"deadline": "TimeoutError", "interrupt": "KeyboardInterrupt"}[how]
    assert [r["rank"] for r in others] == [1, 2, 3], str(result)
    assert [r["error"] for r in others] == ["GroupBrokenError"] * 3, others
    assert [r["ranks"] for r in others] == [[0]] * 3, others
    assert all(r["seconds"] < 1.5 + 2 for r in others), others


def test_a_rank_that_has_left_is_named_in_meetings_on_every_host(mpi: MPI, hosts: Hosts) -> None:
    result = mpi.run(hosts, TWO_BY_TWO, [reports.HERE / "ranks_meet.py"], timeout=60)
    assert result.code == 0 and not result.timed_out, str(result)
    assert str(result).count("'error': 'PeerLeftError'") == 6, str(result)


# Intel MPI is left out. Its MPI_Iallreduce does not return while the link is down: it injects small
# messages, and libfabric's tcp provider refuses them until the earlier ones have been sent.
@pytest.mark.parametrize("mpi", ["openmpi", "mpich"], indirect=True)
def test_a_cut_cable_is_a_timeout_that_names_the_other_host(mpi: MPI, hosts: Hosts) -> None:
    with reports.directory(hosts) as place, ThreadPoolExecutor(1) as pool:
        program = [reports.HERE / "ranks_cut.py", place]
        job = pool.submit(mpi.run, hosts, TWO_BY_TWO, program, timeout=40)
        try:
            assert any(len(reports.read(place)) == 4 for _ in wait_for(20) if not job.done())
            hosts.cut("h2")
            failed = any(
                job.done() or all(r["error"] for r in reports.read(place)) for _ in wait_for(10)
            )
        finally:
            hosts.heal("h2")
        result = job.result()
        found = reports.read(place)
    assert failed and not result.timed_out, f"{found}\n{result}"
    assert [r["error"] for r in found] == ["TimeoutError"] * 4, f"{found}\n{result}"
    assert [r["ranks"] for r in found] == [[2, 3], [2, 3], [0, 1], [0, 1]], found


# Intel MPI has the ABI of MPICH, and the other tests here show what it does between hosts.
@pytest.mark.parametrize("mpi", NAMES if "TEST_ALL" in os.environ else NAMES[:2], indirect=True)
def test_train_runs_on_two_hosts(mpi: MPI, hosts: Hosts) -> None:
    result = mpi.run(hosts, TWO_BY_TWO, [ROOT / "examples" / "train.py"], timeout=120)
    expectations.assert_trained(result)
