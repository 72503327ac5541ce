"""How a rank ends, and what that does to the other ranks.

A rank that fails ends the job, with its traceback and its status. A rank that ends normally harms
no other rank. A rank that waits for an ended rank is told at once.
"""

from __future__ import annotations

import job
import pytest

pytestmark = pytest.mark.launcher("the end of Python, of MPI and of the launcher")

LIMIT = 15.0
"""Seconds in which a job ends after one of its ranks, on a busy machine."""


def leaves_in_a_bad_way() -> None:
    """Rank 1 leaves as FAULTS_WAY says, while the other ranks wait in an all_reduce."""
    import io
    import os
    import signal
    import sys
    import threading
    import time

    way, company = os.environ["FAULTS_WAY"], os.environ["FAULTS_COMPANY"]
    if company == "mpi4py":
        from mpi4py import MPI

        assert MPI.Is_initialized()
    import numpy as np
    from ranks_tools import dist, stamp, start, works

    rank = start()
    works()
    if rank != 1:
        dist.all_reduce(np.ones(4))
        print("went on", flush=True)
        return
    if company == "thread":
        threading.Thread(target=time.sleep, args=(60,)).start()
    below = sys.excepthook

    def buffering(*what: object) -> None:  # as the hook of torch does
        real, sys.stderr = sys.stderr, io.StringIO()
        try:
            below(*what)
        finally:
            text, sys.stderr = sys.stderr.getvalue(), real
        sys.stderr.write(text)

    sys.excepthook = buffering
    time.sleep(0.3)  # by now the other ranks wait
    stamp("left")
    if way == "exit":
        sys.exit(3)
    if way == "text":
        sys.exit("that is all")
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "interrupt":
        raise KeyboardInterrupt("rank 1 gave up")
    raise ValueError("rank 1 gave up")


@pytest.mark.parametrize("company", ["alone", "thread", "mpi4py"])
@pytest.mark.parametrize("way", ["exception", "exit"])
def test_a_failure_ends_the_job(way: str, company: str) -> None:
    env = {"FAULTS_WAY": way, "FAULTS_COMPANY": company}
    ended = job.run(3, leaves_in_a_bad_way, env=env, timeout=40)
    assert ended.at - ended.stamp("left") < LIMIT, ended.output
    assert "went on" not in ended.output
    # If MPICH's launcher is late to end the other ranks, they say that rank 1 has died, and it may
    # give their status. They do if it is stopped for 3 s, and do not under the other launchers.
    late = 2 if job.MPI == "mpich" else 0
    own = way == "exception"
    assert ended.returncode in ({1} if own else {3, 1} if late else {3}), ended.output
    assert own <= ended.result.stderr.count("Traceback") <= own + late, ended.output
    assert ended.result.stderr.count("ValueError: rank 1 gave up") == own, ended.output


@pytest.mark.launcher("the launcher's status", only=["openmpi"])
@pytest.mark.parametrize("company", ["alone", "thread", "mpi4py"])
@pytest.mark.parametrize("way", ["text", "interrupt", "kill"])
def test_other_ways_to_fail(way: str, company: str) -> None:
    env = {"FAULTS_WAY": way, "FAULTS_COMPANY": company}
    ended = job.run(3, leaves_in_a_bad_way, env=env, timeout=40)
    assert ended.at - ended.stamp("left") < LIMIT, ended.output
    assert ended.returncode != 0
    assert "went on" not in ended.output
    if way == "text":
        assert ended.result.stderr.count("that is all") == 1, ended.output
    if way == "interrupt":
        assert ended.result.stderr.count("KeyboardInterrupt: rank 1 gave up") == 1, ended.output


def one_ends_early() -> None:
    """Rank 2 ends. The other ranks go on between themselves, then wait for rank 2."""
    import os
    import time

    if os.environ["FAULTS_COMPANY"] == "mpi4py":
        from mpi4py import MPI

        assert MPI.Is_initialized()
    import numpy as np
    from ranks_tools import dist, done, errors, raises, stamp, start, works

    rank = start()
    pair = dist.new_group([0, 1])
    trio, watched = dist.new_group([2, 1, 0]), dist.new_group([2, 1, 0])
    works()
    if rank == 2:
        stamp("left")
        done()
        return
    end = time.monotonic() + 1.0
    rounds = 0
    while True:
        x = np.array([float(time.monotonic() < end)])
        dist.broadcast(x, 0, group=pair)
        y = np.full(1000, rank)
        dist.sendrecv(np.full(1000, 1 - rank), 1 - rank, y)
        assert (y == rank).all()
        if not x[0]:
            break
        rounds += 1
    assert rounds > 0
    x = np.ones(4)
    with raises(errors.PeerLeftError, "all_reduce", "[2]", "ended", ranks=[2], most=3.0):
        dist.all_reduce(x)
    with raises(errors.GroupBrokenError):
        dist.barrier()
    work = dist.all_reduce(x, group=trio, async_op=True)
    with raises(errors.PeerLeftError, "[2 1 0]", ranks=[2], most=3.0):
        work.wait()
    # The errors of other groups did not break this group.
    works(pair)
    fresh = dist.new_group([1, 0])
    works(fresh)
    with raises(errors.PeerLeftError, "new_group", "ended", ranks=[2], most=3.0):
        dist.new_group([0, 1, 2])
    with raises(errors.PeerLeftError, "new_group", "ended", ranks=[2], most=3.0):
        dist.new_subgroups(3)
    with raises(errors.PeerLeftError, "monitored_barrier", "ended", ranks=[2], most=3.0):
        dist.monitored_barrier(watched)
    works(pair)
    done()


def waits_for_a_message_of_one_that_left() -> None:
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start()
    works()
    if rank == 1:
        dist.send(np.full(3, 5.0), 0, tag=4)
        done()
        return
    time.sleep(0.5)
    x = np.zeros(3)
    with raises(errors.PeerLeftError, "recv", "ended", ranks=[1], most=3.0):
        dist.recv(x, 1)
    with raises(errors.PeerLeftError, "recv", "any rank", ranks=[1], most=3.0):
        dist.recv(x)
    with raises(errors.PeerLeftError, "probe", "ended", ranks=[1], most=3.0):
        dist.probe(1)
    work = dist.irecv(x, 1)
    with raises(errors.PeerLeftError, "recv", ranks=[1], most=3.0):
        work.wait()
    # The message that rank 1 sent before it left is there.
    dist.recv(x, 1, tag=4)
    assert (x == 5).all()
    done()


@pytest.mark.parametrize("company", ["alone", "mpi4py"])
def test_a_normal_end_does_no_harm(company: str) -> None:
    ended = job.succeed(3, one_ends_early, env={"FAULTS_COMPANY": company})
    assert ended.at - ended.stamp("left") < 40, ended.output


def test_messages_of_one_that_left() -> None:
    job.succeed(2, waits_for_a_message_of_one_that_left)


def leaves_work_behind() -> None:
    """Operations that were begun and never waited for do not hold up the end of the process."""
    import os
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, raises, stamp, stamped, stamps, start, wait_until

    limit = 30.0
    if os.environ["FAULTS_WAY"] == "broken":
        limit = 1.0  # of the start, too, so no rank begins before the other can
        stamp(f"imported-{os.getpid()}")
        wait_until(lambda: sum(name.startswith("imported-") for name in stamps()) == 2)
    rank = start(timeout=limit)
    x = np.ones(1000)
    if os.environ["FAULTS_WAY"] == "broken":
        if rank == 0:
            with raises(errors.TimeoutError):
                dist.all_reduce(x)
            stamp("given-up")
        else:
            with raises(errors.TimeoutError):
                dist.recv(np.ones(3), 0)
            while not stamped("given-up"):  # rank 0 may have begun later
                time.sleep(0.01)
    elif os.environ["FAULTS_WAY"] == "refused":
        if rank == 0:
            with raises(errors.DtypeError):
                dist.all_reduce(object())
    elif os.environ["FAULTS_WAY"] == "unmatched":
        if rank == 0:
            dist.all_reduce(x, async_op=True)
        else:
            dist.irecv(x, 0)
    else:
        dist.all_reduce(x, async_op=True)
        dist.isend(x, 1 - rank)
        dist.irecv(np.ones(1000), 1 - rank)
    if os.environ["FAULTS_WAY"] == "destroyed":
        dist.destroy_process_group()
    stamp("left")
    done()


def daemons_wait() -> None:
    """Daemon threads wait in operations when the main thread ends."""
    import threading
    import time

    import numpy as np
    from ranks_tools import dist, done, stamp, start, works

    rank = start()
    groups = [dist.new_group() for _ in range(3)]
    for wait in (
        lambda: dist.all_reduce(np.ones(4), group=groups[rank]),
        lambda: dist.all_reduce(np.ones(4), group=groups[2], async_op=True).wait(),
        lambda: dist.probe(1 - rank, tag=5),
        lambda: dist.new_group([1 - rank, rank]),
    ):
        threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.2)
    works()
    stamp("left")
    done()


def test_daemon_threads_that_wait() -> None:
    ended = job.succeed(2, daemons_wait)
    assert ended.at - ended.stamp("left") < LIMIT, ended.output


@pytest.mark.parametrize(
    "way",
    ["under way", "broken", "refused", "unmatched", "destroyed"],
)
def test_what_is_left_behind(way: str) -> None:
    ended = job.succeed(2, leaves_work_behind, env={"FAULTS_WAY": way})
    assert ended.at - ended.stamp("left") < LIMIT, ended.output


def sends_what_nobody_receives() -> None:
    """Rank 1 ends, and does not receive what rank 0 has sent."""
    import os
    import sys

    import numpy as np
    from ranks_tools import dist, errors, raises, start

    rank = start()
    x = np.ones(1 << 24, np.float32)  # more than MPI copies, except for Intel MPI
    if os.environ["FAULTS_WAY"] in ("at once", "probed"):
        if rank == 0:
            dist.isend(x, 1)
        elif os.environ["FAULTS_WAY"] == "probed":
            dist.probe(0)  # it reads the header, and keeps it for a receive
        sys.exit(0)
    for step in range(5):
        work = dist.isend(x, 1 - rank)
        if rank == 1 and step == 2:
            sys.exit(0)
        if step < 2:
            dist.recv(np.empty_like(x), 1 - rank)
            work.wait()
            continue
        dist.recv(np.empty_like(x), 1 - rank)  # rank 1 had sent that
        with raises(errors.PeerLeftError, ranks=[1], most=5.0):
            dist.recv(np.empty_like(x), 1 - rank)
        sys.exit(0)


LOSES = "paddlempi: rank 0 has ended with 1 message(s) that no rank has received"
HYDRA = "-disable-auto-cleanup"
KEEP = {"openmpi": "--continuous", "mpich": HYDRA, "impi": HYDRA}


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("way", ["at once", "probed", "in a loop"])
def test_a_message_that_nobody_receives(way: str, keep: bool) -> None:
    options = [KEEP[job.MPI]] if keep else []
    ended = job.run(2, sends_what_nobody_receives, env={"FAULTS_WAY": way}, options=options)
    assert ended.returncode == 0, ended.output
    lines = [line for line in ended.result.stderr.splitlines() if line.startswith("paddlempi:")]
    assert len(lines) == 1 and lines[0].startswith(LOSES), ended.output
    assert "send of 67108864 bytes to rank 1" in lines[0]


def leaves_by_os_exit() -> None:
    """Rank 1 destroys the world and leaves past all exit handlers. Nobody waits for it."""
    import os

    from ranks_tools import dist, done, start, works

    rank = start()
    works()
    dist.destroy_process_group()
    if rank == 1:
        os._exit(0)
    done()


def test_os_exit_after_destroy() -> None:
    ended = job.run(3, leaves_by_os_exit, options=[KEEP[job.MPI]], timeout=30)
    assert ended.result.stdout.count("done\n") == 2, ended.output


def ends_under_faulthandler() -> None:
    """Rank 0 has a receive under way while it ends. Signals like Go's scheduler's arrive."""
    import faulthandler
    import os
    import subprocess
    import sys
    import time

    faulthandler.enable()  # as pytest does; at its end Python takes the signal stack away
    import numpy as np
    from ranks_tools import dist, done, start, works

    rank = start()
    works()
    done()
    if rank:
        time.sleep(1)
        dist.send(np.ones(4), 0)
        return
    send = f"""
import os, signal, time
for _ in range(3000):
    os.kill({os.getpid()}, signal.SIGURG)
    time.sleep(0.0003)
"""
    subprocess.Popen([sys.executable, "-c", send], stderr=subprocess.DEVNULL)
    global work
    work = dist.irecv(np.empty(4), 1)


def test_the_end_under_faulthandler() -> None:
    job.succeed(2, ends_under_faulthandler)


def ends_in_a_callback() -> None:
    """Rank 1 ends while a callback runs that waits for the future of another operation."""
    import os
    import threading
    import time

    import numpy as np
    from ranks_tools import dist, done, stamp, start

    rank = start()
    pair = dist.new_group()
    begun = threading.Event()

    def callback(_: object) -> None:
        begun.set()
        if os.environ["FAULTS_WAY"] == "for ever":
            threading.Event().wait()
        x = np.ones(4)
        dist.all_reduce(x, group=pair, async_op=True).get_future().result()
        print(f"sum {x[0]:.0f}", flush=True)

    if rank == 0:
        time.sleep(0.3)  # rank 1 waits, so a thread completes its future
    future = dist.all_reduce(np.ones(4), async_op=True).get_future()
    if rank == 1:
        future.add_done_callback(callback)
        assert begun.wait(30)
    elif os.environ["FAULTS_WAY"] == "nested":
        time.sleep(0.3)  # Python of rank 1 wants to end by now
        dist.all_reduce(np.ones(4), group=pair)
    stamp("left")
    done()


def test_the_end_waits_for_a_callback() -> None:
    ended = job.succeed(2, ends_in_a_callback, env={"FAULTS_WAY": "nested"})
    assert "sum 2" in ended.result.stdout, ended.output


def test_the_end_does_not_wait_for_ever_for_a_callback() -> None:
    ended = job.succeed(2, ends_in_a_callback, env={"FAULTS_WAY": "for ever"})
    assert ended.at - ended.stamp("left") < LIMIT, ended.output


def joins_at_exit() -> None:
    """A daemon thread goes on until a callback of ``atexit`` that runs late ends it."""
    import atexit
    import queue
    import threading

    def end() -> None:
        for _ in range(100):
            todo.put(1.0)
        todo.put(0.0)
        assert over.wait(30)
        print(f"sum {sum(sums):.0f}", flush=True)

    atexit.register(end)  # before the library is imported, so it runs later

    import numpy as np
    from ranks_tools import dist, done, start

    start()
    todo: queue.SimpleQueue[float] = queue.SimpleQueue()
    over = threading.Event()
    sums = []

    def work() -> None:
        while value := todo.get():
            x = np.full(4, value)
            dist.all_reduce(x)
            y = np.full(4, value)
            dist.all_reduce(y, async_op=True).get_future().result()
            sums.append(x[0] + y[0])
        over.set()

    threading.Thread(target=work, daemon=True).start()
    done()


def test_a_callback_of_atexit_that_waits_for_a_thread() -> None:
    ended = job.succeed(2, joins_at_exit)
    assert ended.result.stdout.count("sum 400\n") == 2, ended.output


def panics() -> None:
    """The operation that exists to panic raises an error. The core takes no more calls then."""
    import numpy as np
    from paddlempi import _native
    from paddlempi._ops import Op
    from ranks_tools import dist, errors, raises, stamp, start, works

    start()
    works()
    with raises(errors.CorePanicError, "the panic operation", "goroutine"):
        _native.submit(Op.PANIC, 0, None, None)
    for call in (
        lambda: dist.all_reduce(np.ones(3)),
        lambda: dist.isend(np.ones(3), 0),
        lambda: dist.new_group([0, 1]),
        lambda: dist.destroy_process_group(),
    ):
        with raises(errors.CorePanicError, "takes no more calls"):
            call()
    print("poisoned", flush=True)
    stamp("end")


@pytest.mark.launcher("the end of MPI after a panic", only=["openmpi"])
def test_panics() -> None:
    ended = job.run(2, panics)
    assert ended.result.stdout.count("poisoned") == 2, ended.output
    assert ended.at - ended.stamp("end") < LIMIT, ended.output
