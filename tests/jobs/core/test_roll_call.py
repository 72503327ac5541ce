"""Under a launcher the ranks of a node meet before MPI_Init, in which nothing ends a wait."""

from __future__ import annotations

import re

import job

SOON = {"PADDLEMPI_REPORT_AFTER": "0.4"}


def two_do_not_come() -> None:
    """Rank 1 ends with status 0, rank 2 lives and does something else."""
    import sys

    from paddlempi_bootstrap import mpi_launcher
    from ranks_tools import done, end_first, errors, raises, stamp, stamps, start, wait_until

    place = mpi_launcher.find()
    assert place is not None
    if place.rank != 2:
        end_first(place.rank == 1)
    if place.rank == 2:
        wait_until(lambda: {"raised-0", "raised-3"} <= stamps())
        sys.exit()
    words = ["rank(s) [1 2] of 4", "rank 1 has no process on this host", "process of rank 2,"]
    with raises(errors.TimeoutError, *words, ranks=[1, 2], least=1.0, most=3.0):
        start(timeout=1.2)
    stamp(f"raised-{place.rank}")
    done()


def comes_late() -> None:
    """Others give up, by Ctrl-C and at their deadline, and come again."""
    import os
    import signal
    import threading

    import paddlempi as dist
    from paddlempi_bootstrap import mpi_launcher
    from ranks_tools import done, errors, raises, stamp, stamps, start, wait_until, works

    place = mpi_launcher.find()
    assert place is not None
    if place.rank == 1:
        wait_until(lambda: {"raised-0", "raised-2"} <= stamps())
    else:
        if place.rank == 0:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            with raises(KeyboardInterrupt, most=1.5):
                start()
        with raises(errors.TimeoutError, "every rank must call it", least=0.4):
            start(timeout=0.5)
        stamp(f"raised-{place.rank}")
    for _ in range(2):
        start()
        works()
        dist.destroy_process_group()
    done()


def goes_to_mpi_by_itself() -> None:
    """One rank has mpi4py start MPI, and waits there for the others."""
    from paddlempi_bootstrap import mpi_launcher
    from ranks_tools import done, leave_together, start, works

    place = mpi_launcher.find()
    assert place is not None
    if place.rank == 1:
        from mpi4py import MPI  # noqa: F401
    start(timeout=20.0)
    works()
    done()
    leave_together(place.rank)


def not_all_are_on_this_node() -> None:
    """The launcher does not say who is on this node, so the ranks do not meet. Rank 1 ends."""
    import os

    from paddlempi_bootstrap import mpi_launcher
    from ranks_tools import end_first, start

    place = mpi_launcher.find()
    assert place is not None
    end_first(place.rank == 1)
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        os.environ.pop(name, None)
    start(timeout=2.0)


def test_two_do_not_come() -> None:
    ended = job.run(4, two_do_not_come, env=SOON, timeout=30.0)
    assert ended.result.stdout.count("done\n") == 2, ended.output
    reports = re.findall(r"rank \d has waited for .*", ended.output)
    assert len(reports) == 1, ended.output
    assert "in init_process_group: rank(s) [1 2] of 4 have not called it: rank 1 has" in reports[0]


def test_one_comes_late() -> None:
    job.succeed(3, comes_late, timeout=30.0)


def test_one_goes_to_mpi_by_itself() -> None:
    ended = job.run(2, goes_to_mpi_by_itself, env=SOON, timeout=30.0)
    assert ended.result.stdout.count("done\n") == 2, ended.output


def test_the_watch_over_mpi_init() -> None:
    ended = job.run(2, not_all_are_on_this_node, env=SOON, timeout=30.0)
    assert ended.returncode != 0, ended.output
    text = "rank 0 has waited for .* s in MPI_Init: some ranks of the job have not called"
    assert re.search(text, ended.output), ended.output
    assert "this process ends with status 1, at the deadline of init_process_group (2s)" in (
        ended.output
    )


HYDRA = ["-launcher", "fork", "-hosts", "localhost,127.0.0.1", "-ppn", "2"]


def one_of_two_nodes() -> None:
    """Rank 3 ends. Rank 2 is on its node, ranks 0 and 1 are on another one."""
    import sys

    from paddlempi_bootstrap import mpi_launcher
    from ranks_tools import end_first, errors, raises, start

    place = mpi_launcher.find()
    assert place is not None and place.local_size == 2, place
    end_first(place.rank == 3)
    if place.rank == 2:
        with raises(errors.TimeoutError, "local rank(s) [1] of the 2 ranks of this host", ranks=[]):
            start(timeout=1.5)
        sys.exit()
    start(timeout=1.5)


def test_one_of_two_nodes() -> None:
    ended = job.run(4, one_of_two_nodes, env=SOON, options=HYDRA, timeout=30.0)
    assert ended.returncode != 0, ended.output
    text = "all 2 ranks of this host have called init_process_group; some of the other 2 have not"
    assert f"in MPI_Init: {text}" in ended.output, ended.output
    assert "Traceback" not in ended.output, ended.output
