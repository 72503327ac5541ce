"""``save_file``, ``load_file`` and ``open_file`` in one process: bytes, values, and failures."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import unwritable
from paddlempi import errors, io
from paddlempi.io import posix
from paddlempi.io.dtypes import BY_NAME

RNG = np.random.default_rng(3)
DTYPES = sorted(BY_NAME)


def numpy_dtype(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name, name))


def some(dtype: str, *shape: int) -> Any:
    size = numpy_dtype(dtype).itemsize
    bits = RNG.integers(0, 2 if dtype == "bool" else 120, (*shape, size), np.uint8)
    if dtype == "bool":
        return bits[..., 0].astype(bool)
    return bits.reshape(-1).view(numpy_dtype(dtype)).reshape(shape)


def model() -> dict[str, Any]:
    """Tensors of every dtype, of several shapes and orders in memory."""
    found: dict[str, Any] = {f"of {dtype}": some(dtype, 3, 4) for dtype in DTYPES}
    found["transposed"] = some("float32", 5, 7).T
    found["reversed"] = some("int16", 6)[::-1]
    found["columns"] = some("float64", 4, 9)[:, 2:8:3]
    found["scalar"] = some("float32")
    found["empty"] = some("float32", 0, 3)
    found["ümlaut \"'\n"] = some("bfloat16", 2)
    return found


def packed(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return arrays that the package takes: contiguous, and also those of 0 dimensions."""
    return {name: np.array(array, order="C") for name, array in tensors.items()}


def same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
def test_the_file_is_that_of_the_package(tmp_path: Path, metadata: Any) -> None:
    tensors = model()
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    io.save_file(tensors, ours, metadata=metadata)
    safetensors.numpy.save_file(packed(tensors), theirs, metadata)
    assert ours.read_bytes() == theirs.read_bytes()
    same(io.load_file(theirs), tensors)
    with io.open_file(theirs) as file:
        assert file.metadata() == metadata
        assert set(file) == set(file.keys()) == set(tensors) and len(file) == len(tensors)
        assert "scalar" in file and "no" not in file


def test_nothing_is_a_file_too(tmp_path: Path) -> None:
    io.save_file({}, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"\x08" + bytes(7) + b"{}      "
    assert io.load_file(tmp_path / "a") == {}


def test_a_set_of_files(tmp_path: Path) -> None:
    tensors = model()
    path = tmp_path / "model.safetensors"
    for most in (100, "200"):
        io.save_file(tensors, path, max_shard_size=most, metadata={"format": "pt"})
        files = sorted(one.name for one in tmp_path.iterdir())
        assert files.pop() == "model.safetensors.index.json"
        assert all(
            re.fullmatch(rf"model-[0-9a-f]{{16}}-{n:05d}-of-{len(files):05d}\.safetensors", one)
            for n, one in enumerate(files, 1)
        )
        assert len(files) > 1
        for place in (path, tmp_path, tmp_path / "model.safetensors.index.json"):
            same(io.load_file(place), tensors)
        found: dict[str, Any] = {}
        for one in files:
            with safetensors.safe_open(tmp_path / one, "np") as theirs:
                assert theirs.metadata() == {"format": "pt"}
                keys = theirs.keys()
                assert sum(np.prod(theirs.get_slice(k).get_shape()) for k in keys)
                found |= dict.fromkeys(keys)
        assert found.keys() == tensors.keys()
    with io.open_file(path) as file:
        assert file.metadata() == {
            "format": "pt",
            "total_size": str(sum(t.nbytes for t in tensors.values())),
        }


def test_a_set_that_fits_is_one_file(tmp_path: Path) -> None:
    io.save_file(model(), tmp_path / "model.safetensors", max_shard_size="5GB")
    assert [one.name for one in tmp_path.iterdir()] == ["model.safetensors"]


def test_an_existing_folder_means_the_model_in_it(tmp_path: Path) -> None:
    io.save_file({"a": np.arange(3)}, tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["model.safetensors"]
    assert io.load_file(tmp_path)["a"].tolist() == [0, 1, 2]


def test_the_other_form_is_refused(tmp_path: Path) -> None:
    tensors = {"a": np.arange(30)}
    path = tmp_path / "m.safetensors"
    io.save_file(tensors, path)
    with pytest.raises(errors.ArgumentError, match=r"m\.safetensors is there, .* that is one file"):
        io.save_file(tensors, path, max_shard_size=10)
    path.unlink()
    io.save_file(tensors, path, max_shard_size=10)
    with pytest.raises(errors.ArgumentError, match=r"index.json is there, .* is a set of files"):
        io.save_file(tensors, path)
    assert len(list(tmp_path.iterdir())) == 2


def test_slices(tmp_path: Path) -> None:
    tensors = {"m": some("bfloat16", 40, 50), "v": np.arange(9), "s": np.float32(3)}
    io.save_file(tensors, tmp_path / "m")
    with io.open_file(tmp_path / "m") as file:
        found = file.get_slice("m")
        assert found.get_shape() == [40, 50] and found.get_dtype() == "BF16"
        for index in (
            np.s_[:], np.s_[3], np.s_[-1], np.s_[3:7], np.s_[:, 4:9], np.s_[::-1],
            np.s_[5:1:-2, ::3], np.s_[..., 7], np.s_[None, 2:4, None], np.s_[30:10], np.s_[3, 4],
            np.s_[39:, -3:],
        ):  # fmt: skip
            assert np.array_equal(found[index], tensors["m"][index]), index
        assert file.get_slice("s")[...] == 3 and file.get_tensor("s").shape == ()
        with pytest.raises(errors.ArgumentError, match="index of 'v': 9 is out of range"):
            file.get_slice("v")[9]
        with pytest.raises(errors.DtypeError, match="index of 'v'"):
            file.get_slice("v")[[1, 2]]
        with pytest.raises(errors.ArgumentError, match="there is no tensor 'no'; there are 'v'"):
            file.get_tensor("no")
        out = np.zeros((3, 50), ml_dtypes.bfloat16)
        file.read_into("m", out, (4, 0))
        assert np.array_equal(out, tensors["m"][4:7])
        with pytest.raises(errors.ArgumentError, match="is no part of 'm'"):
            file.read_into("m", out, (38, 0))
        with pytest.raises(errors.ArgumentError, match="and out of"):
            file.read_into("m", out)


def test_short_runs_and_long_gaps(tmp_path: Path) -> None:
    """Columns of a wide matrix are read alone, those of a narrow one with what is between."""
    wide, narrow = some("float32", 20, 40_000), some("float32", 3000, 700)
    io.save_file({"wide": wide, "narrow": narrow}, tmp_path / "m")
    with io.open_file(tmp_path / "m") as file:
        for name, array in (("wide", wide), ("narrow", narrow)):
            assert np.array_equal(file.get_slice(name)[:, 7:9], array[:, 7:9])
            out = np.zeros_like(array).T
            file.read_into(name, out.T)
            assert np.array_equal(out.T, array)


def test_like_is_filled(tmp_path: Path) -> None:
    whole = some("float32", 6, 8)
    io.save_file({"a": whole, "b": np.arange(4)}, tmp_path / "m")
    mine = io.Shard(np.zeros((2, 8), np.float32), (6, 8), (3, 0))
    like = {"a": mine}
    found = io.load_file(tmp_path / "m", like)
    assert found == like and np.array_equal(mine.array, whole[3:5])
    for wrong, message in (
        ({"c": np.zeros(3)}, "has no 'c'"),
        ({"a": np.zeros((6, 7), "f4")}, r"'a' is of shape \[6, 8\] in the file, and \[6, 7\]"),
        ({"a": np.zeros((6, 8), "f8")}, "'a' is of float32 in the file, and of float64"),
        ({"a": np.broadcast_to(np.zeros(8, "f4"), (6, 8))}, "'a' is read-only"),
    ):
        with pytest.raises(errors.Error, match=message):
            io.load_file(tmp_path / "m", wrong)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    path = tmp_path / "m"
    base = np.zeros((4, 6))
    for tensors, kind, message in (
        ([1], errors.DtypeError, "tensors is a list"),
        ({1: base}, errors.DtypeError, "the name 1 is a int"),
        ({"__metadata__": base}, errors.ArgumentError, "__metadata__"),
        ({"w": "text"}, errors.DtypeError, "'w': an object of type builtins.str is no tensor"),
        ({"w": np.zeros(3, complex)}, errors.DtypeError, "'w' is of complex128, which"),
        ({"w": np.zeros(3, ">f4")}, errors.DtypeError, "byte order"),
        ({"w": np.zeros(3, object)}, errors.DtypeError, "'w': an array of dtype object"),
        ({"w": base, "v": base}, errors.ArgumentError, "'v' and 'w' share memory"),
        ({"w": base[:2], "v": base[1]}, errors.ArgumentError, "'w' and 'v' share memory"),
        ({"w": io.Shard(base, (5, 6), (0, 0))}, errors.ArgumentError, "save_file: 'w' of shape"),
    ):  # fmt: skip
        with pytest.raises(kind, match=re.escape(message)):
            io.save_file(tensors, path)
    for named, kind in (({"metadata": {"a": 1}}, TypeError), ({"max_shard_size": 0}, ValueError)):
        with pytest.raises(kind):
            io.save_file({"w": base}, path, **named)
    assert not list(tmp_path.iterdir())
    io.save_file({"w": base[:, :3], "v": base[:, 3:]}, path)  # their elements are not the same


@pytest.mark.parametrize(
    ("shape", "offsets", "kind"),
    [
        ((4,), (0, 0), ValueError),
        ((4, 5), (1, 0), ValueError),
        ((4, 6), (-1, 0), ValueError),
        ("ab", (0, 0), TypeError),
        (3, (0, 0), TypeError),
    ],
)
def test_no_shards(shape: Any, offsets: Any, kind: type) -> None:
    with pytest.raises(kind, match="Shard: "):
        io.Shard(np.zeros((4, 6)), shape, offsets)


def test_other_tensors(tmp_path: Path) -> None:
    """What has the buffer protocol or __dlpack__ is a tensor too."""
    view = memoryview(bytearray(b"abcdef")).cast("B", (2, 3))
    io.save_file({"bytes": bytearray(b"xyz"), "view": view, "scalar": np.int64(7)}, tmp_path / "m")
    found = io.load_file(tmp_path / "m")
    assert found["bytes"].tobytes() == b"xyz" and found["view"].shape == (2, 3)
    assert found["scalar"] == 7
    into = bytearray(3)
    io.load_file(tmp_path / "m", {"bytes": into})
    assert into == b"xyz"


# Failures

CALLS = ("pwrite", "fsync", "ftruncate", "replace", "open")


def failing(monkeypatch: pytest.MonkeyPatch, name: str, number: int, code: int) -> list[int]:
    """Make call ``number`` of a function of os fail. Return a list that gets the calls."""
    real: Callable[..., Any] = getattr(os, name)
    calls: list[int] = []

    def fake(*arguments: Any, **named: Any) -> Any:
        calls.append(len(calls))
        if calls[-1] == number:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **named)

    monkeypatch.setattr(os, name, fake)
    return calls


@pytest.mark.parametrize("most", [None, 300], ids=["file", "set"])
@pytest.mark.parametrize("name", CALLS)
def test_after_a_failure_the_old_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: int | None
) -> None:
    """Every call of the system fails in turn. Either the save says so, or the new one is there."""
    path = tmp_path / "m.safetensors"
    old, new = {"a": np.arange(100)}, {"a": np.arange(100) + 1, "b": np.arange(50)}
    io.save_file(old, path, most)
    files = {one.name for one in tmp_path.iterdir()}
    number, ended = 0, False
    while not ended:
        with monkeypatch.context() as patch:
            calls = failing(patch, name, number, errno.ESTALE)
            try:
                io.save_file(new, path, most)
            except OSError as error:
                assert error.errno == errno.ESTALE
            else:
                ended = True
        here = io.load_file(path)
        assert here.keys() in (old.keys(), new.keys())
        same(here, new if "b" in here else old)
        if "b" in here:
            number += 1
            io.save_file(old, path, most)
            files = {one.name for one in tmp_path.iterdir()}
            continue
        assert {one.name for one in tmp_path.iterdir()} == files
        ended = ended and len(calls) <= number
        number += 1
    assert number > 0


def test_errors_name_path_rank_and_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, "pwrite", 1, errno.ENOSPC)  # the first call writes the header
    with pytest.raises(OSError, match="rank 0 could not write at byte 64") as caught:
        io.save_file({"a": np.arange(3)}, tmp_path / "m")
    assert caught.value.errno == errno.ENOSPC and str(tmp_path) in str(caught.value.filename)
    monkeypatch.undo()
    io.save_file({"a": np.arange(3)}, tmp_path / "m")
    with io.open_file(tmp_path / "m") as file:
        failing(monkeypatch, "preadv", 0, errno.EIO)
        with pytest.raises(OSError, match="rank 0 could not read at byte 64"):
            file.get_tensor("a")
        monkeypatch.undo()
        os.truncate(tmp_path / "m", 70)
        with pytest.raises(OSError, match="ends at byte 70"):
            file.get_tensor("a")
    with pytest.raises(errors.ArgumentError, match=r"/m: this is no safetensors file"):
        io.load_file(tmp_path / "m")
    for where in ("no/m", "no"):
        with pytest.raises(FileNotFoundError):
            io.load_file(tmp_path / where)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        io.save_file({}, tmp_path / "no" / "m")


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "m.safetensors"
    io.save_file({"a": np.arange(100)}, path, 300)
    yield path


def test_what_a_killed_save_left_is_removed(written: Path) -> None:
    folder, tag = written.parent, "0123456789abcdef"
    stale = [f"m-{tag}-00001-of-00002.safetensors", f"m.safetensors.index.json.{tag}.partial"]
    stale += [f"{name}.locktest.1" for name in stale]  # of Open MPI's MPI-IO
    others = [
        f"m-{tag}-00001-of-00002.safetensors.bak",
        "m-00001-of-00002.safetensors",
        f"other-{tag}-00001-of-00002.safetensors",
        f"m.safetensors.{tag[1:]}.partial",
    ]
    for name in (*stale, *others, f"m.safetensors.{tag}.partial"):
        (folder / name).write_bytes(b"left")
    io.save_file({"a": np.arange(100)}, written, 300)
    names = {one.name for one in folder.iterdir()}
    assert names >= set(others) and not names & {*stale, f"m.safetensors.{tag}.partial"}
    assert len(names) == len(others) + 2


def test_a_save_under_way_keeps_its_files(written: Path) -> None:
    folder, tag = written.parent, "0123456789abcdef"
    names = [f"m.safetensors.index.json.{tag}.partial", f"m-{tag}-00001-of-00002.safetensors"]
    for name in names:
        (folder / name).write_bytes(b"under way")
    with open(folder / names[0], "r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        io.save_file({"a": np.arange(100)}, written, 300)
        assert {one.name for one in folder.iterdir()} >= set(names)
    io.save_file({"a": np.arange(100)}, written, 300)
    assert not {one.name for one in folder.iterdir()} & set(names)


def test_an_open_file_stays_as_it_was(written: Path) -> None:
    with io.open_file(written) as file:
        io.save_file({"a": np.arange(100) + 1}, written, 300)
        assert file.get_tensor("a")[0] == 0
    assert io.load_file(written)["a"][0] == 1


def test_an_index_that_cannot_be_read(written: Path) -> None:
    """Which files it needs is not known, so none is removed."""
    index = written.with_name("m.safetensors.index.json")
    text = index.read_text()
    before = set(written.parent.iterdir())
    for damaged in ("{", text.replace('"a"', '"b"'), text.replace("m-", "no-")):
        index.write_text(damaged)
        with pytest.raises((errors.ArgumentError, FileNotFoundError)):
            io.load_file(written)
    index.write_text("{")
    with pytest.raises(errors.ArgumentError, match="index"):
        io.save_file({"a": np.arange(100)}, written, 300)
    assert set(written.parent.iterdir()) == before


def test_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    io.save_file({"a": np.arange(100)}, tmp_path / "m", progress=True)
    io.load_file(tmp_path / "m", progress=True)
    shown = capsys.readouterr().err.splitlines()
    assert [line.split(" in ")[0] for line in shown] == ["save_file: 800 B", "load_file: 800 B"]


def test_the_disk_begins_while_a_save_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int, int]] = []
    code = errno.EINVAL

    class System:
        def sync_file_range(self, descriptor: int, begin: int, length: int, flags: int) -> int:
            told.append((begin, length, flags))
            ctypes.set_errno(code)
            return -1

    system = System()
    monkeypatch.setattr(posix, "system", lambda: system)
    monkeypatch.setattr(posix, "_UNDER_WAY", 1)
    tensors = {name: np.full((5 << 20) >> 1, n, np.uint8) for n, name in enumerate("abcde")}
    io.save_file(tensors, tmp_path / "a")  # a file system that does not know the call
    begin, batch = (tmp_path / "a").stat().st_size - (25 << 19), 5 << 20
    assert told == [(begin, batch, 2), (begin + batch, batch, 2), (begin, batch, 7)]
    with io.File(tmp_path / "b", "w") as file:
        file.write_at(0, tensors["a"])
        file.write_at(5 << 20, np.zeros(9 << 20, np.uint8))
    assert len(told) == 3  # nothing was to be flushed
    code = errno.EDQUOT
    with pytest.raises(OSError, match=f"quota exceeded: rank 0 could not write at byte {begin}"):
        io.save_file(tensors, tmp_path / "a")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_files_that_nobody_closes(tmp_path: Path) -> None:
    """A descriptor ends with the object that has it; what was not committed is removed."""
    io.save_file({"a": np.arange(6)}, tmp_path / "one")
    (tmp_path / "bytes").write_bytes(b"12345678")
    for _ in range(2):  # what is opened once for all is open then
        before = os.listdir("/proc/self/fd")
        for _ in range(5):
            assert io.open_file(tmp_path / "one").get_tensor("a")[5] == 5
            part = io.open_file(tmp_path / "one").get_slice("a")
            assert part[1:3].tolist() == [1, 2]
            del part
            assert io.File(tmp_path / "bytes").size() == 8
            io.File(tmp_path / "bytes", "w", atomic=True)
        gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert (tmp_path / "bytes").read_bytes() == b"12345678"
    assert sorted(os.listdir(tmp_path)) == ["bytes", "one"]


def test_a_masked_array_is_no_tensor(tmp_path: Path) -> None:
    masked = np.ma.MaskedArray([1.0, 100.0], mask=[False, True])
    with pytest.raises(errors.DtypeError, match="masked array"):
        io.save_file({"a": masked}, tmp_path / "one")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("step", [1, 2])
def test_memory_that_cannot_be_written_to(tmp_path: Path, step: int) -> None:
    """NumPy says that it can, and its copy would end the process."""
    io.save_file({"w": np.ones((4, 3), "f4")}, tmp_path / "f")
    like = {"w": unwritable.array(4, 3 * step)[:, ::step]}
    with pytest.raises(errors.ArgumentError, match=r"'w' cannot be written to.*np\.memmap"):
        io.load_file(tmp_path / "f", like)
    with io.File(tmp_path / "f") as file, pytest.raises(errors.ArgumentError, match=r"np\.memmap"):
        file.read_at(0, like["w"])
