"""Ranks that share no memory, as on several hosts. MPICH can treat ranks of one host so."""

from __future__ import annotations

import job
import pytest

APART = {"MPIR_CVAR_NOLOCAL": "1"}


def the_last_call_is_rooted() -> None:
    """Some ranks finish the call and leave before a late rank knows that all have come to it."""
    import os
    import time

    import numpy as np
    from ranks_tools import dist, done, start

    rank = start(timeout=60.0)
    assert dist.get_local_size() == 1
    size = dist.get_world_size()
    x = np.full(5, float(rank))
    last = os.environ["FAULTS_LAST"]
    work = None
    if last == "broadcast":
        work = dist.broadcast(x, 0, async_op=True)
    elif last == "reduce":
        work = dist.reduce(x, 0, async_op=True)
    elif last == "gather":
        into = [np.zeros(5) for _ in range(size)] if rank == 0 else None
        work = dist.gather(x, into, 0, async_op=True)
    else:
        parts = [np.full(5, float(i)) for i in range(size)] if rank == 0 else None
        work = dist.scatter(x, parts, 0, async_op=True)
    if rank == size - 1:
        time.sleep(2.5)  # longer than the other ranks wait before they ask
    assert work is not None
    work.wait()
    assert last != "broadcast" or (x == 0).all()
    assert last != "scatter" or (x == rank).all()
    done()


def leaves_what_it_began() -> None:
    """A rank that begins a collective and ends still takes part: only a late rank is missing."""
    import time

    import numpy as np
    from ranks_tools import dist, done, start

    rank = start(timeout=60.0)
    x = np.ones(5)
    if rank == 0:
        dist.all_reduce(x, async_op=True)
        done()
        return
    if rank == 2:
        time.sleep(2.5)  # longer than the other ranks wait before they ask
    dist.all_reduce(x)
    assert (x == 3).all()
    done()


def waits_for_one_that_left() -> None:
    """A rank that waits in a collective or a receive asks. Its error names the rank that left."""
    import os
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start(timeout=120.0)
    works()
    if rank == 0:
        done()
        return
    waits = {
        "collective": lambda: dist.all_reduce(np.ones(3)),
        "receive": lambda: dist.recv(np.ones(3), 0),
        "new_group": lambda: dist.new_group([1, 0, 2]),
        "monitored_barrier": lambda: dist.monitored_barrier(),
    }
    with raises(errors.PeerLeftError, "rank(s) [0]", ranks=[0], most=20.0):
        waits[os.environ["FAULTS_HOW"]]()
    done()
    if os.environ["FAULTS_HOW"] == "collective":
        time.sleep(1.0)  # the other ranks are at their end, too
        os._exit(0)  # its request does not end, so MPI cannot be finalized


def gave_up() -> None:
    """Ctrl-C or a destroy on one rank: the other ranks raise long before their deadline."""
    import os
    import signal
    import threading
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start(timeout=120.0)
    size = dist.get_world_size()
    everyone = list(range(size))
    group, other = dist.new_group(everyone), dist.new_group(everyone)
    if rank == 0:
        # A small input travels with the announcement: the others would get the result.
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with raises(KeyboardInterrupt):
            dist.all_reduce(np.ones(30_000), group=group)
        dist.destroy_process_group(other)
    else:
        if rank == 1:
            time.sleep(1.0)
        with raises(errors.GroupBrokenError, "[0]", "interrupted", ranks=[0], most=20.0):
            dist.all_reduce(np.ones(30_000), group=group)
        with raises(errors.GroupBrokenError, "[0]", "destroyed", ranks=[0], most=20.0):
            dist.all_reduce(np.ones(3), group=other)
    works()
    done()
    dist.barrier()
    time.sleep(0.5)
    os._exit(0)  # the given-up call does not end, so MPI cannot be finalized


def lives_again() -> None:
    """The world is destroyed and made again several times. Some ranks are late each time."""
    import time

    import numpy as np
    from ranks_tools import dist, done, start, works

    for life in range(4):
        rank = start()
        if life % 2 == rank % 2:
            time.sleep(0.3)
        works()
        group = dist.new_group(list(range(dist.get_world_size())))
        x = np.full(100, float(rank))
        dist.broadcast(x, 1, group=group)
        assert (x == 1).all()
        if rank == life % dist.get_world_size():
            time.sleep(1.2)
        dist.destroy_process_group()
    done()


@pytest.mark.parametrize("last", ["broadcast", "reduce", "gather", "scatter"])
def test_the_last_call_is_rooted(last: str) -> None:
    job.succeed(4, the_last_call_is_rooted, env={**APART, "FAULTS_LAST": last})


@pytest.mark.parametrize("how", ["collective", "receive", "new_group", "monitored_barrier"])
def test_waits_for_one_that_left(how: str) -> None:
    ended = job.run(3, waits_for_one_that_left, env={**APART, "FAULTS_HOW": how})
    assert ended.result.stdout.count("done\n") == 3, ended.output
    assert "Traceback" not in ended.output, ended.output


def test_leaves_what_it_began() -> None:
    job.succeed(3, leaves_what_it_began, env=APART)


def test_gave_up() -> None:
    ended = job.run(3, gave_up, env=APART)
    assert ended.result.stdout.count("done\n") == 3, ended.output
    assert "Traceback" not in ended.output, ended.output


def test_lives_again() -> None:
    job.succeed(3, lives_again, env=APART)
