"""``ps.export`` and ``ps.load``: the cut that the core's tests have written, and damaged ones.

``gocore/ps/checkpoint/checkpoint_test.go`` makes ``testdata/golden``. Its rows are functions of the
id and the step.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paddlempi import errors, ps
from paddlempi.ps.cuts import Cut, open_cut

GOLDEN = Path(__file__).resolve().parents[3] / "gocore/ps/checkpoint/testdata/golden"
STAMPED = GOLDEN.with_name("golden-stamped")  # of step 142, with a table whose ids come and go
STEP = 42

TABLES = {
    # name: ids, dim, floats of a state
    "user/emb": (range(-20, 13), 3, 3),
    "item": (range(7), 5, 1),
    "half": (range(1, 4), 2, 0),
}


def rows_of(name: str) -> Any:
    ids, dim, _ = TABLES[name]
    return np.array([[i + j / 2 + STEP for j in range(dim)] for i in ids], np.float32)


def states_of(name: str) -> Any:
    ids, _, width = TABLES[name]
    return np.array([[i - j / 4 for j in range(width)] for i in ids], np.float32)


def weight() -> Any:
    blocks = [[i + j / 2 + STEP for j in range(8)] for i in range(2)]
    return np.array(blocks, np.float32).reshape(-1)[:15].reshape(3, 5)


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    """Return a copy of the golden cut's directory."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "saved"))


def parsed(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a safetensors file by its format."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    assert length % 8 == 0
    header, data = json.loads(data[8 : 8 + length]), data[8 + length :]
    metadata = header.pop("__metadata__")
    tensors: dict[str, Any] = {}
    end = 0
    for name, info in header.items():  # in the order of the data, without gaps
        begin, (start, end) = end, info["data_offsets"]
        assert start == begin
        dtype = {"I64": "<i8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}[info["dtype"]]
        array = np.frombuffer(data[start:end], dtype).reshape(info["shape"])
        if info["dtype"] == "BF16":
            array = (array.astype("<u4") << 16).view("<f4")
        tensors[name] = array
    assert end == len(data)
    return tensors, metadata


def loaded(path: Path, format: str) -> dict[str, Any]:
    if format == "safetensors":
        return parsed(path)[0]
    if format == "numpy":
        with np.load(path) as archive:
            return dict(archive)
    paddle = pytest.importorskip("paddle")
    tensors = paddle.load(str(path))
    assert tensors["item.rows"].dtype == paddle.bfloat16
    return {name: np.asarray(tensor.astype("float32")) for name, tensor in tensors.items()}


def test_a_cut_of_ids_that_come_and_go(tmp_path: Path) -> None:
    to = tmp_path / "model"
    assert ps.export(STAMPED, to, states=True) == 142
    tensors, _ = parsed(to)
    ids = tensors["visits.ids"]
    assert ids.tolist() == list(range(1, 10))
    assert tensors["visits.rows"].tolist() == [[i + j / 2 + 142 for j in range(3)] for i in ids]
    assert tensors["visits.states"].tolist() == [[i] for i in ids]
    assert tensors["user/emb.ids"].tolist() == list(range(-20, 13))
    cut = open_cut(STAMPED)
    number = [table.name for table in cut.tables].index("visits")
    uses = {i: s for ids, stamps in cut.stamps(number) for i, s in zip(ids, stamps, strict=True)}
    assert uses == {i: 142 - i * i % 7 for i in range(1, 10)}
    assert cut.sketches(number) == [bytes([server, 7, 200]) * 9 for server in range(2)]
    assert not any(cut.sketches(other) for other in range(len(cut.tables)) if other != number)
    assert len(ps.load(STAMPED, tables=["visits"])["visits"]) == 9


@pytest.mark.parametrize("format", ["safetensors", "numpy", "paddle"])
def test_every_format_has_all_tables(cut: Path, tmp_path: Path, format: str) -> None:
    to = tmp_path / "model"
    to.write_text("what was there before")
    assert ps.export(cut, to, format, states=True) == STEP
    tensors = loaded(to, format)
    for name, (ids, _, width) in TABLES.items():
        assert tensors[f"{name}.ids"].tolist() == list(ids)
        if format != "paddle":
            assert tensors[f"{name}.ids"].dtype == np.int64
        assert np.array_equal(tensors[f"{name}.rows"], rows_of(name))
        if width:
            assert np.array_equal(tensors.pop(f"{name}.states"), states_of(name))
    assert np.array_equal(tensors["fc.weight"], weight())
    names = {f"{name}.{what}" for name in TABLES for what in ("ids", "rows")}
    assert tensors.keys() == names | {"fc.weight"}
    assert {path.name for path in tmp_path.iterdir()} == {"model", "saved"}


def test_safetensors_can_be_read_by_its_package(cut: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    to = tmp_path / "model.safetensors"
    ps.export(cut, to)
    tensors = safetensors.load_file(to)
    assert tensors["item.rows"].dtype == torch.bfloat16
    assert tensors["half.rows"].dtype == torch.float16
    for name in TABLES:
        assert np.array_equal(tensors[f"{name}.rows"].float().numpy(), rows_of(name))
    assert np.array_equal(tensors["fc.weight"].numpy(), weight())
    _, metadata = parsed(to)
    assert metadata["step"] == "42"
    assert json.loads(metadata["config.item"])["optimizer"]["name"] == "row_wise_adagrad"


def test_some_tables(cut: Path, tmp_path: Path) -> None:
    to = tmp_path / "model"
    ps.export(cut, to, tables=["half", "half"], step=STEP)
    assert parsed(to)[0].keys() == {"half.ids", "half.rows"}


def test_arguments(cut: Path, tmp_path: Path) -> None:
    to = tmp_path / "model"
    for message, call in {
        "format='json' is none of safetensors, numpy, paddle": lambda: ps.export(cut, to, "json"),
        "has no table 'no'; it has 'fc.weight', 'half'": lambda: ps.export(cut, to, tables=["no"]),
        "tables='item' is one name": lambda: ps.load(cut, tables="item"),
        "has no whole cut": lambda: ps.load(tmp_path),
        "cut-00000007 is no whole cut": lambda: ps.load(cut, step=7),
        "step=-1 is not a number": lambda: ps.load(cut, step=-1),
    }.items():
        with pytest.raises(errors.ArgumentError, match=re.escape(message)):
            call()
    with pytest.raises(FileNotFoundError):
        ps.export(cut, tmp_path / "missing" / "model")
    assert {path.name for path in tmp_path.iterdir()} == {"saved"}


def test_load_makes_tables(cut: Path) -> None:
    tables = ps.load(cut)
    assert tables.keys() == TABLES.keys()
    for name, (ids, dim, _) in TABLES.items():
        table = tables[name]
        assert (table.dim, len(table), table.optimizer) == (dim, len(ids), ps.SGD(0.25))
        assert np.array_equal(table.pull(np.array(ids)), rows_of(name))
        assert table.info()["state_bytes"] == 0
    assert [tables[name].dtype for name in TABLES] == ["float32", "bfloat16", "float16"]
    # A row that the cut does not have is that of the table's seed.
    other = ps.Table(3, "sgd", ps.Normal(0, 0.5), seed=9)
    assert np.array_equal(tables["user/emb"].pull(np.array([99])), other.pull(np.array([99])))


def test_load_to_train_has_optimizers_and_states(cut: Path) -> None:
    tables = ps.load(cut, train=True, tables=["user/emb", "item", "fc.weight"])
    for name in ("user/emb", "item"):
        state = tables[name].state_dict()
        assert np.array_equal(state["rows"], rows_of(name))
        assert np.array_equal(state["states"], states_of(name))
        assert state["steps"] == STEP
    assert tables["user/emb"].optimizer == ps.Adagrad(
        0.25, clip_norm=2.0, epsilon=1e-6, initial_accumulator=0.5
    )
    assert isinstance(tables["item"].optimizer, ps.RowWiseAdagrad)
    assert len(tables["fc.weight"]) == 2


@pytest.mark.parametrize("train", [False, True])
def test_load_says_how_many_bytes_it_takes(
    cut: Path, train: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    ps.load(cut, tables=["user/emb", "item"], train=train, progress=True)
    nbytes = 33 * 3 * 4 + 7 * 5 * 2 + train * (33 * 3 + 7) * 4
    assert capsys.readouterr().err.startswith(f"load: {nbytes} B in 0.")


@pytest.mark.parametrize("train", [False, True])
def test_an_exported_file_is_loaded(cut: Path, tmp_path: Path, train: bool) -> None:
    to = tmp_path / "model.safetensors"
    ps.export(cut, to, states=True)
    names = ["user/emb", "item"]
    there, wanted = (ps.load(path, tables=names, train=train) for path in (to, cut))
    assert ps.load(to).keys() == TABLES.keys()
    for name in names:
        assert there[name].optimizer == wanted[name].optimizer
        one, two = there[name].state_dict(), wanted[name].state_dict()
        assert one.keys() == two.keys() and one["steps"] == two["steps"]
        for key in ("ids", "rows", "states"):
            assert np.array_equal(np.sort(one[key], 0), np.sort(two[key], 0))
        assert np.array_equal(there[name].pull(np.array([99])), wanted[name].pull(np.array([99])))
    ps.export(cut, to)
    for call, message in (
        (lambda: ps.load(to, step=41), "is of step 42, not 41"),
        (
            lambda: ps.load(to, tables=["no"]),
            "has no table 'no'; it has 'half', 'item', 'user/emb'",
        ),
        (lambda: ps.load(to, train=True), "the states of 'item' there have 0 floats"),
    ):
        with pytest.raises(errors.ArgumentError, match=message):
            call()


def test_the_file_is_laid_out_as_the_package_does(cut: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    to = tmp_path / "model.safetensors"
    ps.export(cut, to, tables=["item", "user/emb"], states=True, progress=False)
    tensors, metadata = parsed(to)
    half = {name for name in tensors if name == "item.rows"}  # NumPy has no bfloat16
    data = safetensors.save({n: t for n, t in tensors.items() if n not in half}, metadata)
    order = [n for n in json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]) if n[0] != "_"]
    assert [name for name in tensors if name not in half] == order


def everything(directory: Path) -> None:
    """Read all bytes of a cut."""
    open_cut(directory).verify()


@pytest.mark.parametrize(("golden", "every"), [(GOLDEN, 1), (STAMPED, 7)])
def test_every_flipped_bit_and_truncation_is_found(
    tmp_path: Path, golden: Path, every: int
) -> None:
    """Of the second cut, which has the tables of the first one too, only some."""
    cut = Path(shutil.copytree(golden, tmp_path / "saved"))
    (folder,) = cut.iterdir()
    everything(cut)
    for path in folder.iterdir():
        before = path.read_bytes()
        for place in range(0, len(before), every):
            flipped = bytearray(before)
            flipped[place] ^= 1 << place % 8
            for damaged in (flipped, before[:place]) if place % 4 == 0 else (flipped,):
                path.write_bytes(damaged)
                with pytest.raises(errors.ArgumentError, match=r"no whole cut|is damaged"):
                    everything(cut)
        path.write_bytes(before)
    everything(cut)


def test_an_index_is_read_once(cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut of a thousand tables is not read a thousand times."""
    read: list[int] = []
    reads = Cut._read_index
    monkeypatch.setattr(
        Cut, "_read_index", lambda self, *arguments: [reads(self, *arguments), read.append(1)][0]
    )
    ps.load(cut, step=STEP)
    assert len(read) == len(list(cut.glob("*/part-*")))


def test_an_older_cut_is_taken_if_the_newest_is_not_whole(cut: Path) -> None:
    newer = cut / "cut-00000050"
    newer.mkdir()  # nobody has committed it
    assert open_cut(cut).step == STEP
    shutil.copytree(cut / "cut-00000042", newer, dirs_exist_ok=True)
    assert open_cut(cut).step == STEP
    with pytest.raises(errors.ArgumentError, match="its manifest is of step 42"):
        open_cut(cut, 50)


def test_a_pipe_is_not_opened(cut: Path) -> None:
    for path in (cut / "cut-00000042").iterdir():
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(errors.ArgumentError, match="is no regular file"):
            open_cut(cut, STEP)
        path.unlink()
        shutil.copy(GOLDEN / "cut-00000042" / path.name, path)
    everything(cut)


def test_a_damaged_cut_exports_nothing_and_leaves_no_table(cut: Path, tmp_path: Path) -> None:
    part = sorted((cut / "cut-00000042").glob("part-*"))[-1]
    data = bytearray(part.read_bytes())
    data[-200] ^= 1
    part.write_bytes(data)
    for format in ("safetensors", "numpy", "paddle"):
        with pytest.raises(errors.ArgumentError, match="is damaged: the checksum of the"):
            ps.export(cut, tmp_path / "model", format)
    with pytest.raises(errors.ArgumentError, match="is damaged: the checksum of the"):
        ps.load(cut)
    assert {path.name for path in tmp_path.iterdir()} == {"saved"}


def changed(cut: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Change the manifest of a cut, and make its checksum right."""
    path = cut / "cut-00000042" / "manifest.json"
    manifest = json.loads(path.read_text())["manifest"]
    change(manifest)
    text = json.dumps(manifest)
    path.write_text(f'{{"crc32":"{zlib.crc32(text.encode()):08x}","manifest":{text}}}\n')
    return cut


def set_at(*path: Any) -> Callable[[dict[str, Any]], None]:
    *way, last, value = path

    def change(manifest: Any) -> None:
        for step in way:
            manifest = manifest[step]
        manifest[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_at("format", 3), "none of format 1 or 2"),
        (set_at("format", 2), "its tables are not those of format 2"),
        (set_at("tables", 0, "stamps", 1), "'fc.weight' has stamps=1"),
        (set_at("tables", 0, "stamps", True), "its tables are not those of format 1"),
        (set_at("step", "42"), "step='42'"),
        (set_at("tables", None), "no list of tables"),
        (set_at("tables", 0, "name", 3), "a table without a name"),
        (set_at("tables", 0, "name", "item"), "not in the order of their names"),
        (set_at("tables", 0, "dtype", "float64"), "has no dtype of a row"),
        (set_at("tables", 0, "config", []), "or no config"),
        (set_at("tables", 0, "dim", 1 << 40), "dim=1099511627776"),
        (set_at("tables", 0, "dim", True), "dim=True"),
        (set_at("tables", 0, "state_len", -1), "state_len=-1"),
        (set_at("tables", 0, "rows", 1 << 60), "its parts have 2 rows of 'fc.weight'"),
        (set_at("extra", "?"), "no whole cut"),
        (set_at("serial", -1), "serial=-1"),
        (set_at("supersedes", 3), "no list of supersedes"),
        (set_at("supersedes", [3]), "supersedes 3"),
        (set_at("supersedes", [{"step": 3}]), "serial=None"),
        (set_at("parts", 0, "file", "../../secret"), "names a part '../../secret'"),
        (set_at("parts", 0, "bytes", 31), "bytes=31"),
        (set_at("parts", 0, "bytes", 1 << 50), "it was written with 1125899906842624"),
        (set_at("parts", 0, "chunks", 1 << 40), "chunks=1099511627776"),
        (set_at("parts", 0, "chunks", 1), "the checksum of its index"),
        (set_at("parts", 0, "crc32", 1), "the checksum of its index"),
        (set_at("parts", 0, "rows", []), "no rows of 4 tables"),
        (set_at("parts", 0, "rows", 0, 1 << 40), "and 1099511627776 rows of 'fc.weight'"),
        (set_at("parts", 0, "rows", 0, -1), "and -1 rows of 'fc.weight'"),
        (set_at("parts", 0, []), "names a part None"),
    ],
)
def test_manifests_are_not_trusted(
    cut: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    with pytest.raises(errors.ArgumentError, match=re.escape(message)):
        everything(changed(cut, change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_at("tables", 1, "config", {}), "the config of 'half' in the cut is none of a table"),
        (set_at("tables", 1, "config", "optimizer", 3), "is none of a table"),
        (set_at("tables", 1, "config", "optimizer", "name", "x"), "optimizer='x' is none of"),
        (set_at("tables", 1, "config", "optimizer", "name", "adam"), "those of adam have 4"),
        (set_at("tables", 1, "config", "seed", -1), "seed=-1 is not from 0"),
        (set_at("tables", 0, "config", "dims", [-1]), "has dims=[-1]"),
        (set_at("tables", 0, "config", "dims", [1 << 40]), "and 2 blocks of 8 elements"),
    ],
)
def test_configs_are_not_trusted(
    cut: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    with pytest.raises(errors.ArgumentError, match=re.escape(message)):
        ps.load(changed(cut, change), train=True)


def test_blocks_that_are_missing(cut: Path, tmp_path: Path) -> None:
    changed(cut, set_at("tables", 0, "config", "dims", [8]))
    with pytest.raises(
        errors.ArgumentError, match=r"2 blocks of 'fc\.weight'; it needs those from 0"
    ):
        ps.export(cut, tmp_path / "model")


def doubled(cut: Path) -> None:
    """Make the first part twice, as those of servers 0 and 1."""
    folder = cut / "cut-00000042"
    manifest = json.loads((folder / "manifest.json").read_text())["manifest"]
    first, second = manifest["parts"]
    data = bytearray((folder / first["file"]).read_bytes())
    data[12] = 1
    (folder / second["file"]).write_bytes(data)

    def twice(manifest: dict[str, Any]) -> None:
        manifest["parts"][1] = first | {"file": second["file"]}
        for table, rows in zip(manifest["tables"], first["rows"], strict=True):
            table["rows"] = 2 * rows

    changed(cut, twice)


def test_ids_that_are_there_twice(cut: Path, tmp_path: Path) -> None:
    doubled(cut)
    with pytest.raises(errors.ArgumentError, match="two rows of id 2 of table 'half'"):
        ps.export(cut, tmp_path / "model")
    with pytest.raises(errors.ArgumentError, match="2 rows of table 'half', but only 1 different"):
        ps.load(cut, tables=["half"])


def test_a_part_that_ends_while_it_is_read(cut: Path) -> None:
    whole = open_cut(cut)
    assert isinstance(whole, Cut)
    (part, *_) = (cut / "cut-00000042").glob("part-*")
    os.truncate(part, 40)
    with pytest.raises(errors.ArgumentError, match=r"does not have .* bytes any more"):
        for number in range(len(whole.tables)):
            list(whole.chunks(number))
