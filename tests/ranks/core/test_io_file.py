"""``io.File``: reads and writes of all ranks at offsets, in order, and through views."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from paddlempi import errors, io
from ranks_tools import works


def cuts(length: int, size: int) -> list[int]:
    return [length * i // size for i in range(size + 1)]


def test_at_offsets(here: Path, rank: int, size: int) -> None:
    with io.File(here / "f", "w") as file:
        mine = np.arange(5, dtype=np.int32) + 10 * rank
        assert file.write_at_all(20 * rank + 4, mine[::-1]) == 20
        file.sync()
        other = (rank + 1) % size
        out = np.zeros((5,), np.int32)
        assert file.read_at(20 * other + 4, out[::-1]) == 20
        assert out.tolist() == list(range(10 * other, 10 * other + 5))
        assert file.size() == 20 * size + 4
        view = memoryview(bytearray(4))
        assert file.read_at_all(0, view) == 4 and bytes(view) == bytes(4)
        with pytest.raises(OSError, match=f"ends at byte {20 * size + 4}"):
            file.read_at(20 * size, np.zeros(5, np.int32))
        with pytest.raises(errors.ArgumentError, match="it must be 0 or more"):
            file.read_at(-1, out)
        with pytest.raises(errors.DtypeError, match="no number of bytes"):
            file.write_at("a", out)
        with pytest.raises(errors.ArgumentError, match="read-only"):
            file.read_at(0, b"abcd")
    with io.File(here / "f", "r+") as file:
        file.write_at(20 * rank + 4, np.float32(rank))
    with io.File(here / "f") as file:
        found = np.zeros(20 * size // 4, "f4")
        file.read_at(4, found)
        assert found[::5].tolist() == list(range(size))
        with pytest.raises(OSError, match=f"rank {rank} could not write at byte 0"):
            file.write_at(0, found)


def test_in_the_order_of_the_ranks(here: Path, rank: int, size: int) -> None:
    with io.File(here / "log", "w") as file:
        texts = [f"rank {one} has {'x' * one}\n".encode() for one in range(size)]
        lengths = [len(text) for text in texts]
        at = sum(lengths[:rank])
        assert file.write_ordered(texts[rank]) == at
        assert file.write_ordered(texts[rank]) == sum(lengths) + at
        assert file.write_ordered(b"!" * rank, 4 * sum(lengths)) == 4 * sum(lengths) + sum(
            range(rank)
        )
        file.sync()
        data = bytearray(2 * sum(lengths))
        file.read_at(0, data)
        assert bytes(data) == b"".join(texts) * 2
        if size > 1:
            with pytest.raises(errors.MismatchError, match="the same offset"):
                file.write_ordered(b"", rank)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
def test_boxes(here: Path, rank: int, size: int, dim: int, dtype: Any) -> None:
    """The ranks write an array in one way and read it in another."""
    shape = (40, 90, 12)
    whole = np.arange(np.prod(shape)).reshape(shape).astype(dtype)

    def box(dim: int, rank: int) -> tuple[Any, Any, Any]:
        ends = cuts(shape[dim], size)
        offsets, lengths = [0, 0, 0], list(shape)
        offsets[dim], lengths[dim] = ends[rank], ends[rank + 1] - ends[rank]
        return (
            offsets,
            lengths,
            tuple(slice(o, o + n) for o, n in zip(offsets, lengths, strict=True)),
        )

    offsets, lengths, index = box(dim, rank)
    with io.File(here / "array", "w") as file:
        view = file.view(dtype, shape, offsets, lengths, start=6)
        assert view.shape == tuple(lengths)
        view.write_all(whole[index])
        file.sync()
        for other in range(3):
            offsets, lengths, index = box(other, size - 1 - rank)
            mine = file.view(dtype, shape, offsets, lengths, start=6)
            assert np.array_equal(mine.read(), whole[index])
            out = np.zeros(lengths, dtype)[:, ::-1]
            assert mine.read_all(out) is out and np.array_equal(out, whole[index])
        assert file.size() == 6 + whole.nbytes


def test_holes_stay(here: Path, rank: int, size: int) -> None:
    """Columns that no rank has keep what was in the file; also where ranks bring rows together."""
    rows, width = 300, 4 * size + 3
    with io.File(here / "array", "w") as file:
        if rank == 0:
            file.write_at(0, np.full((rows - 100, width), 7, np.int32))
        file.sync()
        view = file.view("int32", (rows, width), (0, 4 * rank + 1), (rows, 3))
        view.write_all(np.full((rows, 3), rank, np.int32))
        file.sync()
        found = np.zeros((rows, width), np.int32)
        file.read_at(0, found.reshape(-1)[:-4])
        assert file.size() == found.nbytes - 4 * 3  # nothing behind the last box
    wanted = np.zeros_like(found)
    wanted[: rows - 100] = 7
    for one in range(size):
        wanted[:, 4 * one + 1 : 4 * one + 4] = one
    assert np.array_equal(found.reshape(-1)[:-4], wanted.reshape(-1)[:-4])


def test_strides(here: Path, rank: int, size: int) -> None:
    """Every rank has each n-th element, and then a diagonal."""
    with io.File(here / "array", "w") as file:
        mine = np.arange(50) * size + rank
        file.view("int64", (50,), strides=(size,), start=8 * rank).write_all(mine)
        file.sync()
        found = np.zeros(50 * size, np.int64)
        file.read_at(0, found)
        assert found.tolist() == list(range(50 * size))
        diagonal = file.view(np.int64, (7,), strides=(8,))
        assert diagonal.read().tolist() == [8 * i for i in range(7)]
        turned = file.view("int64", (3, 5), strides=(1, 3))
        assert np.array_equal(turned.read(), found[:15].reshape(5, 3).T)
        turned.write(turned.read())
        assert np.array_equal(turned.read(), found[:15].reshape(5, 3).T)


def test_no_views(here: Path) -> None:
    with io.File(here / "f", "w") as file:
        for arguments, named, message in (
            (("f4", (3,)), {}, "dtype='f4' is none of"),
            (("int8", (3,), (2,), (2,)), {}, r"\[2:4\] is no part of an array of \[3\]"),
            (("int8", (3,), (2,)), {}, "lengths is not"),
            (("int8", (3,), (2,), (1,)), {"strides": (1,)}, "give strides, or"),
            (("int8", (3,)), {"strides": (1, 1)}, r"strides=\[1, 1\] for shape=\[3\]"),
            (("int8", (-3,)), {}, "has a number below 0"),
            (("int8", "ab"), {}, "no sequence of integers"),
        ):
            with pytest.raises((errors.ArgumentError, errors.DtypeError), match=message):
                file.view(*arguments, **named)
        view = file.view("int8", (3, 2))
        with pytest.raises(errors.ArgumentError, match=r"shape \[3, 2\], and the tensor \[2, 3\]"):
            view.write(np.zeros((2, 3), np.int8))
        with pytest.raises(errors.DtypeError, match="of int8, and the tensor of int16"):
            view.read(np.zeros((3, 2), np.int16))


def test_preallocate(dist: ModuleType, here: Path, rank: int) -> None:
    with io.File(here / "f", "w") as file:
        file.preallocate(1 << 20)
        assert file.size() == 1 << 20
        assert os.stat(here / "f").st_blocks * 512 >= 1 << 20
        with pytest.raises((OSError, errors.RefusedError)):
            file.preallocate(1 << 60)
        dist.barrier()
        file.preallocate(0)


def test_atomic(dist: ModuleType, here: Path, rank: int, size: int) -> None:
    """The file has its name when all ranks have closed it; after an exception the old one stays."""
    for number in range(2):
        with io.File(here / "f", "w", atomic=True) as file:
            assert file.path != str(here / "f")
            file.write_at(8 * rank, np.array([rank + number]))
            dist.barrier()
            if number == 0:
                assert not (here / "f").exists()
        found = np.fromfile(here / "f", np.int64)
        assert found.tolist() == [one + number for one in range(size)]
        assert os.listdir(here) == ["f"]
        dist.barrier()
    with io.File(here / "f.index.json", "w", atomic=True):
        pass  # a name that is something special to save_file only
    assert sorted(os.listdir(here)) == ["f", "f.index.json"]
    with pytest.raises((errors.ArgumentError, errors.RefusedError), match="is a folder"):
        io.File(here, "w", atomic=True)
    dist.barrier()
    if rank == 0:
        (here / "f.index.json").unlink()
    dist.barrier()
    wrong = size - 1
    kind = ZeroDivisionError if rank == wrong else errors.RefusedError
    with pytest.raises(kind), io.File(here / "f", "w", atomic=True) as file:
        file.write_at(0, np.zeros(100))
        if rank == wrong:
            raise ZeroDivisionError
    dist.barrier()
    assert np.array_equal(np.fromfile(here / "f", np.int64), found)
    assert os.listdir(here) == ["f"]
    works()


@pytest.mark.mpi(min=2)
def test_what_is_wrong_on_one_rank(dist: ModuleType, here: Path, rank: int, size: int) -> None:
    """A bad path, another mode, a rank whose disk fails: an error on all."""
    wrong = size - 1
    for path, mode in (
        (here / ("x" if rank == wrong else "f"), "w"),
        (here / "f", "rw"[rank == 1]),
    ):
        with pytest.raises(errors.MismatchError, match="path, mode and atomic"):
            io.File(path, mode)
    for mode in ("r", "r+", "w"):
        with pytest.raises((OSError, errors.RefusedError), match="No such file"):
            io.File(here / "no" / "f", mode)
    for mode, atomic in (("a", False), ("r", True)):
        with pytest.raises(errors.ArgumentError, match="File: "):
            io.File(here / "f", mode, atomic=atomic)
    with io.File(here / "f", "w") as file:
        kind = errors.ArgumentError if rank == wrong else errors.RefusedError
        with pytest.raises(kind, match="must be 0 or more") as caught:
            file.write_at_all(-1 if rank == wrong else 0, np.zeros(3))
        if rank != wrong:
            assert caught.value.ranks == (wrong,)
    works()


@pytest.mark.mpi(min=2)
def test_a_disk_that_fails(
    dist: ModuleType, here: Path, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(*arguments: Any) -> Any:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    columns = np.zeros((900, 8), np.int64)
    with io.File(here / "f", "w") as file:
        view = file.view("int64", (900, 8 * size), (0, 8 * rank), (900, 8))
        if rank == 0:
            monkeypatch.setattr(os, "pwrite", stale)
        kind = OSError if rank == 0 else errors.RefusedError
        with pytest.raises(kind, match="rank 0 could not write at byte 0"):
            view.write_all(columns)
        monkeypatch.undo()
        view.write_all(columns)
        dist.barrier()
        assert file.size() == columns.nbytes * size


def test_of_a_group(dist: ModuleType, here: Path, rank: int, size: int) -> None:
    group = dist.new_group(range(size - 1, -1, -1))
    with io.File(here / "f", "w", group) as file:
        assert file.write_ordered(np.array([rank])) == 8 * (size - 1 - rank)
    assert np.fromfile(here / "f", np.int64).tolist() == list(range(size - 1, -1, -1))
    dist.destroy_process_group(group)
