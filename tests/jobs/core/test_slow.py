"""A rank that waits long reports it once: for whom, and what those do (docs/reliability.md)."""

from __future__ import annotations

import re
from collections.abc import Callable

import job
import pytest

AFTER = {"PADDLEMPI_REPORT_AFTER": "1"}
HEAD = r"paddlempi: rank \d has waited for \d+\.\d s in "
ALL = r" on the group of ranks \[0 1 2\]: "
LAST = r"its last operation was barrier, number \d+ on the (same group|group of ranks \[0 1 2\]), "
LAST += r"which ended \d+\.\d s ago"
STOPPED = r" is stalled: its process \d+ is stopped by a signal; "


def reports(program: Callable[[], object], ranks: int, what: str, **env: str) -> list[str]:
    """Run a job; return the lines about waits in an operation (a regular expression).

    On a machine that is busy there may be others: of a rank that was late at the first barrier.
    """
    ended = job.succeed(ranks, program, env={**AFTER, **env})
    lines = [line for line in ended.output.splitlines() if re.search(HEAD + what, line)]
    assert lines, ended.output
    return lines


def sleeps() -> None:
    """The last rank comes late to an all_reduce, to a new group, and to a second world."""
    import time

    import numpy as np
    from ranks_tools import dist, done, start

    last = start() == dist.get_world_size() - 1
    for wait in (lambda: dist.all_reduce(np.ones(4)), dist.new_group):
        dist.barrier()
        if last:
            time.sleep(2.5)
        wait()
    dist.destroy_process_group()
    if last:
        time.sleep(2.5)
    start()
    done()


@pytest.mark.launcher("the second world waits inside MPI")
@pytest.mark.parametrize("ranks", [2, 3])
def test_rank_that_computes(ranks: int) -> None:
    names = re.escape(f"[{' '.join(map(str, range(ranks)))}]")
    reduce = rf"all_reduce\(float64\[4\], SUM\), number \d+ on the group of ranks {names}"
    group = rf"new_group\(ranks={names}\)"
    world = "init_process_group: not all ranks of the job have called it"
    lines = reports(sleeps, ranks, f"({reduce}: |{group}: |{world})")
    [first] = [line for line in lines if "s in all_reduce" in line]
    [second] = [line for line in lines if "s in new_group" in line]
    assert re.search(f"[:;] rank {ranks - 1} has not come: its last operation was barrier", first)
    assert re.search(f"[:;] rank {ranks - 1} has not called it: its last operation was b", second)
    assert sum(world in line for line in lines) >= ranks - 1, lines


def sleeps_again_and_again() -> None:
    """Rank 2 comes late to every kind of wait."""
    import time

    import numpy as np
    from ranks_tools import dist, done, start

    rank = start()
    lists: list[object] = [None] * 3
    for wait in (
        lambda: dist.all_reduce(np.ones(11), async_op=True).wait(),
        lambda: dist.all_reduce(np.ones(12), async_op=True).get_future().result(),
        lambda: dist.all_reduce(dist.zeros(1 << 20, "float64")),
        dist.monitored_barrier,
        lambda: dist.all_gather_object(lists, {"a": 1}),
    ):
        dist.barrier()
        if rank == 2:
            time.sleep(2.5)
        wait()
    done()


def test_every_wait() -> None:
    lines = reports(sleeps_again_and_again, 3, "")
    for what in (
        r"all_reduce\(float64\[11\], SUM\), number \d+" + ALL,
        r"all_reduce\(float64\[12\], SUM\), number \d+" + ALL,
        r"all_reduce\(float64\[1048576\], SUM\), number \d+" + ALL,
        r"monitored_barrier\(ranks=\[0 1 2\]\): ",
        r"all_gather\(int64\[1\]\), number \d+" + ALL,
    ):
        [line] = [line for line in lines if re.search(HEAD + what, line)]
        # On a machine that is busy another rank may be late, too.
        assert re.search(f"[:;] rank 2 has not c(ome|alled it): {LAST}", line), line


def stopped() -> None:
    """The last rank is stopped before it comes."""
    import os
    import signal
    import subprocess

    import numpy as np
    from ranks_tools import dist, done, start

    rank = start()
    dist.barrier()
    if rank == dist.get_world_size() - 1:
        again = f"sleep 2.5; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", again], start_new_session=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(np.ones(4))
    done()


def test_rank_that_is_stopped() -> None:
    [line] = reports(stopped, 3, r"all_reduce\(float64\[4\], SUM\), number \d+" + ALL)
    assert re.search(f"[:;] rank 2 has not come and{STOPPED}{LAST}", line), line


def stopped_inside() -> None:
    """Rank 2 is stopped for a while, at some moment of a series of large all_reduces."""
    import os
    import subprocess

    import numpy as np
    from ranks_tools import dist, done, start

    rank = start()
    ended = np.zeros(1)
    tensor = dist.zeros(4 << 20, "uint8")
    if os.environ.get("PADDLEMPI_ALGO"):
        tensor = np.zeros(16 << 20, np.uint8)
    dist.all_reduce(tensor)
    stop = None
    if rank == 2:
        for_a_while = f"sleep 0.3; kill -STOP {os.getpid()}; sleep 2.5; kill -CONT {os.getpid()}"
        stop = subprocess.Popen(["sh", "-c", for_a_while], start_new_session=True)
    while not ended[0]:
        dist.all_reduce(tensor)
        if stop is not None and stop.poll() is not None:
            ended[0] = 1
        dist.all_reduce(ended, dist.ReduceOp.MAX)
    done()


@pytest.mark.parametrize("algorithm", ["", "all_reduce:mpi"])
def test_rank_that_is_stopped_in_a_series(algorithm: str) -> None:
    """It is named wherever it was: before it came, at work on a chunk, or inside MPI."""
    asked = {"PADDLEMPI_ALGO": algorithm} if algorithm else {}
    what = r"all_reduce\((uint8|float64)\[\d+\], (SUM|MAX)\), number \d+" + ALL
    how = "( has not come and| has not done its part .* and)?"
    lines = reports(stopped_inside, 3, what, **asked)
    named = [
        re.findall(r"number \d+", line)[0]
        for line in lines
        if re.search(f"rank 2{how}{STOPPED}", line)
    ]
    # One of the others may have left MPI, and wait in the next collective.
    assert 1 <= len(named) <= 2 and len(set(named)) == len(named), lines


def elsewhere() -> None:
    """Rank 2 waits for a message, the others for rank 2. Two waits are reported, one each."""
    import threading

    import numpy as np
    from ranks_tools import dist, done, start

    rank = start()
    dist.barrier()
    if rank == 0:
        threading.Timer(3.0, dist.send, (np.ones(3, np.float32), 2), {"tag": 5}).start()
    if rank == 2:
        dist.recv(np.ones(3, np.float32), 0, tag=5)
    dist.all_reduce(np.ones(4))
    done()


def test_rank_in_another_operation() -> None:
    reduce = r"all_reduce\(float64\[4\], SUM\), number \d+" + ALL
    receive = r"recv of 12 bytes from rank 0 of the group \(tag 5\)" + ALL
    lines = reports(elsewhere, 3, f"({reduce}|{receive})")
    assert len(lines) == 2, lines
    collective, message = sorted(lines, key=lambda line: "rank 2 has waited" in line)
    assert "rank 2 has not come: it is inside recv(float32[3]) from rank 0 on the s" in collective
    assert "rank 0 is awaited: it is inside all_reduce(float64[4], SUM), number" in message


def off() -> None:
    """The user wants no reports."""
    import time

    from ranks_tools import dist, done, start

    if start() == 1:
        time.sleep(1.5)
    dist.barrier()
    done()


@pytest.mark.parametrize("after", ["0", ""])
def test_no_report(after: str) -> None:
    ended = job.succeed(2, off, env={"PADDLEMPI_REPORT_AFTER": after})
    assert "has waited" not in ended.output


def wrong() -> None:
    """Every rank hears of a setting that is wrong."""
    from ranks_tools import done, errors, raises, start

    with raises(errors.ArgumentError, "PADDLEMPI_REPORT_AFTER", "soon"):
        start()
    done()


def test_wrong_time() -> None:
    job.succeed(1, wrong, env={"PADDLEMPI_REPORT_AFTER": "soon"})
