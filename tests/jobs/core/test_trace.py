"""What a job's flight recorders say, while it hangs and after errors (docs/my-job-hangs.md)."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import job
import pytest
from paddlempi.cli.trace import judge, report
from paddlempi.trace import rings
from ranks_tools import dump


def judged(folder: Path) -> judge.Judgement:
    return judge.judge(rings.read_folder(folder))


def never_comes() -> None:
    """Rank 2 looks at the others, which wait for it."""
    import os

    import numpy as np
    from ranks_tools import dist, done, dump_until, start

    rank = start()
    pids: list[int] = [0] * 3
    dist.all_gather_object(pids, os.getpid())
    if rank == 2:
        dump_until(os.environ["TRACES"], pids, lambda found: found.findings[0].waiting == (0, 1))
    dist.all_reduce(np.ones(4, np.float32))
    done()


def test_rank_that_never_comes(tmp_path: Path) -> None:
    job.succeed(3, never_comes, env={"TRACES": str(tmp_path)})
    found = judged(tmp_path)
    assert found.behind == (2,)
    assert any("in never_comes" in frame for frame in found.rings[2].python[0])
    assert "in Python:\n    " in report.as_text(found)
    [finding] = [f for f in found.findings if not f.over]
    assert finding.what == "all_reduce(float32[4], SUM)"
    assert [part.how for part in finding.parts] == ["waits", "waits", "never came"]
    assert "its last operation was" in finding.parts[2].what
    assert found.waits[0].rank == 2
    assert found.waits[0].others > 0
    assert re.search(r" s \(\d+%\) for rank 2\.$", report.as_text(found))


def a_signal_that_does_not_come() -> None:
    """Rank 1 looks at rank 0, which waits for its signal."""
    import os

    from ranks_tools import dist, done, dump_until, start

    rank = start()
    pids: list[int] = [0] * 2
    dist.all_gather_object(pids, os.getpid())
    window = dist.Window(4)
    if rank == 1:
        dump_until(
            os.environ["TRACES"],
            pids,
            lambda found: any(f.waiting == (0,) for f in found.findings),
        )
        window.signal(0)
    else:
        window.wait_signal(1)
    window.free()
    done()


def test_a_signal_that_does_not_come(tmp_path: Path) -> None:
    job.succeed(2, a_signal_that_does_not_come, env={"TRACES": str(tmp_path)})
    [finding] = [f for f in judged(tmp_path).findings if f.waiting == (0,)]
    assert finding.what == "Window.wait_signal from rank 1 of the group (window 1)"
    assert [part.how for part in finding.parts] == ["waits", "peer"]


def two_at_a_time() -> None:
    """Rank 0 waits for rank 1, which waits until the test has looked."""
    import os
    import time
    from pathlib import Path

    from ranks_tools import dist, done, start

    rank, folder = start(), Path(os.environ["TRACES"])
    dist.barrier()
    (folder / f"pid-{rank}.new").write_text(str(os.getpid()))
    (folder / f"pid-{rank}.new").rename(folder / f"pid-{rank}")
    ended = time.monotonic() + 60
    while rank == 1 and not (folder / "looked").exists() and time.monotonic() < ended:
        time.sleep(0.05)
    dist.barrier()
    done()


def test_two_jobs_on_a_host(tmp_path: Path) -> None:
    """Their traces are kept apart, and the report of a slow rank names the processes of its job."""
    with ThreadPoolExecutor() as pool:
        folders = [tmp_path / "a", tmp_path / "b"]
        for folder in folders:
            folder.mkdir()
        jobs = [
            pool.submit(
                job.run,
                2,
                two_at_a_time,
                env={"TRACES": str(folder), "PADDLEMPI_REPORT_AFTER": "0.5"},
            )
            for folder in folders
        ]
        try:
            files = [[folder / f"pid-{rank}" for rank in (0, 1)] for folder in folders]
            ended = time.monotonic() + 60
            while not all(file.exists() for pair in files for file in pair):
                assert time.monotonic() < ended
                time.sleep(0.05)
            pids = [[int(file.read_text()) for file in pair] for pair in files]
            time.sleep(1.5)  # rank 0 reports
            dumped = dump(str(tmp_path / "traces"), [*pids[0], *pids[1]])
        finally:
            for folder in folders:
                (folder / "looked").touch()
        outputs = [one.result().output for one in jobs]
    assert dumped.returncode == 0, dumped.stderr
    found = [rings.read_folder(folder) for folder in (tmp_path / "traces").glob("job-*")]
    assert sorted([ring.pid for ring in of_one.values()] for of_one in found) == sorted(pids)
    with pytest.raises(rings.TraceError, match="traces of 2 jobs; name the folder of one"):
        rings.read_folder(tmp_path / "traces")
    for output, (first, second) in zip(outputs, pids, strict=True):
        assert f"`python -m paddlempi trace dump {first} {second}` tells more." in output, output


def stopped() -> None:
    """Rank 2 is stopped at some moment of a series of all_reduces; a thread of rank 0 looks."""
    import os
    import signal
    import threading
    import time

    import numpy as np
    from ranks_tools import dist, done, dump_until, start

    rank = start()
    pids: list[int] = [0] * 3
    dist.all_gather_object(pids, os.getpid())
    over = np.zeros(1)

    def look() -> None:
        time.sleep(0.3)
        os.kill(pids[2], signal.SIGSTOP)
        try:
            dump_until(os.environ["TRACES"], pids, lambda found: 2 in found.behind)
        finally:
            os.kill(pids[2], signal.SIGCONT)
            over[0] = 1

    thread = threading.Thread(target=look)
    if rank == 0:
        thread.start()
    tensor = dist.zeros(4 << 20, "uint8")
    end = False
    while not end:
        dist.all_reduce(tensor)
        agreed = over.copy()
        dist.all_reduce(agreed, dist.ReduceOp.MAX)
        end = bool(agreed[0])
    if rank == 0:
        thread.join()
    done()


def test_rank_that_is_stopped(tmp_path: Path) -> None:
    job.succeed(3, stopped, env={"TRACES": str(tmp_path)})
    found = judged(tmp_path)
    assert found.rings[2].state == "stopped"
    assert found.behind == (2,)
    assert {f.behind for f in found.findings if f.waiting} == {(2,)}


def different() -> None:
    """Rank 1 has another shape. Every rank writes its trace itself."""
    import numpy as np
    from ranks_tools import dist, done, errors, raises, start

    rank = start()
    with raises(errors.MismatchError, ranks=[1]):
        dist.all_reduce(np.ones(5 if rank == 1 else 4, np.float32))
    dist.barrier()
    done()


def test_rank_that_comes_with_another_shape(tmp_path: Path) -> None:
    job.succeed(3, different, env={"PADDLEMPI_TRACE": str(tmp_path / "new")})
    found = judged(tmp_path / "new")
    assert set(found.rings) == {0, 1, 2}
    [finding] = [f for f in found.findings if f.over]  # the barrier may be under way
    assert finding.behind == (1,)
    assert finding.parts[1].how == "came with something else"
    assert finding.parts[1].what == "all_reduce(float32[5], SUM) (mismatch)"


def late() -> None:
    """Ranks 0 and 1 give up before rank 2 comes, and write its trace, too."""
    import time

    import numpy as np
    from ranks_tools import dist, errors, leave_together, raises, start

    rank = start(1.0)
    dist.barrier()
    if rank == 2:
        time.sleep(2.5)
        with raises(errors.GroupBrokenError):
            dist.all_reduce(np.ones(4))
    else:
        with raises(errors.TimeoutError, ranks=[2]):
            dist.all_reduce(np.ones(4))
    leave_together(rank)


def test_trace_after_a_timeout(tmp_path: Path) -> None:
    job.run(3, late, env={"PADDLEMPI_TRACE": str(tmp_path)})
    found = judged(tmp_path)
    assert set(found.rings) == {0, 1, 2}
    [finding] = found.findings
    assert [part.how for part in finding.parts] == ["failed", "failed", "never came"]
    assert finding.behind == (2,)


def killed() -> None:
    """Rank 2 is killed in its own code; the others write down what it did."""
    import os
    import signal

    import numpy as np
    from ranks_tools import dist, leave_together, start

    rank = start()
    dist.all_reduce(np.ones(7, np.float32))
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(np.ones(8, np.float32))
    except dist.Error as error:
        assert error.ranks == (2,), error
    leave_together(rank)


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_trace_of_a_dead_rank(tmp_path: Path) -> None:
    job.run(3, killed, env={"PADDLEMPI_TRACE": str(tmp_path)}, options=("--with-ft", "ulfm"))
    found = judged(tmp_path)
    assert found.rings[2].state == "ended"
    [finding] = found.findings
    assert finding.behind == (2,)
    assert "its last operation was all_reduce(float32[7], SUM), number 1" in finding.parts[2].what


def killed_in_mpi() -> None:
    """Rank 2 is killed in a large all_reduce of MPI, in which the others cannot raise an error."""
    import os
    import signal
    import subprocess
    import sys

    import numpy as np
    from ranks_tools import dist, start

    rank = start()
    tensor = np.ones(64 << 20, np.uint8)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    if rank == 2:
        end = f"import os, time; time.sleep(0.5); os.kill({os.getpid()}, {signal.SIGKILL})"
        subprocess.Popen([sys.executable, "-S", "-c", end])
    while True:
        dist.all_reduce(tensor, dist.ReduceOp.MAX)


def test_trace_of_a_rank_that_dies_in_mpi(tmp_path: Path) -> None:
    asked = {"PADDLEMPI_TRACE": str(tmp_path), "PADDLEMPI_ALGO": "all_reduce:mpi"}
    ended = job.run(3, killed_in_mpi, env=asked, options=("--with-ft", "ulfm"))
    assert "died" in ended.output
    found = judged(tmp_path)
    assert found.rings[2].state == "ended"
    assert 2 in found.findings[0].behind


def signalled() -> None:
    """A rank that waits writes its trace at a signal, and goes on."""
    import os
    import signal
    import threading
    import time
    from pathlib import Path

    import numpy as np
    from ranks_tools import dist, done, start

    rank = start()
    file = Path(os.environ["PADDLEMPI_TRACE"], "rank-1.json")
    if rank == 1:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR2)).start()
    else:
        ended = time.monotonic() + 30
        while not file.exists() and time.monotonic() < ended:
            time.sleep(0.05)
    dist.all_reduce(np.ones(6))
    done()


def test_trace_at_a_signal(tmp_path: Path) -> None:
    asked = {"PADDLEMPI_TRACE": str(tmp_path), "PADDLEMPI_TRACE_SIGNAL": "USR2"}
    job.succeed(2, signalled, env=asked)
    found = rings.read_folder(tmp_path)
    assert set(found) == {1}
    [operation] = found[1].under_way()
    assert operation.count == 6


def wrong_signal() -> None:
    """Every rank hears of a setting that is wrong."""
    from ranks_tools import done, errors, raises, start

    with raises(errors.ArgumentError, "PADDLEMPI_TRACE_SIGNAL", "KILL"):
        start()
    done()


def test_signal_that_cannot_be_taken() -> None:
    job.succeed(1, wrong_signal, env={"PADDLEMPI_TRACE_SIGNAL": "KILL"})


def forked() -> None:
    """A forked child has no trace, and writes nothing into that of its parent."""
    import os
    import signal
    import time

    import numpy as np
    from ranks_tools import dist, done, dump, errors, start

    rank = start()
    dist.all_reduce(np.ones(3))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(np.ones(9))
        except errors.ForkError:
            os.write(write, b"x")
        time.sleep(60)
        os._exit(1)
    os.read(read, 1)
    if rank == 0:
        dumped = dump(os.environ["TRACES"], [os.getpid(), child])
        assert dumped.returncode == 1
        assert f"process {child}: process {child} has no trace" in dumped.stderr, dumped.stderr
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    done()


def test_forked_child(tmp_path: Path) -> None:
    job.succeed(2, forked, env={"TRACES": str(tmp_path)})
    [operation] = rings.read_folder(tmp_path)[0].operations
    assert operation.count == 3
    assert operation.outcome == "ok"


def short_messages() -> None:
    """Rank 1 writes its trace after short messages, which go without Go."""
    import os
    import signal
    import time
    from pathlib import Path

    import numpy as np
    from ranks_tools import dist, done, start

    rank = start()
    file = Path(os.environ["PADDLEMPI_TRACE"], "rank-1.json")
    for tag in (3, 4):
        if rank == 0:
            dist.send(np.ones(5, np.float32), 1, tag=tag)
            dist.recv(np.ones(2), 1, tag=tag)
        else:
            dist.recv(np.ones(5, np.float32), 0, tag=tag)
            dist.send(np.ones(2), 0, tag=tag)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGUSR2)
        ended = time.monotonic() + 30
        while not file.exists() and time.monotonic() < ended:
            time.sleep(0.05)
    done()


def test_short_messages(tmp_path: Path) -> None:
    asked = {"PADDLEMPI_TRACE": str(tmp_path), "PADDLEMPI_TRACE_SIGNAL": "USR2"}
    job.succeed(2, short_messages, env=asked)
    ring = rings.read_folder(tmp_path)[1]
    messages = [one for one in ring.operations if one.operation in ("send", "recv")]
    told = [(one.operation, one.dtype, one.count, one.peers, one.tags) for one in messages]
    expected = []
    for tag in (3, 4):
        expected += [("recv", "float32", 5, (0,), (tag,)), ("send", "float64", 2, (0,), (tag,))]
    assert told == expected
    assert all(one.submitted <= one.begun <= one.ended for one in messages)
