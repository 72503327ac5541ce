"""Parameter servers on two hosts: the values, the way of the bytes, a cut cable and a death."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import reports
from conftest import ALL
from hosts import Hosts, wait_for
from mpis import MPI, NAMES, ROOT

LAYOUT = (("h1", 2), ("h2", 1))
KNOWN_WITHIN = 5.0  # seconds; docs/reliability.md promises it
WRITTEN = 7.0  # until a rank of this crowded machine has raised and written its report

# A push of ranks_ps.py has 30,000 rows of 32 floats, and so has a pull.
MANY_BYTES = 30_000 * (32 * 4 + 8)


@pytest.mark.parametrize("mpi", NAMES if ALL else NAMES[1:2], indirect=True)
def test_rows_that_travel_between_hosts_are_those_of_one_process(mpi: MPI, hosts: Hosts) -> None:
    """The rows are messages, and test_hosts.py asks every MPI for those."""
    with reports.directory(hosts) as place:
        program = [reports.HERE / "ranks_ps.py", place, "values"]
        result = mpi.run(hosts, (("h1", 1), ("h2", 1)), program, timeout=60)
        found = reports.read(place)
    assert result.code == 0 and not result.timed_out, str(result)
    assert not result.strays, str(result)
    for roles, of_ranks in enumerate(zip(*(report["trained"] for report in found), strict=True)):
        trainers = [facts for facts in of_ranks if facts]
        assert len(trainers) == (2 if roles == 2 else 1), found
        for facts in trainers:
            assert facts["same"], found
            moved = facts["bytes"]
            assert moved["mpi"] > MANY_BYTES and moved["shared"] == 0, found
            assert (moved["local"] > MANY_BYTES) == (roles == 2), found


def strike(
    mpi: MPI, hosts: Hosts, mode: str, options: Sequence[str] = ()
) -> tuple[list[reports.Any], float, str]:
    """Run ranks_ps.py, whose training is to end with an error; cut the cable of h2 for "cut".

    Return the reports, when the fault was, and what the launcher printed.
    """
    at = 0.0
    mpirun, *arguments = mpi.mpirun(hosts, LAYOUT)
    with reports.directory(hosts) as place, ThreadPoolExecutor(1) as pool:
        job = pool.submit(
            hosts.execute,
            [mpirun, *options, *arguments, mpi.python, reports.HERE / "ranks_ps.py", place, mode],
            timeout=50,
            env=mpi.environment(),
        )
        assert any(len(reports.read(place)) == 3 for _ in wait_for(30) if not job.done()), (
            job.result()
        )
        time.sleep(0.5)
        if mode == "cut":
            at = time.time()
            hosts.cut("h2")
            try:
                assert any(all("error" in r for r in reports.read(place)) for _ in wait_for(20)), (
                    reports.read(place)
                )
            finally:
                hosts.heal("h2")
        result = job.result()
        found = reports.read(place)
    assert not result.timed_out, f"{found}\n{result}"
    return found, at, str(result)


def test_a_cut_cable_ends_all_waits(mpi: MPI, hosts: Hosts) -> None:
    found, at, printed = strike(mpi, hosts, "cut")
    for report in found:
        assert report["error"] == "PeerDiedError", f"{found}\n{printed}"
        other = [2] if report["rank"] < 2 else [0, 1]
        assert report["ranks"] and set(report["ranks"]) <= set(other), found
        assert report["time"] - at < KNOWN_WITHIN + WRITTEN, found
        if report["rank"] < 2:
            assert [one.get("ranks") for one in report["then"]] == [[2], [2]], found
            assert report["waited"] < WRITTEN, found


def test_a_killed_server_ends_all_waits(openmpi: MPI, hosts: Hosts) -> None:
    # The others end the job, or every rank that loses a connection, when a rank is killed.
    found, _, printed = strike(openmpi, hosts, "kill", ["--with-ft", "ulfm"])
    struck_at = max(report["time"] for report in found if report["rank"] == 2)
    for report in found[:2]:
        assert report.get("error") == "PeerDiedError", f"{found}\n{printed}"
        assert report["ranks"] == [2], found
        assert report["time"] - struck_at < 1.0 + KNOWN_WITHIN + WRITTEN, found
        # Both trainers come to the barrier, and MPI may know of the death before the group does.
        barrier, complete = report["then"]
        assert barrier.get("ranks") in (None, [2]) and complete.get("ranks") == [2], found
        assert report["waited"] < WRITTEN + KNOWN_WITHIN, found


def test_a_transpiled_program_is_that_of_one_process(openmpi: MPI, hosts: Hosts) -> None:
    """A trainer and a server on either host, and a master; the program compares the losses."""
    program = ROOT / "examples" / "train_ps_words.py"
    roles = "trainer:1,pserver:1,trainer:1,pserver:1,master:1"
    with reports.directory(hosts) as place:
        alone = [openmpi.python, program, "--shards=4", "--trainers=2", f"--out={place}/one"]
        subprocess.run(alone, check=True, env=openmpi.environment(), timeout=60)
        run = ["-m", "paddlempi", "run", "--roles", roles, program, "--shards=4"]
        result = openmpi.run(
            hosts,
            (("h1", 2), ("h2", 3)),
            [*run, f"--beside={place}/one", "--near=1e-3"],
            timeout=90,
        )
    assert result.code == 0 and not result.timed_out, str(result)
    assert not result.strays, str(result)
    assert "; of one process " in str(result), str(result)
