"""Long tensors on one node that are copied once, from where they lie in another process."""

from __future__ import annotations

import ctypes
import os
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from ranks_tools import over_nodes, skip_over_nodes
from tensors import noise
from ways import took

ROW = 256 << 10  # bytes of a row from which on it is read
PIECE = 1 << 20  # bytes that are read at once


class _Span(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


def readable(dist: ModuleType) -> bool:
    """Whether the kernel lets all ranks read each other, which Yama and others may refuse."""
    secret, seen = np.full(1, 42 + dist.get_rank()), np.zeros(1, int)
    places: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(places, (os.getpid(), secret.ctypes.data, int(secret[0])))
    read = ctypes.CDLL(None).process_vm_readv
    read.restype = ctypes.c_ssize_t
    right = True
    for pid, at, value in places:
        to, of = _Span(seen.ctypes.data, seen.nbytes), _Span(at, seen.nbytes)
        got = read(pid, ctypes.byref(to), 1, ctypes.byref(of), 1, 0)
        right = right and got == seen.nbytes and int(seen[0]) == value
    verdicts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(verdicts, right)
    return all(verdicts)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def run(request: pytest.FixtureRequest, dist: ModuleType) -> Any:
    """Call a function of a collective, and check which way it went."""
    may = not over_nodes() and readable(dist)

    def call(way: str, function: Any, *arguments: Any, **named: Any) -> None:
        if request.param:
            function(*arguments, async_op=True, **named).wait()
        else:
            function(*arguments, **named)
        if dist.get_world_size() > 1 and not over_nodes():
            assert took(dist, named.get("group")) == (way if may else "bounce")

    # The first collective that goes through blocks finds out who can read whom.
    dist.broadcast(np.zeros(100_000), 0)
    return call


@pytest.mark.parametrize("each", [ROW, ROW + 3, PIECE - 1, PIECE + 1, 3 * PIECE + 77])
def test_all_to_all(dist: ModuleType, run: Any, each: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = [noise("uint8", each, "even", rank, to) for to in range(size)]
    expected = np.concatenate([noise("uint8", each, "even", r, rank) for r in range(size)])
    got = np.zeros(size * each, np.uint8)
    run("cma", dist.all_to_all_single, got, np.concatenate(sent))
    np.testing.assert_array_equal(got, expected)
    lists = [np.zeros(each, np.uint8) for _ in range(size)]
    run("cma", dist.all_to_all, lists, sent)
    np.testing.assert_array_equal(np.concatenate(lists), expected)


def test_all_to_all_of_different_lengths(dist: ModuleType, run: Any) -> None:
    """Some shares are empty, and some ranks have no other ones for some ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [[(7 * a + 3 * b + 4) % 5 * PIECE // 3 for b in range(size)] for a in range(size)]
    sent = [noise("float32", n, "uneven", rank, to) for to, n in enumerate(lengths[rank])]
    expected = [noise("float32", lengths[r][rank], "uneven", r, rank) for r in range(size)]
    for _ in range(3):
        got = [np.zeros_like(x) for x in expected]
        run("cma", dist.all_to_all, got, sent)
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


@pytest.mark.parametrize("each", [ROW, PIECE + 5, 4 * PIECE])
def test_scatter(dist: ModuleType, run: Any, each: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for root in range(size):
        rows = [noise("uint8", each, "scatter", root, r).copy() for r in range(size)]
        expected = rows[rank].copy()
        got = np.zeros(each, np.uint8)
        run("cma", dist.scatter, got, rows if rank == root else None, root)
        if rank == root:  # nobody reads there any more
            for row in rows:
                row[:] = 0
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("each", [PIECE, 2 * PIECE + 9])
def test_all_gather(dist: ModuleType, run: Any, each: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = [noise("uint8", each, "gather", r) for r in range(size)]
    got = np.zeros((size, each), np.uint8)
    way = "cma" if size == 2 else "bounce"
    run(way, dist.all_gather_into_tensor, got, rows[rank])
    np.testing.assert_array_equal(got, rows)
    got[:] = 0
    got[rank] = rows[rank]  # it lies in its place
    run(way, dist.all_gather_into_tensor, got, got[rank])
    np.testing.assert_array_equal(got, rows)
    lists = [np.zeros(each, np.uint8) for _ in range(size)]
    run(way, dist.all_gather, lists, rows[rank])
    np.testing.assert_array_equal(lists, rows)


def test_what_is_sent_and_what_comes_overlap(dist: ModuleType, run: Any) -> None:
    """A tensor that others read must stay as it is, so such a call goes through the blocks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = [noise("uint8", ROW, "overlap", rank, to) for to in range(size)]
    expected = [noise("uint8", ROW, "overlap", r, rank) for r in range(size)]
    tensor = np.concatenate(sent)
    run("bounce", dist.all_to_all_single, tensor, tensor)
    np.testing.assert_array_equal(tensor, np.concatenate(expected))
    # One rank alone is enough.
    tensor = np.concatenate(sent)
    run("bounce", dist.all_to_all_single, tensor if rank == 0 else np.zeros_like(tensor), tensor)


def test_tensors_with_gaps(dist: ModuleType, run: Any) -> None:
    """They are copied before others read them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    wide = noise("uint8", 2 * size * ROW, "gaps", rank).reshape(size, 2 * ROW)
    got = np.zeros((size, ROW), np.uint8)
    dist.all_to_all_single(got, wide[:, ::2])
    expected = [noise("uint8", 2 * size * ROW, "gaps", r) for r in range(size)]
    for r, row in enumerate(expected):
        np.testing.assert_array_equal(got[r], row.reshape(size, 2 * ROW)[rank, ::2])


def test_what_was_sent_may_change_at_once(dist: ModuleType, run: Any) -> None:
    """Many calls in a row, of tensors that are written anew as soon as a call returns."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sent, got = np.empty(size * PIECE, np.uint8), np.empty(size * PIECE, np.uint8)
    for turn in range(30):
        sent[:] = (turn + rank) % 251
        run("cma", dist.all_to_all_single, got, sent)
        sent[:] = 255
        for r in range(size):
            assert (got[r * PIECE : (r + 1) * PIECE] == (turn + r) % 251).all(), (turn, r)


def test_groups_and_works_at_a_time(dist: ModuleType, run: Any) -> None:
    skip_over_nodes("the ways of one node")
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = [dist.new_group() for _ in range(3)]
    for group in groups:
        dist.broadcast(np.zeros(100_000), 0, group=group)
    sent = [np.full(size * ROW, 10 * k + rank, np.uint8) for k in range(3)]
    got = [np.zeros(size * ROW, np.uint8) for _ in range(3)]
    for _ in range(5):
        works = [
            dist.all_to_all_single(got[k], sent[k], group=group, async_op=True)
            for k, group in enumerate(groups)
        ]
        for work in reversed(works):
            work.wait()
        for k in range(3):
            for r in range(size):
                assert (got[k][r * ROW : (r + 1) * ROW] == 10 * k + r).all()
            got[k][:] = 0
    for group in groups:
        dist.destroy_process_group(group)
