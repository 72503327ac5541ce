"""Deadlines of torch's groups and calls, members that never come, Ctrl-C."""

from __future__ import annotations

import builtins
import os
import pickle
import signal
import threading
import time
from datetime import timedelta
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from paddlempi import errors

pytestmark = pytest.mark.mpi(ranks=2)


@pytest.mark.usefixtures("no_world")
def test_the_deadline_of_init() -> None:
    dist.init_process_group("mpi", timeout=timedelta(seconds=2))
    if dist.get_rank() == 0:
        began = time.monotonic()
        try:
            dist.all_reduce(torch.ones(2))
        except dist.DistBackendError as error:
            assert 1.9 < time.monotonic() - began < 20
            assert error.ranks == (1,)
        else:
            raise AssertionError("no timeout")
    else:
        time.sleep(4)


def test_a_member_that_never_comes_is_named(dist: ModuleType, rank: int, size: int) -> None:
    """Rank 0 does not come to operations of several kinds. The others' errors name rank 0."""
    everyone = list(range(size))
    c10d = dist.distributed_c10d

    def late(group, call, least, words):
        began = time.monotonic()
        try:
            call(group)
        except RuntimeError as error:
            took = time.monotonic() - began
            assert isinstance(error, dist.DistBackendError), error
            assert isinstance(error, errors.TimeoutError), error
            assert not isinstance(error, errors.NotReadyError), error
            assert 0 in error.ranks, error
            assert least - 0.05 <= took < least + 20, (took, error)
            for word in words:
                assert word in str(error), (word, error)
        else:
            raise AssertionError("no timeout")

    def short():
        # The timeout is set later, because the argument of new_group also limits new_group.
        made = dist.new_group(everyone)
        made.set_timeout(timedelta(seconds=0.5))
        return made

    # The deadline of a group, for synchronous and asynchronous calls.
    group = short()
    if rank:
        late(group, lambda g: dist.all_reduce(torch.ones(2), group=g), 0.5, ["all_reduce"])
        try:
            dist.barrier(group)
        except dist.DistBackendError as error:
            assert isinstance(error, errors.GroupBrokenError), error
        else:
            raise AssertionError("the group was not broken")
    group = short()
    if rank:
        x = torch.ones(2)
        work = dist.all_reduce(x, group=group, async_op=True)
        future = work.get_future()
        late(group, lambda g: work.wait(), 0.4, ["all_reduce"])
        late(group, lambda g: work.wait(), 0.0, ["all_reduce"])
        late(group, lambda g: future.wait(), 0.0, ["all_reduce"])
        assert isinstance(work.exception(), errors.TimeoutError)
    # In C++ code, inside backward.
    group = dist.new_group(everyone)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2), process_group=group)
    group.set_timeout(timedelta(seconds=0.5))
    if rank:
        loss = model(torch.ones(1, 3)).sum()
        try:
            loss.backward()
        except errors.TimeoutError as error:
            assert str(error).startswith("all_reduce"), error
        else:
            raise AssertionError("no timeout")
    # By the functions of newer versions of torch.
    if hasattr(dist, "set_timeout"):
        group = dist.new_group(everyone)
        dist.set_timeout(timedelta(seconds=0.4), group)
        if rank:
            late(group, lambda g: dist.barrier(g), 0.4, ["barrier"])
        group = dist.new_group(everyone)
        c10d._set_pg_timeout(timedelta(seconds=0.4), group)
        if rank:
            late(group, lambda g: dist.barrier(g), 0.4, ["barrier"])
    # The deadline of one call.
    group = dist.new_group(everyone)
    if rank:
        opts = c10d.AllreduceOptions()
        opts.timeout, opts.asyncOp = timedelta(seconds=0.4), False
        late(group, lambda g: g.allreduce([torch.ones(1)], opts), 0.4, ["all_reduce"])
    group = dist.new_group(everyone)
    if rank:
        opts = c10d.BarrierOptions()
        opts.timeout = timedelta(seconds=0.4)
        late(group, lambda g: g.barrier(opts).wait(), 0.4, ["barrier"])
    # A message that no rank sends.
    group = short()
    if rank:
        late(group, lambda g: dist.recv(torch.ones(1), 0, group=g), 0.4, ["recv"])
        work = dist.irecv(torch.ones(1), 0, group=group, tag=1)
        late(group, lambda g: work.wait(), 0.3, ["recv"])
        work = dist.irecv(torch.ones(1), 0, group=group, tag=2)
        try:
            work.wait(timedelta(milliseconds=20))
        except errors.NotReadyError as error:
            assert isinstance(error, dist.DistBackendError)
        else:
            raise AssertionError("the deadline of wait did not pass")
    # The world still works.
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x.tolist() == [size] * 2


@pytest.mark.mpi(ranks=3)
def test_ranks_that_never_come(dist: ModuleType, rank: int) -> None:
    short, soon = timedelta(seconds=0.3), timedelta(seconds=1)
    barriers = [dist.new_group() for _ in range(2)]
    kinds = (builtins.TimeoutError, dist.DistBackendError)
    groups = {kind: dist.new_group(timeout=soon) for kind in kinds}
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    if rank < 2:
        for all_ranks, barrier in zip((False, True), barriers, strict=True):
            for _ in range(2):  # the group stays usable
                try:
                    dist.monitored_barrier(barrier, timeout=short, wait_all_ranks=all_ranks)
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


def test_more_time_for_a_while(dist: ModuleType, rank: int, size: int) -> None:
    """``torch.compile`` gives a rank more time until its next operation has ended."""
    short = timedelta(seconds=0.5)
    for asynchronous in (False, True):
        group = dist.new_group(list(range(size)))
        group.set_timeout(short)
        x = torch.ones(2)
        if rank:
            group._add_ephemeral_timeout(timedelta(seconds=30))
            group._add_ephemeral_timeout(timedelta(seconds=30))
            work = dist.all_reduce(x, group=group, async_op=asynchronous)
            if asynchronous:
                work.wait()
            assert group._extension.seconds == 0
        else:
            time.sleep(1.5)  # three times what the group allows
            group.set_timeout(timedelta(seconds=30))
            dist.all_reduce(x, group=group)
        assert x.tolist() == [size] * 2
        # The next operation has the group's own deadline again.
        if rank:
            began = time.monotonic()
            try:
                dist.all_reduce(x, group=group)
            except errors.TimeoutError:
                assert time.monotonic() - began < 20
            else:
                raise AssertionError("the extension was not taken back")
    if hasattr(dist, "set_timeout"):  # older functions ask only NCCL's groups
        dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs(timedelta(seconds=5))
        assert dist.group.WORLD._extension.seconds == 5
    dist.barrier()


def test_ctrl_c(dist: ModuleType, rank: int) -> None:
    groups = [dist.new_group([0, 1]) for _ in range(2)]

    def struck(call):
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        began = time.monotonic()
        try:
            call()
        except KeyboardInterrupt:
            assert time.monotonic() - began < 20
        else:
            raise AssertionError("no KeyboardInterrupt")

    x, y = torch.ones(2), torch.zeros(2)
    if rank == 0:
        work = dist.irecv(y, 1, tag=1)
        struck(work.wait)
        struck(lambda: work.wait(timedelta(seconds=30)))
        reduced = dist.all_reduce(x, group=groups[0], async_op=True)
        struck(reduced.wait)
        dist.send(torch.ones(1), 1)
        work.wait()
        reduced.wait()
        assert y.tolist() == [3, 3] and x.tolist() == [2, 2]
        struck(lambda: dist.all_reduce(x, group=groups[1]))
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)
        dist.send(torch.full((2,), 3.0), 0, tag=1)
        dist.all_reduce(x, group=groups[0])
        dist.recv(torch.ones(1), 0)
    try:
        dist.all_reduce(x, group=groups[1])
    except dist.DistBackendError as error:
        assert isinstance(error, errors.GroupBrokenError), error
    else:
        raise AssertionError("the group was not broken")
    dist.barrier()
