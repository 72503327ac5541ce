"""Timelines are read from the files of ``trace record`` and from dumps; what is wrong is named."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rings_made
from paddlempi import trace
from paddlempi.trace import parts
from paddlempi.trace.model import ASYNC, MESSAGE
from parts_made import BEGAN, column, kind, part, rank, write

TWO = (
    {"number": 1, "seq": 1, "count": 8, "submitted": 100, "begun": 1, "ended": 51},
    {"kind": 1, "number": 2, "count": 3, "peer": 1, "peer2": -1, "tag": -5, "submitted": 300},
)
KINDS = (kind(), kind("isend", flags=ASYNC | MESSAGE, reduce_op=None, outcome=None))


def test_what_a_part_says(tmp_path: Path) -> None:
    path = write(tmp_path / "run.json", part(rank(0, 2, TWO, KINDS), rank(1, 2, TWO[:1], lost=3)))
    found = trace.load(path)
    assert list(found.ranks) == [0, 1]
    assert (found.ranks[1].lost, found.ranks[1].host, found.ranks[1].boot) == (3, "here", "b")
    assert found.groups == (trace.Group("07", (0, 1)),)
    assert found.warnings == ["rank 1: 3 operations were not recorded"]
    first, other, message = found.operations
    assert (first["rank"], other["rank"], message["rank"]) == (0, 1, 0)
    names = found.names
    assert names.operations[first["name"]] == "all_reduce" != names.operations[message["name"]]
    assert names.outcomes[first["outcome"]] == "ok" and message["outcome"] == -1
    assert (first["count"], first["nbytes"], first["root"], first["seq"]) == (8, 32, -1, 1)
    times = [int(first[at]) for at in ("submitted", "begun", "arrived", "waited", "ended")]
    assert times == [BEGAN + 100, BEGAN + 100, 0, 0, BEGAN + 150]
    assert message["flags"] == ASYNC | MESSAGE and message["seq"] == -1
    assert message["peers"].tolist() == [1, -1] and message["tags"].tolist() == [-5, 0]
    assert message["ended"] == 0


def test_parts_of_several_hosts(tmp_path: Path) -> None:
    one = write(tmp_path / "a.json", part(rank(0, 3, TWO[:1])))
    write(tmp_path / "b.json", part(rank(2, 3, TWO[:1]), host="there", boot="c"))
    (tmp_path / "notes.json").write_text("{}")  # of somebody else
    for found in (trace.load(one, tmp_path / "b.json"), trace.load(tmp_path)):
        assert {r.rank: r.host for r in found.ranks.values()} == {0: "here", 2: "there"}
        assert found.warnings == ["no part has rank 1 of 3"]


def test_ranks_of_two_jobs(tmp_path: Path) -> None:
    many = rank(0, 1, [*TWO[:1]] * 2)
    write(tmp_path / "a.json", part(many, rank(0, 1, TWO[:1], job="bb")))
    found = trace.load(tmp_path)
    assert len(found.operations) == 2
    assert found.warnings == [
        "ranks 0 are of another job, bb, and left out; job 00000000000000aa is shown"
    ]
    assert len(trace.load(tmp_path, job="bb").operations) == 1
    with pytest.raises(trace.LoadError, match="job='cc': there are only jobs 00000000000000aa, bb"):
        trace.load(tmp_path, job="cc")


def test_a_rank_that_is_there_twice(tmp_path: Path) -> None:
    write(tmp_path / "a.json", part(rank(0, 1, TWO[:1])))
    write(tmp_path / "b.json", part(rank(0, 1, TWO, KINDS), {**rank(0, 1, []), "size": 5}))
    found = trace.load(tmp_path)
    assert len(found.operations) == 2
    assert found.warnings == [
        "rank 0 is there twice; the longer part is shown",
        "rank 0 of a job of 5 ranks is left out: another file is of 1",
    ]


def test_a_column_is_what_was_written() -> None:
    values = [5, -1, 1 << 62, -(1 << 62), 0]
    for steps in (False, True):
        assert parts._read_column(column(values, steps=steps), 5).tolist() == values
    plain = {**column([], width=2), "signed": False}
    assert parts._read_column(plain, 0).tolist() == []
    small = {**column([3, 4, 5], width=1), "signed": False}
    assert parts._read_column(small, 3).tolist() == [6, 8, 10]


def changed(**other: Any) -> dict[str, Any]:
    """Return a part whose only rank has something else."""
    return part({**rank(0, 2, TWO[:1]), **other})


def with_column(**other: Any) -> dict[str, Any]:
    columns = rank(0, 2, TWO[:1])["columns"]
    return changed(columns={**columns, "seq": {**columns["seq"], **other}})


WRONG = {
    "another format": (part(format="x"), "is no part of a timeline"),
    "a newer version": (part(version=2), "its version is 2, not 1"),
    "no ranks": ({"ranks": 5, **part()} | {"ranks": 5}, "ranks is '5', which is no list"),
    "a rank beyond the world": (changed(rank=2), "rank is 2, which is not from 0 to 1"),
    "a world of billions": (changed(size=1 << 40), "size is 1099511627776"),
    "a member beyond the world": (
        changed(groups=[{"id": 1, "key": "", "rank": 0, "ranks": [0, 9]}]),
        "names rank 9 of 2",
    ),
    "billions of operations": (changed(count=1 << 40), "count is 1099511627776"),
    "more operations than there are": (changed(count=9), "column has 8 bytes instead of 72"),
    "a bomb": (
        with_column(data=column([0] * 1_000_000)["data"]),
        "a column has more than 9 bytes instead of 8",
    ),
    "a column that is cut": (with_column(data="eJw="), "a column"),
    "a column that is no text": (with_column(data=7), "data is '7', which is no str"),
    "a column of another width": (with_column(width=3), "numbers of 3 bytes"),
    "a kind that is not there": (changed(kinds=[]), "an operation of rank 0 has kind 0"),
    "a kind without a name": (changed(kinds=[{"group": 1}]), "operation is missing"),
    "flags that there are not": (changed(kinds=[kind(flags=64)]), "flags is 64"),
    "no columns": (changed(columns={}), "kind is missing"),
}


@pytest.mark.parametrize("name", WRONG)
def test_damaged_parts_are_named(name: str, tmp_path: Path) -> None:
    made, told = WRONG[name]
    path = write(tmp_path / "a.json", made)
    with pytest.raises(trace.LoadError, match=told) as raised:
        trace.load(path)
    assert str(path) in str(raised.value)
    good = write(tmp_path / "b.json", part(rank(1, 2, TWO[:1])))
    found = trace.load(path, good)  # the rest is there
    assert list(found.ranks) == [1] and any(str(path) in text for text in found.warnings)


def test_a_part_that_is_cut(tmp_path: Path) -> None:
    whole = json.dumps(part(rank(0, 2, TWO, KINDS)))
    path = tmp_path / "a.json"
    for length in range(0, len(whole), 97):
        path.write_text(whole[:length])
        with pytest.raises(trace.LoadError, match=r"a\.json"):
            trace.load(path)


def test_random_damage_is_an_error_or_a_timeline(tmp_path: Path) -> None:
    whole = bytearray(json.dumps(part(rank(0, 2, TWO, KINDS), rank(1, 2, TWO[:1]))).encode())
    random = np.random.default_rng(5)
    path = tmp_path / "a.json"
    for _ in range(300):
        text = bytearray(whole)
        for at in random.integers(0, len(text), random.integers(1, 4)):
            text[at] = random.integers(32, 127)
        path.write_bytes(text)
        try:
            found = trace.load(path)
        except trace.LoadError:
            continue
        assert len(found.operations) <= 3
        assert set(found.operations["rank"].tolist()) <= set(found.ranks)


def test_problems_and_notes_are_warnings(tmp_path: Path) -> None:
    told = part(rank(0, 1, []), problems=[{"pid": 7, "error": "of another user"}], notes=["less"])
    path = write(tmp_path / "a.json", told)
    assert trace.load(path).warnings == [f"{path}: less", f"{path}: of another user"]


def test_dumps_of_a_dead_job(tmp_path: Path) -> None:
    made = [
        rings_made.operation(1, 1.0, 2.0, count=8, algorithm="ring"),
        rings_made.message(3.0, "send", 1),
    ]
    other = rings_made.operation(1, 1.5, 2.0, waited=1.75, **{"async": True})
    first = rings_made.ring(0, 3, made, state="ended")
    rings_made.write(tmp_path, first, rings_made.ring(1, 3, [other]))
    (tmp_path / "rank-2.json").write_text('{"format": "paddl')
    found = trace.load(tmp_path)
    assert list(found.ranks) == [0, 1]
    assert found.ranks[0].ended == found.ranks[0].taken and not found.ranks[1].ended
    assert found.operations["nbytes"].tolist() == [32, 32, 32]
    second = found.operations[1]
    assert second["waited"] == rings_made.BEGAN + 1_750_000_000 and second["flags"] == ASYNC
    assert found.operations["peers"].tolist() == [[0, 0], [0, 0], [1, -1]]
    assert found.groups[found.operations[2]["group"]].ranks == (0, 1, 2)
    assert [text for text in found.warnings if "rank-2.json" in text]
    assert "no part has rank 2 of 3" in found.warnings


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(trace.LoadError, match="has neither a file of trace record nor a trace"):
        trace.load(tmp_path)
    with pytest.raises(trace.LoadError, match="No such file"):
        trace.load(tmp_path / "none.json")
    with pytest.raises(trace.LoadError, match="no path"):
        trace.load()


def test_a_frame_of_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its columns are those of the operations, with words in place of their numbers."""
    found = trace.load(write(tmp_path / "a.json", part(rank(0, 2, TWO, KINDS))))
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    frame = found.frame()
    assert frame["name"].tolist() == ["all_reduce", "isend"]
    assert frame["outcome"].tolist() == ["ok", None]
    assert frame["peer"].tolist() == [0, 1] and frame["peer2"].tolist() == [0, -1]
    assert frame["ended"].tolist() == [BEGAN + 150, 0]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        found.frame()
