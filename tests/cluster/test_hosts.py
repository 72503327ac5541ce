"""Ranks on two hosts under every MPI, started by its mpirun."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import expectations
import pytest
import reports
from hosts import Hosts, wait_for
from mpis import MPI

TWO_BY_TWO = (("h1", 2), ("h2", 2))


Run = Callable[[MPI, str], expectations.Reports]


@pytest.fixture(scope="session")
def run_once(hosts: Hosts) -> Run:
    """A function that runs a program once for each MPI and returns its reports."""

    @functools.cache
    def run(mpi: MPI, program: str) -> expectations.Reports:
        with reports.directory(hosts) as place:
            result = mpi.run(hosts, TWO_BY_TWO, [reports.HERE / program, place], timeout=60)
            assert result.code == 0 and not result.timed_out, str(result)
            assert not result.strays, str(result)
            return reports.read(place)

    return run


@pytest.fixture
def world(mpi: MPI, run_once: Run) -> expectations.Reports:
    return run_once(mpi, "ranks_world.py")


@pytest.fixture
def troubles(mpi: MPI, run_once: Run) -> expectations.Reports:
    found = run_once(mpi, "ranks_giveup.py")
    assert [r["rank"] for r in found] == [0, 1, 2, 3], found
    return found


def test_world_and_local_ranks_are_right(world: expectations.Reports) -> None:
    expectations.assert_two_by_two(world)


def test_collectives_and_messages_across_hosts_are_right(world: expectations.Reports) -> None:
    expectations.assert_results_right(world)


def test_a_mismatch_and_a_refusal_raise_on_every_host(world: expectations.Reports) -> None:
    expectations.assert_errors_everywhere(world)


def test_a_rank_that_never_comes_is_named_on_every_host(troubles: expectations.Reports) -> None:
    found = [r["missing"] for r in troubles[:3]]
    assert [r["error"] for r in found] == ["TimeoutError"] * 3, found
    assert [r["ranks"] for r in found] == [[3]] * 3, found
    assert all("all_reduce" in r["message"] for r in found), found
    assert all(1.4 < r["seconds"] < 12 for r in found), found
    assert [r["afterwards"]["error"] for r in found] == ["GroupBrokenError"] * 3, found


@pytest.mark.parametrize("how", ["deadline", "interrupt"])
def test_a_rank_that_gives_up_is_named_on_every_host(
    troubles: expectations.Reports, how: str
) -> None:
    first, *others = [r[how] for r in troubles]
    assert first["error"] == {"deadline": "TimeoutError", "interrupt": "KeyboardInterrupt"}[how]
    assert [r["error"] for r in others] == ["GroupBrokenError"] * 3, others
    assert [r["ranks"] for r in others] == [[0]] * 3, others
    assert all(r["seconds"] < 1.5 + 2 for r in others), others


def test_a_rank_that_has_left_is_named_in_meetings_on_every_host(
    troubles: expectations.Reports,
) -> None:
    for report in troubles[:3]:
        assert report["left"].keys() == {"new_group", "monitored_barrier"}, report
        for facts in report["left"].values():
            assert (facts["error"], facts["ranks"]) == ("PeerLeftError", [3]), report
            assert facts["seconds"] < 4, report


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
