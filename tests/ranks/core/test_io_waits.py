"""A rank that is slow with files but goes on runs into no deadline; one that fails is told of."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import errors, io, together
from paddlempi.io import elements
from ranks_tools import impatient_group, works

pytestmark = pytest.mark.mpi(min=2)

PIECE = 64 << 10


def tensors(rank: int, size: int) -> dict[str, Any]:
    """Return tensors of which rank 0 has 12 pieces, and the others have one each."""
    mine = 12 * PIECE if rank == 0 else PIECE
    begin = (11 + rank) * PIECE if rank else 0
    return {"w": io.Shard(np.full(mine, rank, "u1"), ((11 + size) * PIECE,), (begin,))}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements, "STAGED", PIECE)


def slow(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let each write of a piece take so long."""
    real = os.pwrite

    def call(descriptor: int, data: Any, at: int) -> int:
        if len(data) == PIECE:
            time.sleep(seconds)
        return real(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", call)


def test_a_slow_rank_is_waited_for(
    dist: ModuleType, here: Path, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = dist.new_group(range(size), timeout=2.5)
    if rank == 0:
        slow(monkeypatch, 0.28)  # 3.4 s
    io.save_file(tensors(rank, size), here / "m", group=group)
    dist.destroy_process_group(group)


def test_a_rank_that_does_nothing_is_not(
    dist: ModuleType, here: Path, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = impatient_group(0.5)
    if rank == 0:
        slow(monkeypatch, 1.0)
    with pytest.raises((errors.TimeoutError, errors.RefusedError, errors.GroupBrokenError)):
        io.save_file(tensors(rank, size), here / "m", group=group)
    monkeypatch.undo()
    dist.barrier()


def test_every_piece_is_told(
    here: Path, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks have different numbers of pieces, and one of them fails in between."""
    monkeypatch.setattr(together, "_SHARE", 0)
    mine = tensors(rank, size)
    io.save_file(mine, here / "m")
    whole = io.load_file(here / "m")["w"]
    blank = {} if rank else {"w": np.zeros_like(whole)}
    io.load_file(here / "m", blank)  # rank 0 reads, and the others have nothing to do
    assert np.array_equal(whole[::PIECE], [0] * 12 + list(range(1, size)))
    for wrong, after in ((0, 6), (size - 1, 0)):  # it has done more than the others, and less
        with monkeypatch.context() as patch:
            if rank == wrong:
                patch.setattr(os, "pwrite", failing(after))
            kind = OSError if rank == wrong else errors.RefusedError
            with pytest.raises(kind, match=f"rank {wrong} could not write at byte") as caught:
                io.save_file(mine, here / "m")
        if rank != wrong:
            assert caught.value.ranks == (wrong,)
        works()
        assert os.listdir(here) == ["m"]
        works()


def failing(after: int) -> Any:
    """Return ``os.pwrite`` that fails after so many pieces."""
    real, left = os.pwrite, [after]

    def call(descriptor: int, data: Any, at: int) -> int:
        if len(data) == PIECE:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, data, at)

    return call
