"""A wrong argument on one rank: that rank raises its own error, other ranks raise RefusedError.

The RefusedError names the rank. No data was sent, and the group stays usable.
"""

from __future__ import annotations

import job
import pytest


def wrong_arguments() -> None:
    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    f = np.float32
    rank = start()
    size = dist.get_world_size()
    argument, dtype = errors.ArgumentError, errors.DtypeError
    SUM, AVG, MAX, BAND = (getattr(dist.ReduceOp, n) for n in ("SUM", "AVG", "MAX", "BAND"))

    def ones(n=4, kind=f):
        return np.ones(n, kind)

    def frozen():
        x = ones()
        x.flags.writeable = False
        return x

    def many(n=size):
        return [ones() for _ in range(n)]

    def reduces(make, op=SUM):
        return lambda g, a: dist.all_reduce(make(), op, g, a)

    def gathers(make):
        return lambda g, a: dist.all_gather(make(), ones(), g, a)

    overlapping = np.lib.stride_tricks.as_strided(ones(), (4,), (0,))
    # A right call, a wrong call, the class of its error, and words of the error's text.
    cases = [
        (reduces(ones), reduces(frozen), argument, "read-only"),
        (reduces(ones), reduces(lambda: b"1234"), argument, "read-only"),
        (reduces(ones), reduces(lambda: overlapping), argument, "share memory"),
        (reduces(ones), reduces(object), dtype, "no tensor"),
        (reduces(ones), reduces(lambda: None), dtype, ""),
        (reduces(ones), reduces(lambda: 3.5), dtype, "float"),
        (reduces(ones), reduces(lambda: [1.0, 2.0]), None, ""),
        (reduces(ones), reduces(lambda: np.array(["a"])), dtype, ""),
        (reduces(ones), reduces(lambda: ones(kind=">f4")), dtype, ""),
        (
            reduces(ones),
            reduces(lambda: ones(kind=bool), AVG),
            dtype,
            "AVG is not defined for bool",
        ),
        (reduces(ones), reduces(lambda: ones(kind=np.complex64), MAX), dtype, "complex64"),
        (reduces(ones), reduces(ones, BAND), dtype, "BAND is not defined for float32"),
        (reduces(ones), reduces(ones, "sum"), dtype, "op="),
        (
            lambda g, a: dist.broadcast(ones(), group=g, async_op=a, group_src=0),
            lambda g, a: dist.broadcast(ones(), group=g, async_op=a, group_src=size),
            argument,
            f"group_src={size}",
        ),
        (
            lambda g, a: dist.broadcast(ones(), 0, group=g, async_op=a),
            lambda g, a: dist.broadcast(ones(), 77, group=g, async_op=a),
            argument,
            "src=77",
        ),
        (
            lambda g, a: dist.broadcast(ones(), 0, group=g, async_op=a),
            lambda g, a: dist.broadcast(ones(), "zero", group=g, async_op=a),
            dtype,
            "src is a str",
        ),
        (
            lambda g, a: dist.reduce(ones(), 0, group=g, async_op=a),
            lambda g, a: dist.reduce(ones(), -1, group=g, async_op=a),
            argument,
            "dst=-1",
        ),
        (gathers(many), gathers(lambda: many(size + 1)), argument, f"has {size + 1} tensors"),
        (gathers(many), gathers(lambda: many()[0]), dtype, "tensor_list is a ndarray"),
        (gathers(many), gathers(lambda: [*many(size - 1), ones(kind=np.int8)]), dtype, "one dtype"),
        (gathers(many), gathers(lambda: [*many(size - 1), object()]), dtype, "no tensor"),
        (
            lambda g, a: dist.all_gather_into_tensor(ones(4 * size), ones(), g, a),
            lambda g, a: dist.all_gather_into_tensor(ones(4 * size + 1), ones(), g, a),
            argument,
            f"{4 * size + 1} elements",
        ),
        (
            lambda g, a: dist.all_gather_into_tensor(ones(4 * size), ones(), g, a),
            lambda g, a: dist.all_gather_into_tensor(ones(4 * size, np.int32), ones(), g, a),
            dtype,
            "one dtype",
        ),
        (
            lambda g, a: dist.reduce_scatter(ones(), many(), group=g, async_op=a),
            lambda g, a: dist.reduce_scatter(ones(3), many(), group=g, async_op=a),
            argument,
            "3",
        ),
        (
            lambda g, a: dist.all_to_all_single(ones(size), ones(size), group=g, async_op=a),
            lambda g, a: dist.all_to_all_single(
                ones(size), ones(size), [1] * (size + 1), None, g, a
            ),
            argument,
            "output_split_sizes",
        ),
        (
            lambda g, a: dist.all_to_all_single(ones(size), ones(size), group=g, async_op=a),
            lambda g, a: dist.all_to_all_single(ones(size), ones(size + 1), None, None, g, a),
            argument,
            "",
        ),
        (
            lambda g, a: dist.all_reduce_coalesced(many(), group=g, async_op=a),
            lambda g, a: dist.all_reduce_coalesced([], group=g, async_op=a),
            argument,
            "0 tensors",
        ),
        (
            lambda g, a: dist.all_reduce_coalesced(many(), group=g, async_op=a),
            lambda g, a: dist.all_reduce_coalesced(
                [ones(), ones(kind=np.int32)], group=g, async_op=a
            ),
            dtype,
            "one dtype",
        ),
        (
            lambda g, a: dist.scan(ones(), group=g, async_op=a),
            lambda g, a: dist.scan(ones(), AVG, group=g, async_op=a),
            dtype,
            "AVG",
        ),
    ]
    groups = [None, dist.new_group(list(reversed(range(size))))]
    for group in groups:
        for mode in "sync", "async":
            for number, (right, wrong, kind, words) in enumerate(cases):
                odd = dist.get_process_group_ranks(group)[number % size]
                print("case", number, mode, flush=True)
                if rank == odd:
                    try:
                        wrong(group, mode == "async")
                    except errors.Error as error:
                        assert kind is None or type(error) is kind, repr(error)
                        assert isinstance(error, (TypeError, ValueError)), repr(error)
                        assert words in str(error), error
                    else:
                        raise AssertionError(f"case {number} is taken")
                    continue
                with raises(errors.RefusedError, "refused", "usable", ranks=[odd], most=10):
                    work = right(group, mode == "async")
                    if work is not None:
                        work.wait()
            works(group)
    done()


def wrong_messages() -> None:
    """A wrong message has no other members to tell: only the calling rank raises."""
    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start()
    size = dist.get_world_size()
    x = np.ones(4, np.float32)
    frozen = np.ones(4, np.float32)
    frozen.flags.writeable = False
    for call in dist.send, dist.isend, dist.recv, dist.irecv:
        with raises(errors.ArgumentError, f"={size}"):
            call(x, size)
        with raises(errors.ArgumentError, "tag", "-3"):
            call(x, 0, tag=-3)
        with raises(errors.DtypeError, "no tensor"):
            call(object(), 0)
    for call in dist.recv, dist.irecv:
        with raises(errors.ArgumentError, "read-only"):
            call(frozen, 0)
    works()
    # A message of another length: only the receiver raises, and nothing else breaks.
    if rank == 0:
        dist.send(np.ones(3, np.float32), 1)
        dist.send(np.ones(5, np.float32), 1)
        dist.send(x, 1)
    elif rank == 1:
        with raises(errors.TruncateError, "12 bytes", "16"):
            dist.recv(np.zeros(4, np.float32), 0)
        with raises(errors.TruncateError, "16 bytes from rank 0", "longer", ranks=[0]):
            dist.recv(np.zeros(4, np.float32), 0)
        y = np.zeros(4, np.float32)
        dist.recv(y, 0)
        assert (y == 1).all()
    works()
    done()


@pytest.mark.parametrize("np", [pytest.param(2, marks=pytest.mark.one_mpi), 3])
def test_wrong_arguments(np: int) -> None:
    job.succeed(np, wrong_arguments)


def test_wrong_messages() -> None:
    job.succeed(2, wrong_messages)
