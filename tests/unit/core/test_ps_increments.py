"""``ps.export(since=)``, ``ps.apply_increment`` and ``apply`` of the tables of ``ps.load``."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paddlempi import errors, ps
from paddlempi.io import open_file
from ps_cuts import Content, config_of, write_cut

EXPORT = import_module("paddlempi.ps.export")  # ps.export is the function
DTYPES = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}


class Model:
    """Tables that change at random, as cuts of them."""

    def __init__(self, directory: Path, seed: int = 0) -> None:
        self.directory, self.serial = directory, 0
        self.random = np.random.default_rng(seed)
        self.tables: dict[str, Content] = {}

    def table(self, name: str, dim: int, count: int, dtype: str = "float32", **more: Any) -> None:
        ids = np.sort(self.random.choice(4 * count + 1, count, replace=False)) - count
        rows = self.bits(count, dim, dtype)
        states = self.bits(count, dim, "float32")
        self.tables[name] = Content(config_of(dim, dtype, **more), ids.astype("<i8"), rows, states)

    def dense(self, name: str, elements: int) -> None:
        blocks = -(-elements // 8)
        config = config_of(8, kind="dense", dims=[elements])
        rows, states = (self.bits(blocks, 8, "float32") for _ in range(2))
        self.tables[name] = Content(config, np.arange(blocks, dtype="<i8"), rows, states)

    def bits(self, count: int, dim: int, dtype: str) -> Any:
        values = self.random.normal(size=(count, dim)).astype("<f4")
        if dtype == "bfloat16":
            return (values.view("<u4") >> 16).astype("<u2")
        return values.astype(DTYPES[dtype])

    def change(self, name: str, changed: int, new: int, gone: int) -> None:
        """Change some rows of a table, add some, and remove some."""
        config, ids, rows, states = self.tables[name]
        rows, states = rows.copy(), states.copy()
        some = self.random.choice(len(ids), changed, replace=False)
        rows[some] = self.bits(changed, rows.shape[1], config["dtype"])
        states[some] += 1
        keep = np.ones(len(ids), bool)
        keep[self.random.choice(len(ids), gone, replace=False)] = False
        free = np.setdiff1d(np.arange(-1000, 5000), ids)
        more = np.sort(self.random.choice(free, new, replace=False)).astype("<i8")
        self.tables[name] = Content(
            config,
            np.concatenate((ids[keep], more)),
            np.concatenate((rows[keep], self.bits(new, rows.shape[1], config["dtype"]))),
            np.concatenate((states[keep], np.ones((new, states.shape[1]), "<f4"))),
        )

    def save(self, step: int, servers: int = 2) -> None:
        self.serial += 1
        write_cut(self.directory, step, self.tables, servers, seed=step, serial=self.serial)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """Return tables of each dtype, a dense parameter, and a cut of them, of step 0."""
    made = Model(tmp_path / "saved")
    made.table("user", 6, 500)
    made.table("item", 3, 40, "bfloat16")
    made.table("half", 2, 5, "float16")
    made.table("none", 2, 0)
    made.dense("fc.weight", 21)
    made.save(0)
    return made


def tensors(path: Path) -> dict[str, Any]:
    with open_file(path) as file:
        return {
            name: file.get_tensor(name) if file.entry(name).dtype.name != "bfloat16" else None
            for name in file
        }


@pytest.mark.parametrize("states", [False, True])
def test_a_chain_of_increments_has_the_bytes_of_exports(
    model: Model, tmp_path: Path, states: bool
) -> None:
    saved = model.directory
    full, rolling = tmp_path / "full", tmp_path / "rolling"
    ps.export(saved, rolling, states=states)
    tables = ps.load(rolling, train=states)
    for step in range(1, 6):
        model.change("user", 20, 30, 25)
        model.change("item", step % 2, 5, 0)
        if step == 2:
            model.table("new", 4, 30)
        if step == 3:
            model.dense("fc.weight", 21)
            del model.tables["half"]
        if step == 4:
            model.change("new", 0, 0, len(model.tables["new"].ids))
        model.save(step, servers=1 + step % 3)
        change = tmp_path / f"{step}"
        assert ps.export(saved, change, since=step - 1, states=states) == step
        # Of a file as of the cut, and the same each time.
        ps.export(saved, full, since=rolling, states=states)
        assert full.read_bytes() == change.read_bytes()
        assert ps.apply_increment(rolling, change, rolling) == step
        ps.export(saved, full, states=states)
        assert rolling.read_bytes() == full.read_bytes()
        assert tables.apply(change) == tables.step == step
        assert ("fc.weight" in open_file(change)) == (step == 3)
        wanted = ps.load(full, train=states)
        assert tables.keys() == wanted.keys()
        for name, table in wanted.items():
            one, two = table.state_dict(), tables[name].state_dict()
            assert one.keys() == two.keys()
            assert all(np.array_equal(one[key], two[key]) for key in ("ids", "rows", "states"))
            assert one["steps"] == two["steps"]
    # And in one step, forward and back.
    for since, step in ((0, 5), (5, 0)):
        ps.export(saved, rolling, step=since, states=states)
        ps.export(saved, change, step=step, since=since, states=states)
        ps.apply_increment(rolling, change, tmp_path / "new")
        ps.export(saved, full, step=step, states=states)
        assert (tmp_path / "new").read_bytes() == full.read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_an_increment_has_what_differs_in_its_bytes(model: Model, tmp_path: Path) -> None:
    config, ids, rows, states = model.tables["user"]
    rows = rows.copy()
    rows[3, 0], rows[4, 0], rows[5, 0] = np.nan, 0.0, 1.0
    model.tables["user"] = Content(config, ids, rows, states)
    model.save(1)
    rows, states = rows.copy(), states.copy()
    rows[4, 0], rows[5, 0] = -0.0, 2.0  # and the NaN stays
    states[9] += 1  # is in it with states only
    keep = np.arange(len(ids)) != 7
    model.tables["user"] = Content(config, ids[keep], rows[keep], states[keep])
    model.save(2, servers=3)
    for with_states, changed in ((False, [4, 5]), (True, [4, 5, 9])):
        ps.export(model.directory, tmp_path / "change", since=1, states=with_states)
        found = tensors(tmp_path / "change")
        assert found["user.ids"].tolist() == ids[changed].tolist()
        assert np.array_equal(found["user.rows"].view("u4"), rows[changed].view("u4"))
        assert found["user.removed"].tolist() == [ids[7]]
        assert ("user.states" in found) == with_states
        assert len(found["item.ids"]) == len(found["item.removed"]) == 0
        assert "fc.weight" not in found
    metadata = open_file(tmp_path / "change").metadata() or {}
    assert (metadata["step"], metadata["serial"]) == ("2", "3")
    assert metadata["versions"] == "[20,21,22]"
    base = json.loads(metadata["increment"])["base"]
    assert (base["step"], base["serial"]) == (1, 2)
    assert list(metadata) == sorted(metadata)


def test_some_tables(model: Model, tmp_path: Path) -> None:
    model.change("user", 3, 3, 3)
    model.change("item", 3, 3, 3)
    model.save(1)
    some = {"tables": ["user"]}
    ps.export(model.directory, tmp_path / "old", step=0, **some)
    ps.export(model.directory, tmp_path / "change", since=0, **some)
    ps.apply_increment(tmp_path / "old", tmp_path / "change", tmp_path / "old")
    ps.export(model.directory, tmp_path / "new", **some)
    assert (tmp_path / "old").read_bytes() == (tmp_path / "new").read_bytes()
    ps.export(model.directory, tmp_path / "all", since=0)
    tables = ps.load(model.directory, step=0, tables=["user"])
    tables.apply(tmp_path / "all")
    assert tables.keys() == {"user"}
    tables = ps.load(model.directory, step=0)
    with pytest.raises(errors.ArgumentError, match="no table 'half' of its base"):
        tables.apply(tmp_path / "change")
    assert (len(tables), tables.step) == (4, 0)


def test_the_base_may_be_named_by_versions_or_be_gone(model: Model, tmp_path: Path) -> None:
    model.change("user", 3, 3, 3)
    model.save(1)
    saved, to = model.directory, tmp_path / "change"
    ps.export(saved, tmp_path / "one", since=0)
    ps.export(saved, to, since=[0, 1])
    assert to.read_bytes() == (tmp_path / "one").read_bytes()
    there = re.escape("there are 1 with versions [10, 11], 0 with versions [0, 1]")
    for since, message in (
        (7, "no cut of step 7 in .*; " + there + r".*ps\.save\(keep=\)"),
        ([3, 4], r"no cut with versions \[3, 4\] in .*; " + there),
        ("missing", "since='missing': there is no such file"),
    ):
        with pytest.raises(errors.ArgumentError, match=message):
            ps.export(saved, to, since=since)
    for since in (True, 3.5, {0}):
        with pytest.raises(errors.DtypeError, match="is no step, no list of versions and no path"):
            ps.export(saved, to, since=since)  # type: ignore[arg-type]
    ps.export(saved, to, since=np.int64(0))
    assert to.read_bytes() == (tmp_path / "one").read_bytes()
    for format in ("numpy", "paddle"):
        with pytest.raises(errors.ArgumentError, match="since= writes format='safetensors'"):
            ps.export(saved, to, format, since=0)


def test_an_increment_says_how_far_it_is(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ps.export(model.directory, tmp_path / "one", since=0)
    ps.export(model.directory, tmp_path / "bar", since=0, progress=True)
    assert (tmp_path / "bar").read_bytes() == (tmp_path / "one").read_bytes()
    assert re.fullmatch(r"export: [\d.]+ K?i?B in 0.\d s, .*/s\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"dim": 5}, "dim is 6 in the base and 5 now"),
        ({"dtype": "float16"}, "dtype is 'float32' in the base and 'float16' now"),
        ({"seed": 8}, "seed is 7 in the base and 8 now"),
        ({"optimizer": {"name": "sgd"}}, "optimizer is 'adagrad' in the base and 'sgd' now"),
        ({"initializer": {"name": "zeros"}}, "initializer is .* in the base"),
    ],
)
def test_a_table_that_has_become_another_one(
    model: Model, tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    model.table("user", **{"dim": 6, "count": 50, **more})
    model.save(1)
    with pytest.raises(errors.ArgumentError, match="table 'user': " + message):
        ps.export(model.directory, tmp_path / "change", since=0)
    ps.export(model.directory, tmp_path / "with", step=0, states=True)
    with pytest.raises(errors.ArgumentError, match="floats of a state is 2 in the base and 0 now"):
        ps.export(model.directory, tmp_path / "change", since=tmp_path / "with", step=0)
    assert {path.name for path in tmp_path.iterdir()} == {"saved", "with"}


def test_another_base(model: Model, tmp_path: Path) -> None:
    saved = model.directory
    for step in (1, 2):
        model.change("user", 3, 3, 3)
        model.save(step)
        ps.export(saved, tmp_path / f"to{step}", since=step - 1)
    for step in (0, 1, 2):
        ps.export(saved, tmp_path / f"at{step}", step=step)
    other = Model(tmp_path / "other", seed=1)
    other.table("user", 6, 500)
    other.save(0)
    ps.export(other.directory, tmp_path / "other0")
    wrong = (
        ("at0", "to2", r"is from step 1 \(serial 2\) to step 2 \(serial 3\), and .* is at step 0"),
        ("at2", "to2", r"is at step 2 \(serial 3\) already"),
        ("at2", "to1", r"is at step 2 \(serial 3\): give it what comes between"),
        ("other0", "to1", "has another 'user.ids': it is of another job, or"),
        ("to1", "to1", "is an increment, and no full export"),
        ("at0", "at1", r"is no increment: ps\.export\(since=\.\.\.\) writes them"),
    )
    for base, change, message in wrong:
        with pytest.raises(errors.ArgumentError, match=message):
            ps.apply_increment(tmp_path / base, tmp_path / change, tmp_path / "new")
        if base != "to1":
            tables = ps.load(tmp_path / base)
            before = tables["user"].state_dict()
            with pytest.raises(errors.ArgumentError, match=message.replace("at .*", "at")):
                tables.apply(tmp_path / change)
            assert np.array_equal(before["rows"], tables["user"].state_dict()["rows"])
    with pytest.raises(errors.ArgumentError, match="is an increment, and no full export"):
        ps.load(tmp_path / "to1")
    assert not (tmp_path / "new").exists()
    # Rows that have changed since the export are another base, too.
    with open_file(tmp_path / "at0") as file:
        begin = (tmp_path / "at0").stat().st_size - 8
        assert file.keys()
    with open(tmp_path / "at0", "r+b") as opened:
        opened.seek(begin)
        opened.write(b"\1\2")
    for call in (
        lambda: ps.apply_increment(tmp_path / "at0", tmp_path / "to1", tmp_path / "new"),
        lambda: ps.export(saved, tmp_path / "new", since=tmp_path / "at0"),
        lambda: ps.load(tmp_path / "at0"),
    ):
        with pytest.raises(errors.ArgumentError, match=r"is damaged: the SHA-256 of 'half\.rows'"):
            call()
    assert not (tmp_path / "new").exists()


def test_an_export_of_an_earlier_version_is_a_base(model: Model, tmp_path: Path) -> None:
    """It says neither its serial number nor digests."""
    safetensors = pytest.importorskip("safetensors.numpy")
    saved = Model(tmp_path / "plain")
    saved.table("user", 6, 100)
    saved.save(0)
    ps.export(saved.directory, tmp_path / "old")
    with open_file(tmp_path / "old") as file:
        metadata = {key: text for key, text in (file.metadata() or {}).items() if "." in key}
        found = {name: file.get_tensor(name) for name in file}
    safetensors.save_file(found, tmp_path / "old", metadata | {"step": "0"})
    saved.change("user", 5, 5, 5)
    saved.save(1)
    ps.export(saved.directory, tmp_path / "change", since=tmp_path / "old")
    ps.apply_increment(tmp_path / "old", tmp_path / "change", tmp_path / "made")
    ps.export(saved.directory, tmp_path / "new")
    assert (tmp_path / "made").read_bytes() == (tmp_path / "new").read_bytes()
    found["user.rows"] = found["user.rows"] + 1
    safetensors.save_file(found, tmp_path / "old", metadata | {"step": "0"})
    with pytest.raises(errors.ArgumentError, match=r"has another 'user\.rows'"):
        ps.apply_increment(tmp_path / "old", tmp_path / "change", tmp_path / "made")


Change = Callable[[dict[str, Any], dict[str, str]], Any]


def tensor(name: str, value: Any) -> Change:
    return lambda found, metadata: found.__setitem__(name, np.array(value))


def said(*path: Any) -> Change:
    *way, last, value = path

    def change(found: dict[str, Any], metadata: dict[str, str]) -> None:
        whole = at = json.loads(metadata["increment"])
        for step in way:
            at = at[step]
        at[last] = value
        metadata["increment"] = json.dumps(whole)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (tensor("t.ids", [5, 3, 1]), "the ids of 't' do not ascend"),
        (tensor("t.ids", [1, 1, 5]), "the ids of 't' do not ascend"),
        (tensor("t.removed", [4, 2]), "the ids of 't.removed' do not ascend"),
        (tensor("t.removed", [2, 3]), "id 3 of 't' is changed and removed"),
        (tensor("t.removed", [[2, 4]]), "'t.removed' is of I64 and of shape"),
        (tensor("t.removed", np.array([2.0, 4.0])), "'t.removed' is of F64"),
        (tensor("t.removed", [9, 11]), "makes other bytes|becomes one of"),
        (tensor("t.ids", [1, 3]), "has no table 't' as export writes it"),
        (tensor("t.ids", np.array([1, 3, 5], "i4")), "has no table 't' as export writes it"),
        (tensor("t.rows", np.zeros((3, 2))), "has no table 't' as export writes it"),
        (tensor("t.rows", np.zeros((3, 3), "f4")), "dim is 2 in the base and 3 now"),
        (tensor("t.rows", np.full((3, 2), 2, "f4")), "makes other bytes"),
        (tensor("t.states", np.zeros((2, 2), "f4")), "has no table 't' as export writes it"),
        (tensor("x", [1]), "has tensors that its result does not have"),
        (said("format", 2), "is an increment of format 2"),
        (said("base", 3), "is no increment"),
        (said("base", "step", "0"), "is no increment"),
        (said("base", "sha256", {"t.ids": 3}), "of its base: its sha256 are no digests"),
        (said("base", "sha256", "t.ids", "0" * 64), "has another 't.ids'"),
        (said("result", "rows", {}), r"has changes of tables \['t'\], and says they are of \[\]"),
        (said("result", "rows", "t", -1), "is no increment"),
        (said("result", "rows", "t", 1 << 60), "makes 1152921504606846976 rows of the 4"),
        (said("result", "rows", "t", 4), "becomes one of 4 rows; it becomes one of"),
        (said("result", "sha256", "t.ids", "0" * 64), "makes other bytes"),
        (said("result", "sha256", "y", "0" * 64), "says that 'y' has not changed"),
        (lambda found, metadata: metadata.update(increment="{"), "its increment is no JSON"),
        (lambda found, metadata: metadata.update(increment="[" * 9999), "is no JSON"),
        (lambda found, metadata: metadata.update(sha256='{"t.ids":"' + "0" * 64 + '"}'), "damaged"),
        (lambda found, metadata: metadata.update(sha256="3"), "its sha256 are no digests by name"),
    ],
)
def test_increments_are_not_trusted(tmp_path: Path, change: Change, message: str) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    one, two = np.arange(1, 5), np.array([1, 3, 5])
    for step, ids in ((0, one), (1, two)):
        rows = np.full((len(ids), 2), step, "<f4")
        table = Content(config_of(2), ids.astype("<i8"), rows, rows)
        write_cut(tmp_path / "saved", step, {"t": table})
    ps.export(tmp_path / "saved", tmp_path / "base", step=0, states=True)
    ps.export(tmp_path / "saved", tmp_path / "change", since=0, states=True)
    with open_file(tmp_path / "change") as file:
        found, metadata = (
            {name: file.get_tensor(name) for name in file},
            dict(file.metadata() or {}),
        )
    del metadata["sha256"]  # else it says that the file is damaged
    change(found, metadata)
    safetensors.save_file(found, tmp_path / "change", metadata)
    with pytest.raises(errors.ArgumentError, match=message):
        ps.apply_increment(tmp_path / "base", tmp_path / "change", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob("*.partial"))


def test_each_truncation_and_many_flipped_bits_are_found(model: Model, tmp_path: Path) -> None:
    small = Model(tmp_path / "small")
    small.table("t", 2, 5)
    small.save(0)
    small.change("t", 1, 1, 1)
    small.save(1)
    ps.export(small.directory, tmp_path / "base", step=0)
    ps.export(small.directory, tmp_path / "change", since=0)
    whole = (tmp_path / "change").read_bytes()
    damaged = tmp_path / "damaged"
    for place in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        for data in (whole[:place], bytes(flipped)):
            damaged.write_bytes(data)
            try:
                ps.apply_increment(tmp_path / "base", damaged, tmp_path / "new")
            except errors.ArgumentError:
                continue
            # Only what the metadata says besides may differ: a number of the config, for one.
            assert len(data) == len(whole)
            ps.export(small.directory, tmp_path / "full")
            assert list(tensors(tmp_path / "new")) == list(tensors(tmp_path / "full"))
            for name, value in tensors(tmp_path / "full").items():
                assert np.array_equal(tensors(tmp_path / "new")[name], value)


def test_threads_pull_while_increments_come(tmp_path: Path) -> None:
    """A row is seen whole, and what one thread pulls while it holds the tables is of one step."""
    ids = np.arange(64, dtype="<i8")
    for step in range(7):
        keep = ids if step % 3 else ids[:60]  # so that some have ids that are removed
        rows = np.full((len(keep), 8), step + 1, "<f4")
        one = Content(config_of(8), keep, rows, np.zeros((len(keep), 0), "<f4"))
        write_cut(tmp_path / "saved", step, {"a": one, "b": one})
    ps.export(tmp_path / "saved", tmp_path / "full", step=0)
    for step in range(1, 7):
        ps.export(tmp_path / "saved", tmp_path / f"{step}", step=step, since=step - 1)
    tables = ps.load(tmp_path / "full")
    ended, wrong = threading.Event(), []

    def pull() -> None:
        while not ended.is_set():
            free = tables["a"].pull(ids[:60])
            with tables.held() as step:
                rows = np.concatenate([tables[name].pull(ids[:60]) for name in ("a", "b")])
            if (rows != step + 1).any() or (free != free[:, :1]).any():
                wrong.append((step, rows, free))

    threads = [threading.Thread(target=pull) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for step in range(1, 7):
            assert tables.apply(tmp_path / f"{step}") == step
            assert len(tables["a"]) == (64 if step % 3 else 60)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not wrong, wrong[0]


def test_rows_are_removed() -> None:
    table = ps.Table(3, ps.Adagrad(0.5), ps.Normal(), seed=4)
    ids = np.arange(100)
    first = table.pull(ids)
    table.push(ids, np.ones((100, 3), np.float32))
    after = table.pull(ids)
    assert table.remove(np.array([5, 7, 5, 1000], np.int32)) == 2
    assert table.remove(ids[5:8]) == 1
    assert table.ids().tolist() == [*range(5), *range(8, 100)]
    assert np.array_equal(table.pull(ids[:8], missing="zeros")[5:], np.zeros((3, 3)))
    assert np.array_equal(table.pull(ids[5:8]), first[5:8])
    table.push(ids[5:8], np.ones((3, 3), np.float32))  # its state has begun anew too
    assert np.array_equal(table.pull(ids), after)
    with pytest.raises(errors.DtypeError, match="remove: ids are of float32"):
        table.remove(np.ones(3, np.float32))


def test_a_thread_does_not_wait_for_itself(model: Model, tmp_path: Path) -> None:
    model.save(1)
    ps.export(model.directory, tmp_path / "change", since=0)
    tables = ps.load(model.directory, step=0)
    for call in (lambda: tables.apply(tmp_path / "change"), lambda: tables.held().__enter__()):
        with (
            tables.held(),
            pytest.raises(errors.ArgumentError, match=r"this thread is inside held\(\)"),
        ):
            call()
    assert tables.apply(tmp_path / "change") == 1


def test_an_increment_that_is_applied_in_part_is_the_last_one(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.change("user", 5, 5, 0)
    model.save(1)
    ps.export(model.directory, tmp_path / "change", since=0)
    tables = ps.load(model.directory, step=0)

    def full(*of: Any) -> None:
        raise errors.OutOfMemoryError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(ps.Table, "_write", full)
        with pytest.raises(errors.OutOfMemoryError):
            tables.apply(tmp_path / "change")
    assert tables.step is None
    with pytest.raises(errors.ArgumentError, match="only in part: load them anew"):
        tables.apply(tmp_path / "change")


def test_a_cut_that_is_removed_while_it_is_read(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.save(1)
    unnamed = EXPORT._unnamed

    def removing(folder: Path, cut: Any, *more: Any) -> Any:
        shutil.rmtree(cut.folder)
        return unnamed(folder, cut, *more)

    monkeypatch.setattr(EXPORT, "_unnamed", removing)
    with pytest.raises(errors.ArgumentError, match="cut-00000000 was removed while it was read"):
        ps.export(model.directory, tmp_path / "change", since=0)
    assert {path.name for path in tmp_path.iterdir()} == {"saved"}


def test_a_killed_process_leaves_the_old_file_or_the_new_one(model: Model, tmp_path: Path) -> None:
    model.change("user", 100, 100, 100)
    model.save(1)
    ps.export(model.directory, tmp_path / "full", step=0)
    ps.export(model.directory, tmp_path / "change", since=0)
    ps.apply_increment(tmp_path / "full", tmp_path / "change", tmp_path / "new")
    old, new = (tmp_path / "full").read_bytes(), (tmp_path / "new").read_bytes()
    program = (
        "import os, sys\n"
        "from paddlempi import ps\n"
        "from paddlempi.io import commit\n"
        "at, (full, change) = sys.argv[1], sys.argv[2:]\n"
        "if at != 'end':\n"
        "    setattr(commit.Save, at, lambda save: os._exit(9))\n"
        "ps.apply_increment(full, change, full)\n"
        "os._exit(9)\n"
    )
    for at, expected in (("commit", old), ("end", new)):
        done = subprocess.run(
            [sys.executable, "-c", program, at, tmp_path / "full", tmp_path / "change"],
            env=dict(os.environ),
            timeout=120,
        )
        assert done.returncode == 9
        assert (tmp_path / "full").read_bytes() == expected
    assert not list(tmp_path.glob("full.*"))  # the save that came to its end has removed it
