"""Files that all ranks write: bytes as of one process, errors on all ranks, any ranks read."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from paddlempi import errors, io
from paddlempi.io.dtypes import BY_NAME
from ranks_tools import needs_mpi, works


def some(dtype: str, shape: tuple[int, ...], key: int) -> Any:
    """Return the same numbers on all ranks."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if dtype == "bool":
        return np.random.default_rng(key).integers(0, 2, shape).astype(bool)
    size = (*shape, kind.itemsize)
    return (
        np.random.default_rng(key)
        .integers(0, 120, size, np.uint8)
        .reshape(-1)
        .view(kind)
        .reshape(shape)
    )


def part(whole: Any, dim: int, rank: int, size: int) -> Any:
    """Return what a rank holds of an array that is cut along a dimension."""
    n = whole.shape[dim]
    begin, end = n * rank // size, n * (rank + 1) // size
    offsets = [0] * whole.ndim
    offsets[dim] = begin
    index = (*[slice(None)] * dim, slice(begin, end))
    return io.Shard(whole[index], whole.shape, offsets)


def wholes() -> dict[str, Any]:
    found = {f"of {name}": some(name, (5, 6), 3) for name in BY_NAME}
    found["rows"] = some("float32", (103, 50), 1)
    found["columns"] = some("bfloat16", (1100, 66), 2)
    found["middle"] = some("float16", (37, 30, 16), 3)
    found["large"] = some("float32", (1500, 1024), 4)
    found["scalar"] = some("int64", (), 5)
    found["few"] = some("float64", (2,), 6)
    return found


DIMS = {"rows": 0, "columns": 1, "middle": 1, "few": 0}


def held(
    whole: dict[str, Any], rank: int, size: int, dims: dict[str, int] = DIMS
) -> dict[str, Any]:
    return {
        name: part(array, dims[name], rank, size) if name in dims else array
        for name, array in whole.items()
    }


def blank(tensors: dict[str, Any]) -> dict[str, Any]:
    return {
        name: io.Shard(np.zeros_like(one.array), one.global_shape, one.offsets)
        if isinstance(one, io.Shard)
        else np.zeros_like(one)
        for name, one in tensors.items()
    }


def same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        one, two = (x.array if isinstance(x, io.Shard) else x for x in (found[name], wanted[name]))
        assert one.dtype == two.dtype and one.tobytes() == two.tobytes(), name


def test_the_file_is_that_of_one_process(
    dist: ModuleType, here: Path, rank: int, size: int
) -> None:
    whole = wholes()
    tensors = held(whole, rank, size)
    names = list(tensors)
    np.random.default_rng(rank).shuffle(names)  # the order is of no account
    io.save_file({name: tensors[name] for name in names}, here / "ours", metadata={"format": "pt"})
    if rank == 0:
        copies = {name: np.array(array, order="C") for name, array in whole.items()}
        safetensors.numpy.save_file(copies, here / "theirs", {"format": "pt"})
        assert (here / "ours").read_bytes() == (here / "theirs").read_bytes()
    assert len(os.listdir(here)) <= 2
    dist.barrier()
    same(io.load_file(here / "theirs", blank(tensors)), tensors)


def test_other_parts_are_loaded(dist: ModuleType, here: Path, rank: int, size: int) -> None:
    """From one file and from a set: by rows what was written by columns, and by one rank alone."""
    whole = wholes()
    path = here / "model.safetensors"
    io.save_file(held(whole, rank, size), path, 100_000)
    assert len(list(here.glob("model-*-of-*.safetensors"))) > 2
    turned = held(whole, size - 1 - rank, size, {"rows": 1, "columns": 0, "middle": 2, "large": 0})
    same(io.load_file(path, blank(turned)), turned)
    same(io.load_file(path), whole)
    if rank == size - 1:
        with io.open_file(path) as file:
            wanted = np.array(whole["columns"])[5:900:7, 3]
            assert np.array_equal(file.get_slice("columns")[5:900:7, 3], wanted)


def test_of_a_group(dist: ModuleType, here: Path, rank: int, size: int) -> None:
    """The ranks of the file are those of the group, in its order."""
    group = dist.new_group(range(size - 1, -1, -1))
    whole = {"columns": some("float32", (900, 64), 2)}
    mine = held(whole, size - 1 - rank, size)
    io.save_file(mine, here / "m", group=group)
    same(io.load_file(here / "m", blank(mine), group=group), mine)
    same(io.load_file(here / "m", group=group), whole)
    dist.destroy_process_group(group)


@pytest.mark.mpi(min=2)
def test_of_some_ranks(dist: ModuleType, here: Path, rank: int, size: int) -> None:
    group = dist.new_group([size - 1])
    if rank == size - 1:
        io.save_file({"a": np.arange(3)}, here / "m", group=group)
        assert io.load_file(here / "m", group=group)["a"].tolist() == [0, 1, 2]
        dist.destroy_process_group(group)
    else:
        with pytest.warns(UserWarning, match="does not belong"):
            assert io.save_file({"a": np.arange(3)}, here / "m", group=group) is None


def test_copies_are_written_once(
    dist: ModuleType, here: Path, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what all ranks have alike, each writes an even part, the same one in every run."""
    written: list[tuple[int, int]] = []
    real = os.pwrite

    def pwrite(descriptor: int, data: Any, at: int) -> int:
        written.append((at, len(data)))
        return real(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    whole = {"large": some("float32", (3000, 1024), 4), "w": some("float32", (500, 512), 5)}
    runs = []
    for name in "ab":
        written.clear()
        io.save_file(whole, here / name)
        runs.append(sorted(written))
    assert runs[0] == runs[1]
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, runs[0])
    ranges = sorted(one for ranges in everyone for one in ranges)
    end = 0
    for at, n in ranges:
        assert at == end
        end += n
    assert end == (here / "a").stat().st_size
    load = [sum(n for _, n in ranges) for ranges in everyone]
    assert max(load) - min(load) < 2 << 20, load


# Errors

pairs = pytest.mark.mpi(min=2)


def raises_everywhere(
    rank: int, wrong: int, kind: type[Exception], message: str, call: Callable[[], object]
) -> None:
    """That rank raises the error, and the others a RefusedError with its text."""
    with pytest.raises(kind if rank == wrong else errors.RefusedError, match=message) as caught:
        call()
    if rank != wrong:
        assert caught.value.ranks == (wrong,)
    works()


@pairs
def test_what_differs_between_ranks(here: Path, rank: int, size: int) -> None:
    a, b = np.arange(3), np.arange(3) + 0.5
    last = rank == size - 1
    alone = (size - 1,) if size > 2 else (0, 1)
    for tensors, named, message in (
        (
            {"a": b if last else a},
            {},
            r"'a': rank 0 has \('I64', \[3\]\), rank \d has \('F64'",
        ),
        ({"b" if last else "a": a}, {}, "tensor 'a': rank 0 has .*, rank . has none"),
        ({"a": a[:2] if last else a}, {}, r"\('I64', \[2\]\)"),
        ({"a": a}, {"metadata": {"a": str(last)}}, "metadata: rank 0 has .*False.*True"),
        (
            {"a": a},
            {"metadata": {} if last else None},
            r"rank 0 has None, rank . has \[\]",
        ),
        ({"a": a}, {"max_shard_size": 10 + last}, "max_shard_size: rank 0 has 10, rank . has 11"),
        (dict(sorted({"a": a, "b": b}.items(), reverse=last)), {"max_shard_size": 9}, "the order"),
    ):
        with pytest.raises(errors.MismatchError, match=message) as caught:
            io.save_file(tensors, here / "m", **named)
        assert caught.value.ranks == alone, message
    with pytest.raises(errors.MismatchError, match="path: rank 0 has"):
        io.save_file({"a": a}, here / ("n" if last else "m"))
    assert not os.listdir(here)
    works()


@pairs
def test_parts_that_do_not_tile(here: Path, rank: int, size: int) -> None:
    for begin, message in ((0, "overlap"), (rank, "overlap"), (3 * rank, "not whole")):
        shard = io.Shard(np.zeros(2 + (begin == rank), "f4"), (4 * size,), (begin,))
        with pytest.raises(errors.ArgumentError, match=f"save_file: 'layer.w'.*{message}"):
            io.save_file({"layer.w": shard, "b": np.zeros(3)}, here / "m")
    assert not os.listdir(here)
    works()


@pairs
def test_what_is_wrong_on_one_rank(here: Path, rank: int, size: int) -> None:
    wrong = size - 1
    zeros = np.zeros(3)
    text = {"a": "text" if rank == wrong else zeros}
    raises_everywhere(
        rank,
        wrong,
        errors.DtypeError,
        "'a': .*no tensor",
        lambda: io.save_file(text, here / "m"),
    )
    shared = {"a": zeros, "b": zeros if rank == wrong else zeros + 1}
    raises_everywhere(
        rank, wrong, errors.ArgumentError, "share memory", lambda: io.save_file(shared, here / "m")
    )
    raises_everywhere(
        rank, 0, FileNotFoundError, "no such folder", lambda: io.save_file({}, here / "n" / "m")
    )
    assert not os.listdir(here)
    io.save_file({"a": zeros}, here / "m")
    raises_everywhere(
        rank,
        wrong,
        FileNotFoundError,
        "No such file",
        lambda: io.load_file(here / ("n" if rank == wrong else "m")),
    )
    like = {"a": np.zeros(3 + (rank == wrong))}
    raises_everywhere(
        rank, wrong, errors.ArgumentError, "of shape", lambda: io.load_file(here / "m", like)
    )


@pairs
def test_a_folder_that_is_not_shared(
    dist: ModuleType, rank: int, size: int, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on hosts with a folder of the same name each."""
    if rank:
        (here / str(rank)).mkdir()
        monkeypatch.chdir(here / str(rank))
    else:
        monkeypatch.chdir(here)
    dist.barrier()
    kind = errors.RefusedError if rank == 0 else FileNotFoundError
    with pytest.raises(kind, match="a file system that all hosts share"):
        io.save_file({"a": np.arange(3)}, "m")
    assert not (here / "m").exists() and not list(here.glob("*.partial"))


@pairs
@pytest.mark.parametrize("name", ["pwrite", "fsync", "open"])
@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_one_rank_s_disk_fails(
    dist: ModuleType,
    here: Path,
    rank: int,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    columns: bool,
) -> None:
    """ESTALE, as of a server of NFS. The old file stays, and nothing else is left."""
    whole = {"w": some("float32", (900, 64), 2)}
    mine = held(whole, rank, size, {"w": int(columns)})
    io.save_file(mine, here / "m")
    before = (here / "m").read_bytes()
    dist.barrier()
    wrong, real = size - 1, getattr(os, name)

    def stale(*arguments: Any, **named: Any) -> Any:
        if name != "open" or "partial" in str(arguments[0]):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(*arguments, **named)

    if rank == wrong:
        monkeypatch.setattr(os, name, stale)
    raises_everywhere(rank, wrong, OSError, "Stale", lambda: io.save_file(mine, here / "m"))
    monkeypatch.undo()
    assert (here / "m").read_bytes() == before and os.listdir(here) == ["m"]
    dist.barrier()
    io.save_file(mine, here / "m")


@pairs
def test_a_damaged_file(dist: ModuleType, here: Path, rank: int) -> None:
    if rank == 0:
        (here / "m").write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    dist.barrier()
    with pytest.raises(errors.ArgumentError, match=re.escape("m: this is no safetensors file")):
        io.load_file(here / "m")
    works()


# MPI-IO


@pytest.fixture
def by_mpi(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files go through MPI. Returns the methods of the core that are called for them."""
    needs_mpi()
    from paddlempi.io import by_mpi

    called: list[str] = []
    real = by_mpi._called

    def spy(method: str, **request: Any) -> Any:
        called.append(method)
        return real(method, **request)

    monkeypatch.setenv("PADDLEMPI_IO", "mpi")
    monkeypatch.setattr(by_mpi, "_called", spy)
    return called


def test_mpi_writes_the_same_bytes(
    dist: ModuleType,
    here: Path,
    rank: int,
    size: int,
    by_mpi: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors = held(wholes(), rank, size)
    monkeypatch.setenv("PADDLEMPI_IO_HINTS", "striping_factor=2, cb_nodes=1")
    io.save_file(tensors, here / "mpi")
    assert by_mpi.count("file_open") == (2 if rank == 0 else 1)  # the one that leads has made it
    assert "file_write" in by_mpi and by_mpi[-1] == "file_sync"
    same(io.load_file(here / "mpi", blank(tensors)), tensors)
    assert "file_read" in by_mpi
    row = np.full(40_000, rank, "i8")
    with io.File(here / "rows by mpi", "w") as file:
        assert file.write_ordered(row) == row.nbytes * rank
        file.sync()
        out = np.empty(size, "i8")
        assert file.view("int64", (size,), strides=(40_000,)).read(out) is out
        assert out.tolist() == list(range(size))
        with pytest.raises(OSError, match=f"the file ends at byte {row.nbytes * size}"):
            file.read_at(row.nbytes * size - 8, np.zeros(2, "i8"))
    monkeypatch.setenv("PADDLEMPI_IO", "posix")
    by_mpi.clear()
    io.save_file(tensors, here / "posix")
    assert not by_mpi
    if rank == 0:
        assert (here / "mpi").read_bytes() == (here / "posix").read_bytes()
        assert (here / "rows by mpi").stat().st_size == row.nbytes * size
    dist.barrier()


def test_settings_of_mpi_io(
    here: Path, rank: int, by_mpi: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PADDLEMPI_IO_HINTS", "striping_factor")
    with pytest.raises(errors.Error, match="striping_factor=8"):
        io.save_file({"a": np.arange(3)}, here / "m")
    monkeypatch.setenv("PADDLEMPI_IO_HINTS", "")
    monkeypatch.setenv("PADDLEMPI_IO", "MPI")
    with pytest.raises(errors.Error, match="neither posix nor mpi"):
        io.save_file({"a": np.arange(3)}, here / "m")
    assert not os.listdir(here)
    works()


def test_an_error_of_mpi_io(
    dist: ModuleType, here: Path, rank: int, size: int, by_mpi: list[str]
) -> None:
    """A file that was opened to be read is not written; the text tells path, rank and offset."""
    io.save_file({"a": np.arange(3)}, here / "m")
    with io.File(here / "m") as file:
        with pytest.raises(OSError, match=rf"rank {rank} could not write at byte 5.*{here}/m"):
            file.write_at(5, np.zeros(3))
        assert by_mpi[-1] == "file_write"
    works()


def test_lustre_takes_mpi_io(
    dist: ModuleType, here: Path, by_mpi: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from paddlempi.io import by_mpi as module

    monkeypatch.setenv("PADDLEMPI_IO", "")
    io.save_file({"a": np.arange(3)}, here / "m")
    assert not by_mpi
    monkeypatch.setattr(module, "_kind", lambda path: 0x0BD00BD0)
    io.save_file({"a": np.arange(3)}, here / "m")
    assert "file_sync" in by_mpi
    assert io.load_file(here / "m")["a"].tolist() == [0, 1, 2]
