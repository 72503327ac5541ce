"""Beginning and end of the default group, also if the program itself uses paddlempi."""

from __future__ import annotations

import importlib.util

import job
import pytest


def again() -> None:
    import paddlempi
    import paddlempi.torch
    import torch
    import torch.distributed as dist
    from paddlempi import errors
    from ranks_tools import done, raises

    for _ in range(3):
        dist.init_process_group("mpi")
        rank = dist.get_rank()
        groups = [dist.new_group(), dist.new_group([rank], use_local_synchronization=True)]
        for group in (None, *groups):
            x = torch.ones(3)
            dist.all_reduce(x, group=group)
            assert x.tolist() == [dist.get_world_size(group)] * 3
        if rank == 0:
            dist.destroy_process_group(groups[0])
        assert paddlempi.is_initialized()
        dist.barrier()
        dist.destroy_process_group()
        assert not dist.is_initialized()
        assert not paddlempi.is_initialized()
        with raises(ValueError, "Default process group has not been initialized"):
            dist.all_reduce(torch.ones(1))
        for group in groups:
            try:
                group.allreduce([torch.ones(1)])
            except RuntimeError as error:
                assert isinstance(error, errors.Error), error
            else:
                raise AssertionError("a group outlived its world")
    done()


@pytest.mark.parametrize("np", [2, 3])
def test_init_after_destroy(np: int) -> None:
    job.succeed(np, again)


def with_barrier() -> None:
    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from ranks_tools import done

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
    job.succeed(2, with_barrier, env={"TORCH_DIST_INIT_BARRIER": "1"})


def in_a_world() -> None:
    from datetime import timedelta

    import paddlempi
    import paddlempi.torch
    import torch
    import torch.distributed as dist
    from paddlempi import _native
    from ranks_tools import done, start, works

    def deadline(group: int) -> float:
        return float(_native.control("group_info", group=group)["timeout"])

    # The program has a world. torch joins it, with another deadline, and leaves it.
    start(timeout=99.0)
    for _ in range(2):
        dist.init_process_group("mpi", timeout=timedelta(seconds=33))
        x = torch.ones(3)
        dist.all_reduce(x)
        assert x.tolist() == [dist.get_world_size()] * 3
        assert deadline(dist.group.WORLD._gid) == 33.0
        assert deadline(0) == 99.0
        works()
        dist.destroy_process_group()
        works()
    paddlempi.destroy_process_group()
    assert not paddlempi.is_initialized()

    # paddlempi makes torch's default group, and ends it.
    for _ in range(2):
        start(timeout=55.0, framework="torch")
        assert isinstance(dist.group.WORLD, paddlempi.torch.ProcessGroupMPI)
        assert deadline(dist.group.WORLD._gid) == 55.0
        dist.all_reduce(x)
        works()
        paddlempi.destroy_process_group()
        assert not dist.is_initialized()

    # A world that torch alone uses has torch's deadline.
    dist.init_process_group("mpi", timeout=timedelta(seconds=11))
    assert deadline(0) == 11.0
    dist.destroy_process_group()
    assert not paddlempi.is_initialized()
    done()


def test_joins_the_world_of_the_program() -> None:
    job.succeed(2, in_a_world)


def early() -> None:
    import time

    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from ranks_tools import done

    dist.init_process_group("mpi")
    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    dist.barrier()
    if rank == 2:
        dist.destroy_process_group()  # does not wait for the other ranks
    else:
        time.sleep(1)
        x = torch.ones(1)
        dist.all_reduce(x, group=pair)
        assert x.item() == 2
        dist.destroy_process_group()
    done()


def test_one_rank_leaves_early() -> None:
    job.succeed(3, early)


def missing() -> None:
    import builtins
    import pickle
    import time
    from datetime import timedelta

    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from paddlempi import errors
    from ranks_tools import done

    dist.init_process_group("mpi")
    rank = dist.get_rank()
    soon = timedelta(seconds=1)
    barriers = [dist.new_group() for _ in range(2)]
    kinds = (builtins.TimeoutError, dist.DistBackendError)
    groups = {kind: dist.new_group(timeout=soon) for kind in kinds}
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    if rank < 2:
        for all_ranks, barrier in zip((False, True), barriers, strict=True):
            for _ in range(2):  # the group stays usable
                try:
                    dist.monitored_barrier(barrier, timeout=soon, wait_all_ranks=all_ranks)
                except dist.DistBackendError as error:
                    assert error.ranks == (2,), error
                    assert "2" in str(error)
                else:
                    raise AssertionError("no error, although rank 2 did not come")
        for kind in kinds:
            try:
                dist.all_reduce(torch.ones(2), group=groups[kind])
            except kind as error:
                assert isinstance(error, errors.TimeoutError)
                assert isinstance(error, RuntimeError)
                assert error.ranks == (2,)
                assert pickle.loads(pickle.dumps(error)).ranks == (2,)
            else:
                raise AssertionError("no error, although rank 2 did not come")
            try:
                dist.all_reduce(torch.ones(2), group=groups[kind])
            except dist.DistBackendError as error:
                assert isinstance(error, errors.GroupBrokenError)
            else:
                raise AssertionError("no error, although the group was broken")
        store.add("given up", 1)
    else:
        while store.add("given up", 0) < 2:
            time.sleep(0.05)
    # The default group still works.
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == 3
    dist.destroy_process_group()
    done()


def test_ranks_that_never_come() -> None:
    job.succeed(3, missing)


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


COMPANY = ["thread", *(["mpi4py"] if importlib.util.find_spec("mpi4py") else [])]


@pytest.mark.parametrize("company", COMPANY)
@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("exception", "[rank1]: ValueError: gave up"),
        ("interrupt", "[rank1]: KeyboardInterrupt"),
        ("text", "rank 1 gave up"),
    ],
)
def test_what_ended_the_program_is_shown_once(way: str, text: str, company: str) -> None:
    ended = job.run(2, raises_in_company, env={"COMPANY": company, "WAY": way})
    assert ended.returncode != 0
    assert ended.result.stderr.count(text) == 1, ended.output
    tracebacks = ended.result.stderr.count("[rank1]: Traceback (most recent call last)")
    assert tracebacks == (way != "text"), ended.output
    assert "went on" not in ended.output
