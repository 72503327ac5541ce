"""Tensors in device memory that are long: messages in fragments, and shares of different lengths.

A message of more than 16 MiB goes in fragments of 8 MiB. Collectives have pieces of 4 KiB here.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import device
import numpy as np
import pytest
from kinds import DeviceCase, long_pieces, side_stream
from tensors import Layout, assert_reduced, numbers

ROWS, COLUMNS = 2560, 2048  # 20 MiB of float32
VALUES = np.arange(ROWS * COLUMNS, dtype=np.float32)
FLAT = Layout("flat", (ROWS, COLUMNS), (COLUMNS, 1), 0, ROWS * COLUMNS)
GAPS = Layout("gaps", (ROWS, COLUMNS), (COLUMNS + 3, 1), 2, ROWS * (COLUMNS + 3))
TURNED = Layout("turned", (ROWS, COLUMNS), (1, ROWS), 0, ROWS * COLUMNS)


class Host:
    """An array with the interface of a DeviceCase: every second column."""

    def __init__(self, shape: tuple[int, int] = (ROWS, COLUMNS)) -> None:
        self.whole = np.zeros((shape[0], 2 * shape[1]), np.float32)
        self.given = self.whole[:, ::2]

    def fill(self, values: np.ndarray) -> Host:
        self.given[...] = values.reshape(self.given.shape)
        return self

    def values(self) -> np.ndarray:
        assert (self.whole[:, 1::2] == 0).all(), "written to between the elements"
        return self.given


def make(layout: Layout | None) -> Any:
    if layout is None:
        return Host()
    return DeviceCase("float32", layout, device.DeviceTensor, stream=side_stream())


@pytest.mark.mpi(min=2)
@pytest.mark.parametrize(
    ("of", "into"),
    [(GAPS, TURNED), (TURNED, FLAT), (FLAT, GAPS), (FLAT, FLAT), (GAPS, None), (None, GAPS)],
    ids=lambda layout: layout.name if layout else "host",
)
def test_a_long_message(
    dist: ModuleType, rank: int, of: Layout | None, into: Layout | None
) -> None:
    if rank == 0:
        dist.send(make(of).fill(VALUES).given, 1)
    elif rank == 1:
        room = make(into).fill(np.zeros_like(VALUES))
        dist.recv(room.given, 0)
        assert (room.values().reshape(-1) == VALUES).all()


@pytest.mark.mpi(min=2)
def test_a_list(dist: ModuleType, rank: int) -> None:
    """The first tensor ends within an element of the next one, at a fragment and at the end."""
    head = Layout("head", (3,), (2,), 1, 7)
    bits = VALUES.view(np.uint8)
    if rank == 0:
        dist.send(make(FLAT).fill(VALUES).given, 1)
    elif rank == 1:
        size = VALUES.size - 1
        body = Layout("body", (size,), (-1,), size - 1, size)
        first = DeviceCase("uint8", head, device.DeviceTensor, stream=side_stream())
        first.fill(np.zeros(3, np.uint8))
        long = make(body).fill(np.zeros(size, np.float32))
        last = np.zeros(1, np.uint8)
        work = dist.irecv([first.given, long.given, last], 0)
        work.wait()
        assert first.values().tobytes() == bits[:3].tobytes()
        assert long.values().tobytes() == bits[3:-1].tobytes()
        assert last.tobytes() == bits[-1:].tobytes()


def test_both_ways(dist: ModuleType, rank: int, size: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    room = make(GAPS).fill(VALUES + rank)
    dist.sendrecv(room.given, after, room.given, before)
    assert (room.values().reshape(-1) == VALUES + before).all()


@pytest.mark.mpi(min=2)
def test_another_length(dist: ModuleType, rank: int) -> None:
    short = Layout("short", (4,), (1,), 0, 4)
    if rank == 0:
        for _ in range(2):
            dist.send(make(GAPS).fill(VALUES).given, 1)
    elif rank == 1:
        for layout in (short, Layout("less", (ROWS - 1, COLUMNS), (COLUMNS, 1), 0, ROWS * COLUMNS)):
            room = make(layout).fill(np.zeros(layout.size, np.float32))
            with pytest.raises(dist.errors.TruncateError, match=f"{VALUES.nbytes} bytes"):
                dist.recv(room.given, 0)
    dist.barrier()


def test_shares_of_different_lengths(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    lengths = [0, 5000, 1024, 3][:size]
    shares = [numbers("float32", n, "share", r) for r, n in enumerate(lengths)]

    def case(values: np.ndarray) -> DeviceCase:
        n = values.size
        layout = Layout("backwards", (n,), (-2,), max(2 * n - 1, 0), 2 * n)
        return DeviceCase("float32", layout, device.DeviceTensor, stream=side_stream()).fill(values)

    outs = [case(np.zeros(n, np.float32)) for n in lengths]
    run(dist.all_gather, [o.given for o in outs], case(shares[rank]).given)
    for r in range(size):
        assert (outs[r].values() == shares[r]).all()

    out = case(np.zeros(lengths[rank], np.float32))
    run(dist.reduce_scatter, out.given, [case(s).given for s in shares])
    assert_reduced(out.values(), dist.ReduceOp.SUM, [shares[rank]] * size)

    def length(source: int, to: int) -> int:
        return lengths[(source + 2 * to) % size]

    outs = [case(np.zeros(length(r, rank), np.float32)) for r in range(size)]
    sent = [case(shares[(rank + 2 * to) % size]) for to in range(size)]
    run(dist.all_to_all, [o.given for o in outs], [s.given for s in sent])
    for r in range(size):
        assert (outs[r].values() == shares[(r + 2 * rank) % size]).all()


def test_some_ranks_have_host_tensors(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    parts = [numbers("float32", 1024 * 1200, "host", r) for r in range(size)]
    gaps = Layout("gaps", (1200, 1024), (1030, 1), 2, 1200 * 1030)
    mine = Host((1200, 1024)) if rank % 2 else make(gaps)
    mine.fill(parts[rank])
    with long_pieces(dist):
        run(dist.all_reduce, mine.given)
    assert_reduced(mine.values().reshape(-1), dist.ReduceOp.SUM, parts)
