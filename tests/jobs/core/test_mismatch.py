"""Ranks that call different things: all of them raise, and the group stays usable."""

from __future__ import annotations

import job
import pytest


def differing_calls() -> None:
    """In every case the odd rank makes another call than all other ranks, on the same group."""
    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    f = np.float32
    rank = start()
    size = dist.get_world_size()

    def ones(n, dtype=f):
        return np.ones(n, dtype)

    def reduces(n=4, dtype=f, op=dist.ReduceOp.SUM):
        return lambda g, a: dist.all_reduce(ones(n, dtype), op, g, a)

    def sends(root):
        return lambda g, a: dist.broadcast(ones(4), group=g, async_op=a, group_src=root)

    def gathers(root):
        def call(g, a):
            mine = dist.get_rank(g) == root
            outs = [ones(4) for _ in range(size)] if mine else None
            return dist.gather(ones(4), outs, group=g, async_op=a, group_dst=root)

        return call

    def lists(n):
        return lambda g, a: dist.all_gather(
            [ones(n + i) for i in range(size)], ones(n + dist.get_rank(g)), g, a
        )

    def parts(counts):
        return lambda g, a: dist.all_reduce_coalesced(
            [ones(n) for n in counts], group=g, async_op=a
        )

    cases = {
        "op": (reduces(), lambda g, a: dist.barrier(g, a)),
        "op of the same shape": (reduces(), lambda g, a: dist.scan(ones(4), group=g, async_op=a)),
        "dtype": (reduces(), reduces(dtype=np.int32)),
        "dtype of another size": (reduces(), reduces(dtype=np.float64)),
        "count": (reduces(4), reduces(5)),
        "nothing": (reduces(4), reduces(0)),
        "reduce op": (reduces(), reduces(op=dist.ReduceOp.MAX)),
        "factor": (
            reduces(op=dist.ReduceOp.PREMUL_SUM(2.0)),
            reduces(op=dist.ReduceOp.PREMUL_SUM(3.0)),
        ),
        "root of broadcast": (sends(0), sends(1)),
        "root of gather": (gathers(0), gathers(1)),
        "uneven all_gather": (lists(2), lists(3)),
        "parts with the same sum": (parts([2, 4]), parts([3, 3])),
        "reduce_scatter": (
            lambda g, a: dist.reduce_scatter_tensor(ones(2), ones(2 * size), group=g, async_op=a),
            lambda g, a: dist.reduce_scatter_tensor(ones(3), ones(3 * size), group=g, async_op=a),
        ),
    }

    def uneven(g, a):
        """Member 0 sends 3 rows to member 1, which expects 2."""
        me = dist.get_rank(g)
        give, take = [1] * size, [1] * size
        if me == 0:
            give[1] = 3
        if me == 1:
            take[0] = 2
        return dist.all_to_all_single(ones(sum(take)), ones(sum(give)), take, give, g, a)

    def check(name, call, group, mode, words, odd):
        # With two ranks there is no odd one, so the error names both.
        ranks = range(size) if size == 2 else odd
        told = raises(errors.MismatchError, *words, ranks=ranks, most=10)
        if mode == "sync":
            with told:
                call(group, False)
            return
        work = call(group, mode == "async" or rank == 0)
        with told:
            if work is not None:
                work.wait()

    groups = {"world": None, "sub": dist.new_group(list(reversed(range(size))))}
    for group in groups.values():
        members = dist.get_process_group_ranks(group)
        for mode in "sync", "async":
            for number, (name, (most, other)) in enumerate(cases.items()):
                odd = number % size
                mine = dist.get_rank(group) == odd
                call = other if mine else most
                print("case", name, mode, flush=True)
                check(name, call, group, mode, ["usable"], [members[odd]])
                if number % 4 == 0:
                    works(group)
            with raises(
                errors.MismatchError, "all_to_all", "of the group sends", ranks=members[:2]
            ):
                work = uneven(group, mode == "async")
                if work is not None:
                    work.wait()
            works(group)
    done()


def sync_and_async_differ() -> None:
    """One rank waits inside the call, the other does not. More works are queued behind."""
    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start()
    good = [np.full(3, rank + 1.0) for _ in range(6)]
    behind = [dist.all_reduce(x, async_op=True) for x in good[:3]]
    if rank == 0:
        with raises(errors.MismatchError, "rank(s) [0]: all_reduce(float64[2], SUM)", "float64[3]"):
            dist.all_reduce(np.ones(2))
    else:
        wrong = dist.all_reduce(np.ones(3), async_op=True)
    behind += [dist.all_reduce(x, async_op=True) for x in good[3:]]
    for work in behind:
        work.wait()
    if rank == 1:
        with raises(errors.MismatchError, ranks=[0, 1]):
            wrong.wait()
    assert all((x == 3).all() for x in good)
    works()
    done()


@pytest.mark.parametrize("np", [pytest.param(2, marks=pytest.mark.one_mpi), 3])
def test_differing_calls(np: int) -> None:
    job.succeed(np, differing_calls)


@pytest.mark.one_mpi
def test_sync_and_async_differ() -> None:
    job.succeed(2, sync_and_async_differ)
