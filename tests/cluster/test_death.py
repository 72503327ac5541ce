"""Three hosts, of which one dies, is cut off, or only stops: what the ranks of the others learn."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import reports
from expectations import Reports
from hosts import Hosts, Result, wait_for
from mpis import MPI

LAYOUT = (("h1", 1), ("h2", 2), ("h3", 1))
ON_H2, ELSEWHERE = [1, 2], [0, 3]
KNOWN_WITHIN = 5.0  # seconds; docs/reliability.md promises it
WRITTEN = 1.0  # until a rank of this crowded machine has raised and written its report

STOPPED = 7.0  # seconds, in ranks_death.py


def run(
    mpi: MPI,
    three: Hosts,
    mode: str,
    meanwhile: Callable[[Path], None],
    options: list[str] | None = None,
) -> tuple[Result, Reports]:
    """Run ranks_death.py in a mode, and `meanwhile` once all ranks have begun."""
    mpirun, *arguments = mpi.mpirun(three, LAYOUT)
    with reports.directory(three) as place, ThreadPoolExecutor(1) as pool:
        program = [mpi.python, reports.HERE / "ranks_death.py", place, mode]
        job = pool.submit(
            three.execute,
            [mpirun, *(options or []), *arguments, *program],
            timeout=50,
            env=mpi.environment(),
        )
        assert any(len(reports.read(place)) == 4 for _ in wait_for(30) if not job.done()), (
            job.result()
        )
        meanwhile(place)
        return job.result(), reports.read(place)


def assert_known(
    found: Reports, result: Result, who: list[int], dead: list[int], at: float
) -> None:
    """Assert that each rank of `who` named ranks of `dead`, soon after the time `at`."""
    for report in (r for r in found if r["rank"] in who):
        assert report.get("error") == "PeerDiedError", f"{found}\n{result}"
        assert report["ranks"] and set(report["ranks"]) <= set(dead), found
        assert report["time"] - at < KNOWN_WITHIN + WRITTEN, f"{report['time'] - at}: {found}"


def test_a_host_that_is_cut_off_is_named_on_all_others(mpi: MPI, three: Hosts) -> None:
    cut_at = 0.0

    def cut(place: Path) -> None:
        nonlocal cut_at
        cut_at = time.time()
        three.cut("h2")
        try:  # until all have reported: some MPIs cannot end without the network
            assert any(all("error" in r for r in reports.read(place)) for _ in wait_for(15))
        finally:
            three.heal("h2")

    result, found = run(mpi, three, "cut", cut)
    assert_known(found, result, ELSEWHERE, ON_H2, cut_at)
    assert_known(found, result, ON_H2, ELSEWHERE, cut_at)
    for report in found:
        silent = "h2" if report["rank"] in ELSEWHERE else "h[13]"
        assert re.search(f"host {silent} cannot be reached", report["message"]), found


def test_killed_ranks_are_named_on_the_other_hosts(openmpi: MPI, three: Hosts) -> None:
    # The others end the job, or every rank that loses a connection, when a rank is killed.
    result, found = run(openmpi, three, "kill", lambda _: None, ["--with-ft", "ulfm"])
    assert not result.timed_out, str(result)
    killed_at = max(report["time"] for report in found if report["rank"] in ON_H2)
    for report in (found[0], found[-1]):
        # This MPI sees it too, often first, and does not say who it was.
        assert report.get("error") == "PeerDiedError", f"{found}\n{result}"
        assert report["ranks"] and set(report["ranks"]) <= {1, 2}, found
        assert "all_reduce(float32[4], SUM)" in report["message"], found
        assert "on host h2 has ended" in report["message"], found
        assert sorted(report["dead"]) == ["1", "2"], found
        assert all("its process on host h2 has ended" in why for why in report["dead"].values())
        assert report["time"] - killed_at < KNOWN_WITHIN + WRITTEN, found


def test_a_rank_that_is_stopped_is_not_dead(openmpi: MPI, three: Hosts) -> None:
    # The connections on which silence is a death are the library's.
    result, found = run(openmpi, three, "stop", lambda _: None)
    assert result.code == 0 and not result.timed_out, str(result)
    assert [report["error"] for report in found] == [None] * 4, found
    assert found[0]["time"] - found[0]["began"] > STOPPED, found
