"""torch's contract of reconfiguration: ``init_process_group("mpi", enable_reconfigure=True)``.

The cases are those of torch's own test of it, in three processes that know nothing but a store.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed.distributed_c10d as c10d

pytestmark = pytest.mark.skipif(
    not hasattr(c10d, "_reconfigure"), reason="this torch has no reconfiguration"
)

PROGRAM = """
import sys
from datetime import timedelta
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

folder, rank, size = sys.argv[1], int(sys.argv[2]), 3
limit = timedelta(seconds=60)
store = dist.FileStore(f"{folder}/store", size)
dist.init_process_group(
    "mpi", rank=rank, world_size=size, store=store, timeout=limit, enable_reconfigure=True
)
group = c10d._get_default_group()
assert dist._supports_reconfigure()
assert dist.get_backend_impl(group, torch.device("cpu")).supports_reconfigure
assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
rounds = iter(range(1000))

def refused(call, kind, text):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise SystemExit(f"no {kind}")

def handles():
    turn = next(rounds)
    store.set(f"{turn}/{rank}", dist._get_reconfigure_handle())
    return [store.get(f"{turn}/{other}").decode() for other in range(size)]

def become(uuid, members):
    dist._reconfigure(uuid, members, timeout=limit).wait()
    n = len(members)
    assert group.size() == dist.get_world_size() == n
    assert c10d._world.pg_group_ranks[group] == {r: r for r in range(n)}
    x = torch.full((4,), dist.get_rank() + 1.0)
    dist.all_reduce(x)
    assert (x == n * (n + 1) / 2).all(), x
    if n > 1:
        after, before = (dist.get_rank() + 1) % n, (dist.get_rank() - 1) % n
        works = [dist.isend(torch.full((4,), float(dist.get_rank())), after)]
        works.append(dist.irecv(x, before))
        for work in works:
            work.wait()
        assert (x == before).all()
        dist.broadcast(x, group_src=0)

refused(lambda: dist.all_reduce(torch.ones(2)), RuntimeError, "is not initialised")
become(1, handles())                                  # grows from nothing
assert dist.get_rank() == rank
become(2, handles())                                  # the same members
old = dist.new_group([0, 1, 2])
dist.all_reduce(torch.ones(1), group=old)
known = handles()
if rank < 2:                                          # without the last one
    become(3, known[:2])
    refused(lambda: dist.all_reduce(torch.ones(1), group=old), RuntimeError, "reformed")
else:
    refused(lambda: dist.all_reduce(torch.ones(1)), RuntimeError, "has revoked the world")
become(4, set(handles()))                             # again; the ranks are the group's choice
known = handles()
if rank != 1:                                         # without the middle one
    become(5, [known[0], known[2]])
    assert dist.get_rank() == rank // 2
become(6, handles())
known = handles()
become(10 + rank, [known[rank]])                      # each one alone
refused(lambda: become(10 + rank, [known[rank]]), RuntimeError, "already used")
refused(lambda: become(20, known[:rank] + known[rank + 1 :]), ValueError, "this one's too")
refused(lambda: become(21, ["x", known[rank]]), ValueError, "no handle")
if rank:                                              # two together, one alone
    become(30, known[1:])
become(31, handles())                                 # merged
group._get_backend(torch.device("cpu")).abort()
refused(lambda: dist.all_reduce(torch.ones(2)), RuntimeError, "has aborted the group")
assert group.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS
become(32, handles())                                 # after an abort
if rank < 2:
    refused(lambda: dist.shrink_group([0, 1, 2]), ValueError, "ranks_to_exclude=[0, 1, 2]")
    assert dist.shrink_group([2]) is group
    assert dist.get_world_size() == 2
    dist.barrier()
handles()
dist.destroy_process_group()
print("all cases")
"""


def test_the_cases_of_torch(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    started = [
        subprocess.Popen(
            [sys.executable, str(path), str(tmp_path), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(3)
    ]
    told = [process.communicate(timeout=120)[0] for process in started]
    assert all(text.endswith("all cases\n") for text in told), told
