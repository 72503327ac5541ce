"""What must not be taken for the death of a rank, and deaths that must be seen all the same.

Other deaths are in the matrix (``tests/jobs/faults``).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import job
import pytest

HERE = str(Path(__file__).parent)

SURVIVE = ("--with-ft", "ulfm")
"""What lets the other ranks live when one dies. Only Open MPI's launcher has it."""


def lives() -> None:
    from ranks_alive import look_and_work, stop
    from ranks_tools import done, start

    rank = start()
    look_and_work(rank)
    stop(rank)
    done()


def lives_apart() -> None:
    from ranks_alive import enter_a_namespace, look_and_work, stop
    from ranks_tools import done, start

    enter_a_namespace()
    rank = start()
    look_and_work(rank)
    stop(rank)
    done()


def dies() -> None:
    from ranks_alive import die, look_and_work
    from ranks_tools import start

    rank = start()
    look_and_work(rank)
    die(rank)


def dies_apart() -> None:
    from ranks_alive import die, enter_a_namespace, look_and_work
    from ranks_tools import start

    enter_a_namespace()
    rank = start()
    look_and_work(rank)
    die(rank)


@pytest.fixture
def namespaces() -> None:
    unshare = ["unshare", "-U", "-r", "-p", "-f", "--mount-proc", "true"]
    if subprocess.run(unshare, capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no user and PID namespaces")


def test_a_rank_that_opens_and_closes_its_files_lives() -> None:
    job.succeed(3, lives, path=HERE)


@pytest.mark.launcher("every rank goes on as another program, in namespaces")
@pytest.mark.usefixtures("namespaces")
def test_a_rank_in_a_pid_namespace_lives() -> None:
    # Debian's MPICH uses UCX, which opens shared memory through /proc unless told otherwise.
    job.succeed(3, lives_apart, path=HERE, env={"UCX_POSIX_USE_PROC_LINK": "n"})


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_a_death_is_seen_while_children_live_on() -> None:
    ended = job.run(3, dies, path=HERE, options=SURVIVE)
    for rank in (0, 1):
        ended.stamp(f"raised-{rank}")


@pytest.mark.launcher("every rank goes on as another program, in namespaces", only=["openmpi"])
@pytest.mark.usefixtures("namespaces")
def test_a_death_is_seen_in_pid_namespaces() -> None:
    ended = job.run(3, dies_apart, path=HERE, options=SURVIVE)
    for rank in (0, 1):
        ended.stamp(f"raised-{rank}")
