"""A message whose receive has begun, and whose sender then dies or stops: the receive ends."""

from __future__ import annotations

from pathlib import Path

import job
import pytest
from system_calls import number
from test_node_faults import run

# Rank 0 receives what rank 1, which is stopped, and the ranks 2 and 3, which are killed, have begun
# to send. arguments: the number of the system call that rank 0 may not make, or 0
PROGRAM = """
import os, signal, sys, time
import numpy as np
import ranks_tools

refused = int(sys.argv[1])
first = os.environ.get("RANK") == "0"
if first and refused:
    ranks_tools.refuse_system_calls([refused])
from ranks_tools import dist, errors, raises

SIZES = [65_537, 1 << 20, 1 << 20, 12 << 20, 40 << 20]
dist.init_process_group(timeout=30)
rank = dist.get_rank()
assert first == (rank == 0)
pids = [None] * 4
dist.all_gather_object(pids, os.getpid())
late = [30, 0.4, 30, 0.4]  # of the receives from each rank
groups = [dist.new_group(timeout=30 if rank else seconds) for seconds in late]
alive = dist.new_group([0, 1], timeout=30)


def begin():
    group = groups[rank]
    works = [dist.isend(np.full(size, i, np.uint8), 0, group, i) for i, size in enumerate(SIZES)]
    for i, size in enumerate(SIZES[:2]):
        works.append(dist.isend(np.full(size, i, np.uint8), 0, group, 10))
    dist.send(np.zeros(1), 0, alive if rank == 1 else None, 9)
    return works


def receive(rank, tag, size, asynchronous, whichever=False):
    group, peer = groups[rank], None if whichever else rank
    into = np.zeros(size, np.uint8)
    if asynchronous:
        dist.irecv(into, peer, group, tag).wait()
    else:
        dist.recv(into, peer, group, tag)
    return into


def each(peer, error):
    for tag, size in enumerate(SIZES):
        with raises(error, most=3.0):
            receive(peer, tag, size, tag in (2, 3), tag in (1, 3))
    # two receives, of which the second one waits for the first
    into = [np.zeros(size, np.uint8) for size in SIZES[:2]]
    works = [dist.irecv(x, peer, groups[peer], 10) for x in into]
    for work in works:
        with raises(error, most=3.0):
            work.wait()
    return into


def end(*how):
    sys.__excepthook__(*how)
    for pid in pids[1:]:
        os.kill(pid, signal.SIGKILL)
    os._exit(1)


def state(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    while state(pid) != "T":
        time.sleep(0.01)


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    while state(pid) not in "ZX":  # until then its memory can be read, and a message arrives
        time.sleep(0.001)


if rank == 0:
    sys.excepthook = end
    dist.recv(np.zeros(1), 1, alive, 9)
    if refused:
        stop(pids[1])
        into = each(1, errors.TimeoutError)
        os.kill(pids[1], signal.SIGCONT)
    else:  # it can be read all the same
        for tag, size in enumerate(SIZES):
            assert (receive(1, tag, size, False) == tag).all()
        for tag, size in enumerate(SIZES[:2]):
            assert (receive(1, 10, size, False) == tag).all()
    x = np.zeros(1 << 20)
    dist.recv(x, 1, alive)
    assert (x == 7).all()
    if refused:
        assert not any(part.any() for part in into), "what was given up was written to"
    for peer in (2, 3):
        dist.recv(np.zeros(1), peer, None, 9)
    for peer in (2, 3):
        kill(pids[peer])
    each(2, errors.PeerDiedError)
    for tag, size in enumerate(SIZES):
        try:
            receive(3, tag, size, tag % 2)
        except (errors.PeerDiedError, errors.TimeoutError):
            pass
        else:
            raise AssertionError("it was received")
    dist.send(x, 1, alive)
    print("done", rank, flush=True)
    time.sleep(0.3)
elif rank == 1:
    works = begin()
    dist.send(np.full(1 << 20, 7.0), 0, alive)
    x = np.zeros(1 << 20)
    dist.recv(x, 0, alive)
    assert (x == 7).all()
    for work in works:
        work.wait()
    print("done", rank, flush=True)
else:
    works = begin()
    time.sleep(60)
os._exit(0)
"""


@pytest.mark.parametrize("refused", ["", "process_vm_readv"])
def test_the_receive_ends(tmp_path: Path, refused: str) -> None:
    path = f"PYTHONPATH={job.HERE}"
    told = run(4, ["env", path], tmp_path, PROGRAM, (number(refused) if refused else "0",))
    assert told.count("done") == 2, told
