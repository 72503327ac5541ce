"""Prepared calls: the values of plain calls, beside plain calls of other members, and misuse."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import ReduceOp, errors
from ranks_tools import dump, impatient_group, raises, repeat_over_nodes, works
from tensors import Kind, assert_reduced, every, numbers

Arrays = list[np.ndarray[Any, Any]]
Case = Callable[[int, int], tuple[tuple[Any, ...], dict[str, Any]]]
"""Returns the arguments of a call of rank r of n."""


def row(rank: int, n: int = 6, dtype: Any = np.float64) -> Any:
    return (np.arange(n) * (rank + 1)).astype(dtype)


def rows(size: int, n: int = 6) -> Arrays:
    return [np.zeros(n) for _ in range(size)]


CASES: dict[str, Case] = {
    "all_reduce": lambda r, n: ((row(r),), {"op": ReduceOp.MAX}),
    "all_reduce_coalesced": lambda r, n: (([row(r), row(r, 3)],), {}),
    "reduce": lambda r, n: ((row(r), n - 1), {"op": ReduceOp.PREMUL_SUM(0.5)}),
    "scan": lambda r, n: ((row(r),), {}),
    "exscan": lambda r, n: ((row(r),), {}),
    "reduce_scatter": lambda r, n: ((np.zeros(4 + r), [row(r, 4 + i) for i in range(n)]), {}),
    "reduce_scatter_tensor": lambda r, n: ((np.zeros(2), row(r, 2 * n)), {}),
    "broadcast": lambda r, n: ((row(r), n - 1), {}),
    "all_gather": lambda r, n: (([np.zeros(i + 1) for i in range(n)], row(r, r + 1)), {}),
    "all_gather_into_tensor": lambda r, n: ((np.zeros(2 * n), row(r, 2)), {}),
    "gather": lambda r, n: ((row(r), rows(n) if r == 0 else None), {"dst": 0}),
    "scatter": lambda r, n: ((np.zeros(3), [row(i, 3) for i in range(n)] if r == 0 else None), {}),
    "all_to_all": lambda r, n: ((rows(n, r + 1), [row(r, i + 1) for i in range(n)]), {}),
    "all_to_all_single": lambda r, n: ((np.zeros(n), row(r, n)), {}),
    "barrier": lambda r, n: ((), {}),
}


def arrays(arguments: tuple[Any, ...]) -> Arrays:
    found: Arrays = []
    for x in arguments:
        found += x if isinstance(x, list) else [x] if isinstance(x, np.ndarray) else []
    return found


def test_every_collective_is_prepared_here(dist: ModuleType) -> None:
    from paddlempi import collectives

    assert {*CASES, "monitored_barrier"} == set(collectives.__all__)


@pytest.mark.parametrize("name", CASES)
def test_values(dist: ModuleType, rank: int, size: int, name: str) -> None:
    """In every round another half of the ranks makes the plain call."""
    arguments, named = CASES[name](rank, size)
    plain, _ = CASES[name](rank, size)
    getattr(dist, name)(*plain, **named)
    call = dist.prepare(name, *arguments, **named)
    before = [x.copy() for x in arrays(CASES[name](rank, size)[0])]
    for turn in range(12):
        for x, was in zip(arrays(arguments), before, strict=True):
            x[...] = was
        way = (rank + turn) % 3
        if way == 0:
            assert call() is None
        elif way == 1:
            getattr(dist, name)(*arguments, **named)
        else:
            call.start()
            assert call.wait(60)
            assert call.is_completed()
        for x, right in zip(arrays(arguments), arrays(plain), strict=True):
            assert (x == right).all()


@pytest.mark.parametrize("place", ["ordinary", "heap"])
@pytest.mark.parametrize("elements", [2, 512, 4096, 70000])
def test_many_times(dist: ModuleType, rank: int, size: int, place: str, elements: int) -> None:
    x = dist.zeros(elements, np.int64) if place == "heap" else np.zeros(elements, np.int64)
    call = dist.prepare("all_reduce", x)
    for step in range(1000 if elements < 1000 else 20):
        x[...] = step + rank
        if step % 3:
            call()
        else:
            call.start()
            call.wait()
        assert x[0] == x[-1] == size * step + sum(range(size))
    assert (x == x[0]).all()


def test_strided_and_split(dist: ModuleType, rank: int, size: int) -> None:
    x = np.zeros((4, 6), np.float32)
    call = dist.prepare("all_reduce", x[::2, 1:5:2])
    take = [1 + (rank + i) % 2 for i in range(size)]
    give = np.repeat(np.arange(size, dtype=np.int32), take)[:, None].repeat(2, 1)
    got = np.zeros((sum(take), 2), np.int32)
    exchange = dist.prepare(
        "all_to_all_single", got, give, output_split_sizes=take, input_split_sizes=take
    )
    for _ in range(3):
        x[...] = 1
        call()
        assert (x[::2, 1:5:2] == size).all() and x.sum() == 20 + 4 * size
        got[...] = -1
        exchange()
        assert (got == rank).all()


@pytest.mark.mpi(min=2)
def test_messages(dist: ModuleType, rank: int, size: int, reversed_group: Any) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    out, into = np.zeros(3), np.zeros(3)
    group = reversed_group
    send = dist.prepare("isend", out, right, group=group, tag=3)
    receive = dist.prepare("recv", into, left, group=group, tag=3)
    both = dist.prepare("sendrecv", out, right, into, group=group)
    with raises(errors.ArgumentError, "source"):
        receive.source_rank()
    for step in range(50):
        out[...] = rank + step
        send.start()
        assert receive() == left == receive.source_rank()
        send.wait()
        assert (into == left + step).all()
        out += 1
        assert both() == left
        assert (into == left + step + 1).all()
        receive.start()
        dist.send(out, right, group, 3)
        assert receive.result()[0] is into
        assert receive.source_rank() == left
        dist.barrier()


@pytest.mark.mpi(min=2)
def test_in_a_group(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group([size - 1, 0])
    x = np.zeros(2, np.int32)
    if rank not in (0, size - 1):
        with pytest.warns(UserWarning):
            assert dist.prepare("all_reduce", x, group=group) is None
    else:
        call = dist.prepare("broadcast", x, src=size - 1, group=group)
        x[...] = rank
        call()
        assert (x == size - 1).all()
        dist.destroy_process_group(group)
        with raises(errors.GroupDestroyedError, "destroyed"):
            call()
        with raises(errors.GroupDestroyedError, "destroyed"):
            call.start()
    works()


def test_kinds(dist: ModuleType, rank: int, size: int, kind: Kind) -> None:
    for dtype, layout in every(kind, ["bool", "int8", "float32", "bfloat16"]):
        parts = [numbers(dtype, layout.size, "prepared", r) for r in range(size)]
        tensor = kind.make(dtype, layout)
        call = dist.prepare("all_reduce", tensor.given, ReduceOp.MAX)
        for _ in range(3):
            tensor.fill(parts[rank])
            assert call() is None
            assert_reduced(tensor.values(), ReduceOp.MAX, parts)
        tensor.fill(parts[rank])
        call.start()
        assert call.wait()
        assert_reduced(tensor.values(), ReduceOp.MAX, parts)


def test_wrong_arguments_stay_local(dist: ModuleType, rank: int) -> None:
    """Only rank 0 prepares wrong calls. The others learn nothing of it."""
    x = np.zeros(4)
    if rank == 0:
        frozen = np.zeros(4)
        frozen.flags.writeable = False
        for error, words, name, arguments, named in (
            (errors.ArgumentError, "monitored_barrier", "monitored_barrier", (), {}),
            (errors.ArgumentError, "cannot be prepared", "all_reduces", (x,), {}),
            (errors.ArgumentError, "cannot be prepared", None, (x,), {}),
            (errors.ArgumentError, "start()", "all_reduce", (x,), {"async_op": True}),
            (errors.DtypeError, "BAND", "all_reduce", (x, ReduceOp.BAND), {}),
            (errors.DtypeError, "op=", "all_reduce", (x, "sum"), {}),
            (errors.DtypeError, "no tensor", "all_reduce", (3.5,), {}),
            (errors.DtypeError, "None", "all_reduce", (None,), {}),
            (errors.ArgumentError, "read-only", "all_reduce", (frozen,), {}),
            (errors.ArgumentError, "999", "broadcast", (x, 999), {}),
            (errors.DtypeError, "list", "all_gather", (x, x), {}),
            (errors.ArgumentError, "elements", "all_gather_into_tensor", (np.zeros(999), x), {}),
            (errors.ArgumentError, "999", "send", (x, 999), {}),
            (errors.ArgumentError, "tag", "recv", (x, 0), {"tag": -2}),
            (TypeError, "argument", "all_reduce", (), {}),
            (TypeError, "argument", "all_reduce", (x,), {"operation": 1}),
        ):
            with raises(error, words):
                dist.prepare(name, *arguments, **named)
    works()


@pytest.mark.mpi(min=2)
def test_members_that_differ(dist: ModuleType, rank: int) -> None:
    call = dist.prepare("all_reduce", np.zeros(4 + (rank == 0), np.float32))
    for use in (call, lambda: (call.start(), call.wait())):
        with raises(errors.MismatchError, "all_reduce", "float32[5]"):
            use()
    works()


@pytest.mark.mpi(min=2)
def test_resized(dist: ModuleType, rank: int) -> None:
    """The call refuses a tensor of another length, and follows one that has moved."""
    x = np.zeros(4, np.float32)
    small = bytearray(8)
    call, other = dist.prepare("all_reduce", x), dist.prepare("all_reduce", small)
    if rank == 0:
        with raises(ValueError):
            x.resize(400)  # NumPy refuses: the call refers to the array
        x.resize(1 << 20, refcheck=False)
        small.append(1)
    for use, wrong in ((call, "had 4"), (other, "had 8")):
        for _ in range(2):
            if rank == 0:
                with raises(errors.ArgumentError, "elements", wrong, "prepare"):
                    use()
            else:
                with raises(errors.RefusedError, "all_reduce", ranks=[0]):
                    use()
    x.resize(4, refcheck=False)
    x[...] = 1
    call()
    assert (x == dist.get_world_size()).all()
    if rank == 0:
        x.dtype = np.int32
        with raises(errors.DtypeError, "dtype"):
            call()
    else:
        with raises(errors.RefusedError, ranks=[0]):
            call()
    works()


@pytest.mark.mpi(min=2)
def test_one_at_a_time(dist: ModuleType, rank: int) -> None:
    x = np.zeros(3)
    call = dist.prepare("all_reduce", x)
    with raises(errors.ArgumentError, "not started"):
        call.wait()
    with raises(errors.ArgumentError, "not started"):
        call.result()
    assert call.is_completed()
    for step in range(3):
        call.start()
        for use in (call, call.start):
            with raises(errors.ArgumentError, "started"):
                use()
        if rank == 0:
            with raises(errors.ArgumentError, "timeout"):
                call.wait(0)
        call.wait()
        with raises(errors.ArgumentError, "not started"):
            call.wait()
        assert call.is_completed()
        with raises(TypeError):
            call(step)
    call.free()
    for use in (call, call.start):
        with raises(errors.ArgumentError, "freed"):
            use()
    assert call.result == call.result
    works()


@pytest.mark.mpi(ranks=2)
def test_wait_with_a_timeout(dist: ModuleType, rank: int) -> None:
    x = np.ones(3)
    call = dist.prepare("all_reduce", x)
    if rank == 0:
        call.start()
        assert not call.is_completed()
        with raises(errors.NotReadyError, "goes on"):
            call.wait(0.05)
        dist.send(x[:1].copy(), 1)
        assert call.result()[0] is x
    else:
        dist.recv(np.zeros(1), 0)
        call()
    assert (x == 2).all()


def test_two_calls_under_way(dist: ModuleType, rank: int, size: int) -> None:
    calls = [dist.prepare("all_reduce", np.zeros(n, np.int64)) for n in (1, 700, 5000)]
    for step in range(20):
        for call in calls:
            call.written[...] = step
            call.start()
        for call in reversed(calls):
            assert (call.result()[0] == size * step).all()


def test_keeps_its_tensors(dist: ModuleType, size: int) -> None:
    class Array(np.ndarray):  # type: ignore[type-arg]
        """An array that a weak reference may name."""

    x = np.ones(2, np.float32).view(Array)
    alive = weakref.ref(x)
    call = dist.prepare("all_reduce", x)
    del x
    gc.collect()
    call()
    assert (call.written == size).all()
    with call as same:
        assert same is call
    gc.collect()
    assert alive() is None
    x = np.ones(2, np.float32).view(Array)
    alive = weakref.ref(x)
    call = dist.prepare("all_reduce", x)
    x.call = call  # type: ignore[attr-defined]
    del call, x
    gc.collect()
    assert alive() is None, "a cycle of a call and its tensor is collected"


@pytest.mark.mpi(ranks=2)
def test_dropped_while_under_way(dist: ModuleType, rank: int) -> None:
    x = np.ones(2000, np.float32)
    call = dist.prepare("all_reduce", x)
    if rank == 0:
        call.start()
        call.free()
        del call
        gc.collect()
        dist.send(np.ones(1), 1)
    else:
        dist.recv(np.zeros(1), 0)
        call()
    dist.barrier()
    assert (x == 2).all()


def test_a_list_that_changes(dist: ModuleType, size: int) -> None:
    tensors = [np.ones(2), np.ones(3)]
    call = dist.prepare("all_reduce_coalesced", tensors)
    kept = list(tensors)
    tensors.clear()
    call()
    assert all((x == size).all() for x in kept)


def test_threads(dist: ModuleType, rank: int, size: int) -> None:
    """Every thread has a group and a call of its own; another thread may end what one began."""
    groups = [dist.new_group(range(size)) for _ in range(3)]
    failed: list[BaseException] = []

    def work(group: Any) -> None:
        try:
            x = np.zeros(2, np.int64)
            call = dist.prepare("all_reduce", x, group=group)
            for step in range(200):
                x[...] = step + rank
                call()
                assert (x == size * step + sum(range(size))).all()
            x[...] = 1
            call.start()
            ender = threading.Thread(target=call.wait)
            ender.start()
            ender.join()
            assert (x == size).all()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed and not any(thread.is_alive() for thread in threads)
    for group in groups:
        dist.destroy_process_group(group)


@pytest.mark.mpi(ranks=2)
def test_call_of_two_threads(dist: ModuleType, rank: int) -> None:
    x = np.ones(2)
    call = dist.prepare("all_reduce", x)
    if rank == 0:
        refused = threading.Event()

        def use() -> None:
            try:
                call()
            except errors.ArgumentError as error:
                if "another thread" in str(error):
                    refused.set()

        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert refused.wait(30)
        with raises(errors.ArgumentError, "under way"):
            call.free()
        dist.send(np.ones(1), 1)
        for thread in threads:
            thread.join(30)
    else:
        dist.recv(np.zeros(1), 0)
        call()
    assert (x == 2).all()


@pytest.mark.mpi(ranks=2)
@pytest.mark.parametrize("started", [False, True])
def test_deadline(dist: ModuleType, rank: int, started: bool) -> None:
    group = impatient_group(0.4)
    x = np.zeros(2, np.float32)
    call = dist.prepare("all_reduce", x, group=group)
    call()
    dist.barrier()
    if rank == 0:
        with raises(errors.TimeoutError, "all_reduce(float32[2], SUM)", "400ms", ranks=[1]):
            if started:
                call.start()
                call.wait()
            else:
                call()
        with raises(errors.GroupBrokenError, "never came"):
            call()
        dist.send(np.ones(1), 1)
    else:
        dist.recv(np.zeros(1), 0)
        with raises(errors.GroupBrokenError, "gave up waiting"):
            repeat_over_nodes(call)
    works()
    dist.destroy_process_group(group)


@pytest.mark.mpi(ranks=2)
def test_interrupt(dist: ModuleType, rank: int) -> None:
    group = dist.new_group()
    call = dist.prepare("all_reduce", np.zeros(2), group=group)
    call()
    dist.barrier()
    if rank == 0:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with raises(KeyboardInterrupt):
            call()
        with raises(errors.GroupBrokenError, "broken"):
            call()
        dist.send(np.ones(1), 1)
    else:
        dist.recv(np.zeros(1), 0)
        with raises(errors.GroupBrokenError):
            repeat_over_nodes(call)
    works()
    dist.destroy_process_group(group)


def test_in_the_flight_recorder(dist: ModuleType, rank: int, tmp_path: Path) -> None:
    call = dist.prepare("all_reduce", np.zeros(3, np.float32))
    call()
    call.start()
    call.wait()
    dump(str(tmp_path), [os.getpid()])
    (file,) = tmp_path.iterdir()
    latest = json.loads(file.read_text())["operations"][-2:]
    assert [(o["operation"], o["dtype"], o["count"], o["outcome"]) for o in latest] == [
        ("all_reduce", "float32", 3, "ok")
    ] * 2
