"""The path ipc: the ranks of one node access each other's device memory.

Every test is a job under mpirun. If ``PADDLEMPI_CUDA_PATHS`` is ``ipc``, no other path can have
carried the call.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import job
import pytest
from paddlempi.testing import launch

HERE = Path(__file__).resolve().parent


def succeed(ranks: int, program: Callable[[], object], paths: str = "ipc", **settings: str) -> None:
    """Run a job. Fail unless all ranks succeed. The program may import modules of this folder."""
    path = os.pathsep.join([str(HERE), job.HERE, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"PMPI_FAKECUDA_DELAY": "60", **settings, "PADDLEMPI_CUDA_PATHS": paths}
    ended = launch.run(ranks, program, timeout=100, env={**os.environ, **env, "PYTHONPATH": path})
    assert not ended.timed_out, ended.output
    assert ended.returncode == 0, ended.output
    assert ended.stdout.count("done\n") == ranks, ended.output


def sums() -> None:
    import ipc_ranks as ipc
    import paddlempi as dist
    from ipc_ranks import call, reduced, same, tensor, values
    from paddlempi import _native
    from paddlempi._ops import Op

    rank, size = ipc.start()
    step = 0
    for dtype in ipc.FLOATS + ipc.INTEGERS:
        for op in ipc.ops_of(dtype):
            # One device or two. By the count all ranks add up slices, or one rank adds up all.
            step += 1
            on, count = (rank % 2 if step % 2 else 0), (17000, 1, 300)[step % 3]
            late, root = step % 4 == 0, step % size
            parts = [values(dtype, count, r + step) for r in range(size)]
            x = tensor(parts[rank], on)
            call(late, dist.all_reduce, x, op)
            same(x, reduced(op, parts), "all_reduce", dtype, op, count)

            x, y = tensor(parts[rank], on), tensor(parts[rank - 1], on)
            plain = dist.ReduceOp.SUM if op.name == "PREMUL_SUM" else op
            _native.submit(Op.ALL_REDUCE, 0, x, y, plain)
            same(y, reduced(plain, parts), "all_reduce out of place", dtype, op, count)
            same(x, parts[rank], "what it was made of", dtype, op, count)

            x = tensor(parts[rank], on, offset=16 * rank)
            call(late, dist.reduce, x, root, op)
            expected = reduced(op, parts) if rank == root else parts[rank]
            same(x, expected, "reduce", dtype, op, count)

            whole = [values(dtype, count * size, r + step) for r in range(size)]
            x, own = tensor(whole[rank], on), slice(count * rank, count * (rank + 1))
            got = x[own] if step % 5 == 0 else tensor(parts[rank], on)  # in place, or not
            call(late, dist.reduce_scatter_tensor, got, x, op)
            same(got, reduced(op, [w[own] for w in whole]), "reduce_scatter", dtype, op, count)

            x, k = tensor(whole[rank], on), count // 2  # the last share is longer, or the only one
            cuts = [
                slice(k * r, k * (r + 1) if r < size - 1 else count * size) for r in range(size)
            ]
            got = tensor(whole[rank][cuts[rank]], on)
            call(late, dist.reduce_scatter, got, [x[cut] for cut in cuts], op)
            expected = reduced(op, [w[cuts[rank]] for w in whole])
            same(got, expected, "uneven reduce_scatter", dtype, op, count)
    ipc.done()


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_reduction(ranks: int) -> None:
    succeed(ranks, sums)


def moves() -> None:
    import ipc_ranks as ipc
    import numpy as np
    import paddlempi as dist
    from ipc_ranks import call, same, tensor, values

    rank, size = ipc.start()

    def of(seed: int, n: int) -> np.ndarray:
        return values("int64", n, seed)

    for step in range(12):
        on, n, late = (rank % 2 if step % 2 else 0), (1, 5000, 0)[step % 3], step % 4 > 1
        root, how = step % size, {"on": on, "offset": 8 * rank}
        mine = [of(r, n) for r in range(size)]
        every = [of(10 + r, n * size) for r in range(size)]
        own = slice(n * rank, n * (rank + 1))

        x = tensor(mine[rank], **how)
        call(late, dist.broadcast, x, root)
        same(x, mine[root], "broadcast")

        x, whole = tensor(mine[rank], **how), tensor(every[rank], **how)
        call(late, dist.all_gather_into_tensor, whole, x)
        same(whole, np.concatenate(mine), "all_gather")
        parts = [tensor(mine[0], on) for _ in range(size)]
        call(late, dist.all_gather, parts, x)
        for r in range(size):
            same(parts[r], mine[r], "all_gather into a list")
        window = tensor(every[rank], **how)  # a rank's send side is part of its receive side
        call(late, dist.all_gather_into_tensor, window, window[own])
        expected = np.concatenate([every[r][n * r : n * (r + 1)] for r in range(size)])
        same(window, expected, "all_gather in place")

        parts = [tensor(mine[0], on) for _ in range(size)] if rank == root else None
        call(late, dist.gather, x, parts, root)
        for r in range(size if rank == root else 0):
            same(parts[r], mine[r], "gather")

        given = tensor(every[root], **how)
        chunks = [given[n * r : n * (r + 1)] for r in range(size)] if rank == root else None
        got = chunks[rank] if chunks and step > 5 else tensor(mine[rank], **how)
        call(late, dist.scatter, got, chunks, root)
        same(got, every[root][own], "scatter of the chunks of a tensor")

        sent, got = tensor(every[rank], **how), tensor(every[0], **how)
        call(late, dist.all_to_all_single, got, sent)
        same(got, np.concatenate([every[r][own] for r in range(size)]), "all_to_all")
        parts = [tensor(mine[0], on) for _ in range(size)]
        call(late, dist.all_to_all, parts, [sent[n * r : n * (r + 1)] for r in range(size)])
        for r in range(size):
            same(parts[r], every[r][own], "all_to_all of lists")

        uneven = [of(r, n * (r + 1)) for r in range(size)]
        parts = [tensor(np.zeros(n * (r + 1), np.int64), on) for r in range(size)]
        call(late, dist.all_gather, parts, tensor(uneven[rank], on))
        for r in range(size):
            same(parts[r], uneven[r], "all_gather of different lengths")
    ipc.done()


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_only_moves(ranks: int) -> None:
    succeed(ranks, moves)


def others() -> None:
    import ipc_ranks as ipc
    import numpy as np
    import paddlempi as dist
    from ipc_ranks import opens, same, tensor, values, went

    rank, size = ipc.start()
    n = 700
    parts = [values("float32", n, r) for r in range(size)]
    total = sum(parts)
    with went("ipc"):
        plain = tensor(parts[rank])
        dist.all_reduce(plain)
    same(plain, total, "plain")
    for kind in ("pool", "managed"):
        with went("staged"):
            x = tensor(parts[rank], kind=kind)
            dist.all_reduce(x)
        same(x, total, kind)
        with went("staged"):  # only rank 1 has such memory
            x = tensor(parts[rank], kind=kind if rank == 1 else "plain")
            dist.all_reduce(x)
        same(x, total, kind, "of one rank")
    with went("staged"):
        x = tensor(np.repeat(parts[rank], 2))[::2]
        dist.all_reduce(x)
    same(x, total, "not contiguous")
    x = parts[rank].copy() if rank == 0 else tensor(parts[rank])
    dist.all_reduce(x)
    assert (x == total).all() if rank == 0 else (ipc.read(x) == total).all(), "host tensors"
    with went("staged"):  # a rank's tensors have gaps between them
        room = tensor(np.zeros(2 * n * size, np.float32))
        lists = [room[2 * n * r : 2 * n * r + n] for r in range(size)]
        for r, part in enumerate(lists):
            part.fill_from(parts[r])
        got = tensor(parts[rank])
        dist.reduce_scatter(got, lists)
    same(got, parts[rank] * np.float32(size), "a list with gaps")
    with went("staged"):  # a rank writes where other ranks still read
        room = tensor(np.concatenate([parts[rank]] * (size + 1)))
        dist.all_gather_into_tensor(room[: n * size], room[n // 2 : n // 2 + n])
    middle = [np.concatenate([p, p])[n // 2 : n // 2 + n] for p in parts]
    same(room[: n * size], np.concatenate(middle), "overlapping windows")
    with went("staged"):
        x = [tensor(parts[rank]), tensor(parts[rank])]
        dist.all_reduce_coalesced(x)
    same(x[1], total, "coalesced")
    with went("staged"):
        x = tensor(parts[rank])
        dist.scan(x)
    same(x, sum(parts[: rank + 1]), "scan")
    opened = opens()
    dist.all_reduce(plain)
    same(plain, total * size, "plain, again")
    assert opens() == opened, "it was mapped again"
    ipc.done()


def test_what_goes_by_staging() -> None:
    succeed(2, others, "ipc,staged")


def anew() -> None:
    import device
    import ipc_ranks as ipc
    import numpy as np
    import paddlempi as dist
    from ipc_ranks import opens, same, tensor, values

    rank, size = ipc.start()
    n, address = 5000, 0
    for step in range(6):
        parts = [values("int32", n, r + step) for r in range(size)]
        x = tensor(parts[rank], offset=0)
        if rank:  # frees and allocates every time, at one address; rank 0 keeps its memory
            assert address in (0, x.base_ptr) or not device.is_fake(), "reuse the freed address"
            address = x.base_ptr
        dist.all_reduce(x)
        same(x, np.sum(parts, axis=0, dtype=np.int32), "step", step)
        if rank:
            stream = x.stream
            del x
            device.synchronize(stream)
            device.empty_cache()
        dist.barrier()
    opened = opens()
    if size == 2 and device.is_fake():
        assert opened == 6 if rank == 0 else opened <= 2, opened
        assert device.calls("cuIpcCloseMemHandle") == (5 if rank == 0 else 0)
    dist.destroy_process_group()
    if device.is_fake():
        assert device.calls("cuIpcCloseMemHandle") == opened, "an allocation is still mapped"
    ipc.done()


@pytest.mark.parametrize("ranks", [2, 3])
def test_memory_allocated_anew_at_one_address(ranks: int) -> None:
    succeed(ranks, anew)


def refused() -> None:
    import os

    import device
    import ipc_ranks as ipc
    import paddlempi as dist
    from ipc_ranks import same, tensor, values, went

    rank, size = ipc.start()
    parts = [values("float32", 20000, r) for r in range(size)]
    for rules in os.environ["REFUSED"].split():
        group = dist.new_group(range(size))
        if rules[0] == "+":  # the first call is not refused
            with went("ipc"):
                x = tensor(parts[rank], rank % 2)
                dist.all_reduce(x, group=group)
        if rank == size - 1:  # a refusal on one rank counts for all
            device.fail(rules.strip("+-"))
        x = tensor(parts[rank], rank % 2, offset=512)
        dist.all_reduce(x, group=group)
        device.fail("")
        same(x, sum(parts), rules)
        tried = [device.calls(f) for f in ("cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2")]
        for step in range(3):
            with went("staged"):
                x = tensor(parts[rank], rank % 2)
                work = dist.all_reduce(x, group=group, async_op=step == 1)
                assert work is None or work.wait()
            same(x, sum(parts), "after", rules)
        again = [device.calls(f) for f in ("cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2")]
        assert again == tried, "it was tried again"
    ipc.done()


@pytest.mark.fake_driver
def test_refused_to_one_rank() -> None:
    rules = (
        "cuIpcGetEventHandle:*:801 cuIpcOpenEventHandle:*:304 "
        "cuIpcGetMemHandle:*:304 cuIpcOpenMemHandle_v2:*:2 +cuIpcOpenMemHandle_v2:*:2"
    )
    succeed(2, refused, "ipc,staged", REFUSED=rules)


@pytest.mark.fake_driver
def test_refused_by_the_container() -> None:
    succeed(3, refused, "ipc,staged", REFUSED="-", PMPI_FAKECUDA_IPC="0")


@pytest.mark.fake_driver
def test_devices_that_cannot_reach_each_other() -> None:
    succeed(2, refused, "ipc,staged", REFUSED="-", PMPI_FAKECUDA_PEER="0")


def alone() -> None:
    import ipc_ranks as ipc
    import numpy as np
    import paddlempi as dist
    from ipc_ranks import tensor
    from paddlempi import errors

    ipc.start()
    try:
        dist.all_reduce(tensor(np.ones(10)))
    except errors.UnsupportedError as error:
        for word in ("PADDLEMPI_CUDA_PATHS", "ipc does not work in this group: cuIpc"):
            assert word in str(error), error
    else:
        raise AssertionError("no UnsupportedError")
    ipc.done()


@pytest.mark.fake_driver
def test_refused_with_no_other_path() -> None:
    succeed(2, alone, "ipc", PMPI_FAKECUDA_IPC="0")


def order() -> None:
    import time
    from contextlib import nullcontext

    import device
    import ipc_ranks as ipc
    import numpy as np
    import paddlempi as dist
    from ipc_ranks import same, stream, tensor, values

    rank, size = ipc.start()

    def scene(n: int, late: int) -> None:
        """Late work on one rank's stream holds up no call, but all operations that need it wait."""
        other = (late + 1) % size
        parts = [values("int32", n, r + late) for r in range(size)]
        total, junk = np.sum(parts, axis=0, dtype=np.int32), np.full(n, 1 << 20, np.int32)

        def once(carry_out, expected, overwrite: bool = False) -> None:
            x = tensor(junk)
            device.synchronize(stream())
            with device.hold(stream()) if rank == late else nullcontext():
                x.fill_from(parts[rank])
                carry_out(x)
                if overwrite:  # while other ranks still have to read it
                    x.fill_from(junk)
                if rank == late:
                    assert device.is_busy(stream())
                    time.sleep(0.03)
            same(x, expected, n, late)
            dist.barrier()

        once(dist.all_reduce, total)
        gives = rank == other
        once(lambda x: dist.broadcast(x, other), junk if gives else parts[other], gives)
        got = [tensor(junk) for _ in range(size)] if rank == late else None
        once(lambda x: dist.gather(x, got, late), junk, True)
        for r, part in enumerate(got or []):
            same(part, parts[r], "gathered", late)
        whole = tensor(np.tile(junk, size))
        once(lambda x: dist.all_gather_into_tensor(whole, x), junk, True)
        same(whole, np.concatenate(parts), "gathered by all", late)

    if not device.is_fake():
        # A GPU loads a kernel when it is first used, and waits for all work on the device then.
        dist.all_reduce(tensor(np.ones(20000, np.int32)))
    for late in range(size):
        scene(300, late)  # rank 0 adds up everything
        scene(20000, late)  # all ranks add up
    ipc.done()


@pytest.mark.parametrize("ranks", [2, 3])
def test_order_with_the_tensors_streams(ranks: int) -> None:
    succeed(ranks, order, PMPI_FAKECUDA_DELAY="1000")


def many() -> None:
    import ipc_ranks as ipc
    import numpy as np
    import paddlempi as dist
    from ipc_ranks import same, tensor, values

    rank, size = ipc.start()
    other = dist.new_group(range(size - 1, -1, -1))
    n = 9000
    parts = [values("int32", n, r) for r in range(size)]
    xs = [tensor(parts[rank]) for _ in range(3)]
    expected = [p.copy() for p in parts]
    works = []
    for step in range(40):  # far ahead of the devices, in two groups, on the same tensors
        x = xs[step % 3]
        if step % 2:
            works.append(dist.all_reduce(x, group=other, async_op=True))
            works[-1].wait()
        else:
            dist.broadcast(x, step % size)
    total = np.sum(parts, axis=0, dtype=np.int32)
    for i, x in enumerate(xs):
        expected = [p.copy() for p in parts]
        for step in range(i, 40, 3):
            if step % 2:
                expected = [np.sum(expected, axis=0, dtype=np.int32)] * size
            else:
                expected = [expected[step % size]] * size
        same(x, expected[rank], "tensor", i)
    assert (total != parts[0]).any()
    dist.destroy_process_group(other)
    for _ in range(3):  # groups that come and go, with events of earlier groups
        group = dist.new_group(range(size))
        x = tensor(parts[rank])
        dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
        same(x, total, "a group that has ended")
    ipc.done()


@pytest.mark.parametrize("ranks", [2, 3])
def test_many_in_a_row(ranks: int) -> None:
    succeed(ranks, many, PMPI_FAKECUDA_DELAY="300")


def fails() -> None:
    import os
    import threading

    # With a device that is slow to end its work, rank 0 hears of the end of the others first.
    if (
        os.environ.get("SLOW")
        and os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "0"
    ):
        os.environ["PMPI_FAKECUDA_DELAY"] = os.environ["SLOW"]

    import device
    import ipc_ranks as ipc
    import numpy as np
    import paddlempi as dist
    from ipc_ranks import same, stream, tensor
    from paddlempi import errors

    rank, size = ipc.start()
    group = dist.new_group(range(size))
    x, junk = tensor(np.ones(20000, np.float32)), np.full(20000, 7, np.float32)
    dist.all_reduce(x, group=group)
    if rank == 1:
        device.fail("cuLaunchKernel:*:701")
    if rank == 2:  # the other ranks' part waits for a while
        hold = device.hold(stream())
        hold.__enter__()
        threading.Timer(0.3, hold.__exit__, (None, None, None)).start()
    try:
        dist.all_reduce(x, group=group)
    except errors.CudaError as error:
        word = "701" if rank == 1 else "rank 1 of the group"
        assert word in str(error), error
    else:
        raise AssertionError("no CudaError")
    device.fail("")
    x.fill_from(junk)  # no other rank writes there any more
    dist.barrier()
    same(x, junk, "after the error")
    dist.barrier()
    try:
        dist.all_reduce(x, group=group)
    except errors.GroupBrokenError:
        pass
    else:
        raise AssertionError("no GroupBrokenError")
    x = tensor(np.ones(20000, np.float32))
    dist.all_reduce(x)  # another group still works
    same(x, np.full(20000, size, np.float32), "afterwards")
    ipc.done()


@pytest.mark.fake_driver
@pytest.mark.parametrize("slow", ["", "20000"], ids=["alike", "rank 0 is slow"])
def test_a_rank_that_cannot_queue_its_part(slow: str) -> None:
    succeed(3, fails, SLOW=slow)
