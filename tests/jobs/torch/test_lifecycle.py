"""A barrier after every init, and programs that a rank ends."""

from __future__ import annotations

import importlib.util

import job
import pytest


def with_barrier() -> None:
    import os

    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from ranks_tools import done

    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"  # torch reads it in every init
    for backend in ("mpi", "cpu:mpi,cuda:gloo"):
        dist.init_process_group(backend)
        rank = dist.get_rank()
        pair = dist.new_group([0, 1])
        alone = dist.new_group([rank], use_local_synchronization=True)
        x = torch.ones(1)
        for group in (pair, alone):
            dist.all_reduce(x, group=group)
        assert x.item() == (2 if rank < 2 else 1)
        dist.destroy_process_group()
    done()


def test_a_barrier_after_every_init() -> None:
    job.succeed(2, with_barrier)


def raises_in_company() -> None:
    import os
    import sys
    import threading
    import time

    if os.environ["COMPANY"] == "mpi4py":
        from mpi4py import MPI

        assert MPI.Is_initialized()
    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist

    dist.init_process_group("mpi")
    if dist.get_rank() == 1:
        if os.environ["COMPANY"] == "thread":
            threading.Thread(target=time.sleep, args=(60,)).start()
        if os.environ["WAY"] == "text":
            sys.exit("rank 1 gave up")
        raise KeyboardInterrupt if os.environ["WAY"] == "interrupt" else ValueError("gave up")
    dist.all_reduce(torch.ones(1))
    print("went on", flush=True)


MPI4PY = "mpi4py" if importlib.util.find_spec("mpi4py") else "thread"


# Every way in every company, without torch: tests/jobs/core/test_exits.py.
@pytest.mark.parametrize(
    ("way", "text", "company"),
    [
        ("exception", "[rank1]: ValueError: gave up", MPI4PY),
        ("interrupt", "[rank1]: KeyboardInterrupt", "thread"),
        ("text", "rank 1 gave up", MPI4PY),
    ],
)
def test_what_ended_the_program_is_shown_once(way: str, text: str, company: str) -> None:
    ended = job.run(2, raises_in_company, env={"COMPANY": company, "WAY": way})
    assert ended.returncode != 0
    assert ended.result.stderr.count(text) == 1, ended.output
    tracebacks = ended.result.stderr.count("[rank1]: Traceback (most recent call last)")
    assert tracebacks == (way != "text"), ended.output
    assert "went on" not in ended.output
