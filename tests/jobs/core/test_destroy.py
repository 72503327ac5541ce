"""Groups and worlds that are destroyed while operations are under way in them."""

from __future__ import annotations

import job
import pytest


def a_message_under_way() -> None:
    """No rank receives a long isend. destroy gives it up, and nothing crashes later."""
    import os
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start()
    limit = float(os.environ["FAULTS_LIMIT"])
    group = dist.new_group([0, 1], timeout=limit)
    if rank == 0:
        work = dist.isend(np.ones(8 << 20), 1, group=group)
        began = time.monotonic()
        dist.destroy_process_group(group)
        assert time.monotonic() - began < 20
        first = errors.TimeoutError if limit < 10 else errors.GroupDestroyedError
        with raises(first, "send of 67108864 bytes"):
            work.wait()
        dist.send(np.ones(1), 1)
    else:
        dist.recv(np.ones(1), 0)  # this message comes after the destroy
        dist.destroy_process_group(group)
    time.sleep(1.0)
    works()
    del group
    done()


def other_threads_wait() -> None:
    """Threads are in every kind of wait when the group, or the world, is destroyed."""
    import os
    import threading
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, start, works

    rank = start(timeout=600.0)
    everything = os.environ["FAULTS_WHAT"] == "world"
    group = dist.new_group([0, 1])
    peer = 1 - rank
    lonely = np.ones(4)
    pending = dist.irecv(np.zeros(3), peer, group=group, tag=9)
    waits = {
        "recv": lambda: dist.recv(np.ones(4), peer, group=group, tag=7),
        "any": lambda: dist.recv(np.ones(4), group=group, tag=8),
        "probe": lambda: dist.probe(peer, tag=5, group=group),
        "wait": pending.wait,
    }
    if rank == 0:  # the other rank never comes
        waits["all_reduce"] = lambda: dist.all_reduce(lonely, group=group)
    if everything:
        waits["new_group"] = lambda: dist.new_group([rank, peer] if rank == 0 else [0, 1, 1][:2])
        if rank == 1:
            del waits["new_group"]
    ended = {}

    def run(name):
        try:
            waits[name]()
            ended[name] = None
        except BaseException as error:
            ended[name] = error

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in waits]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    began = time.monotonic()
    dist.destroy_process_group(None if everything else group)
    took = time.monotonic() - began
    for thread in threads:
        thread.join(20)
    assert took < 15, took
    for name in waits:
        error = ended[name]
        # GroupBrokenError, and PeerLeftError in new_group: this rank was told first that the other
        # rank has destroyed the group, or the world.
        first = errors.PeerLeftError if name == "new_group" else errors.GroupBrokenError
        assert isinstance(error, (errors.GroupDestroyedError, first)), (name, error)
    if everything:
        start()
    works()
    works(dist.new_group([1, 0]))
    done()


@pytest.mark.parametrize("limit", ["2", "60"])
def test_a_message_under_way(limit: str) -> None:
    """The message is given up at its deadline, or when destroy has waited long enough.

    MPI never ends the message, for its communicator is gone on the other rank. The ranks finalize
    MPI together all the same.
    """
    ended = job.succeed(2, a_message_under_way, env={"FAULTS_LIMIT": limit})
    assert "Traceback" not in ended.output and "egmentation" not in ended.output, ended.output


# The end of the world is that of all its groups.
@pytest.mark.parametrize("what", ["world", "group"])
def test_other_threads_wait(what: str) -> None:
    job.succeed(2, other_threads_wait, env={"FAULTS_WHAT": what})


def several_worlds() -> None:
    """A program destroys the world and makes another one, and ends after the last."""
    import numpy as np
    from ranks_tools import dist, done, start, works

    for _ in range(3):
        start()
        works()
        dist.all_reduce(np.ones(4), group=dist.new_group([1, 0]))
        dist.destroy_process_group()
    done()


def test_several_worlds() -> None:
    job.succeed(2, several_worlds)
