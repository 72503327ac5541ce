"""The file of ``bench --calibrate``: what is written is read, and nothing that is damaged."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from paddlempi.errors import ArgumentError
from paddlempi.planner import machine
from paddlempi.planner.machine import Collective, Compute, Machine, Range, Step

R = Range(2.0, 1.0, 4.0)
MACHINE = Machine(
    made="2026-12-01T00:00:00+00:00",
    version="0.2.0",
    processor="",
    cpus=4,
    memory=1 << 34,
    mpi="Open MPI v5.0.11",
    nodes=2,
    ranks=2,
    threads=1,
    rss=1 << 29,
    alone=Compute(Range(8.0, 7.0, 9.0), Range(6.0, 5.0, 7.0), Range(3.0, 2.0, 4.0)),
    together=Compute(Range(4.0, 3.0, 5.0), Range(6.0, 5.5, 8.0), Range(3.0, 2.0, 4.0)),
    collectives=(Collective("all_reduce", 2, 1, 8, R, R, "inline"),),
    steps=(Step("ddp", "mlp-16M", 2, 2, 2, 16 << 20, R, R, R, R),),
    tuned=({"operation": "all_reduce", "from": 16384},),
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = str(tmp_path / "machine.json")
    MACHINE.write(file)
    assert machine.read(file) == MACHINE
    assert os.listdir(tmp_path) == ["machine.json"]  # and no part of it


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "machine.json").mkdir()
    with pytest.raises(OSError):
        MACHINE.write(str(tmp_path / "machine.json"))
    assert os.listdir(tmp_path) == ["machine.json"]


def test_ranges() -> None:
    assert R.times(3) == (6, 3, 12)
    assert R.plus(Range(1, 0, 1)) == (3, 1, 5)


def _changed(place: str, value: Any) -> bytes:
    """Return the file with another value at a place, as ``collectives.0.bytes``."""
    whole = json.loads(json.dumps({"format": machine.FORMAT, **dataclasses.asdict(MACHINE)}))
    *path, last = [int(key) if key.isdecimal() else key for key in place.split(".")]
    at = whole
    for key in path:
        at = at[key]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return json.dumps(whole).encode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", "Expecting value"),
        (b'{"format": 1, "made":', "Expecting value"),
        (b"{\xff", "can't decode byte"),
        (b"[1]", "it is no file of bench --calibrate"),
        (b'{"rows": []}', "it is no file of bench --calibrate"),
        (_changed("format", 2), "its format is 2, not 1: calibrate again"),
        (_changed("cpus", None), "cpus is missing"),
        (_changed("tuned", None), "tuned is missing"),
        (_changed("together.flops", None), "together.flops is missing"),
        (_changed("steps.0.alone", None), "steps[0].alone is missing"),
        (_changed("mpi", 3), "mpi is '3', which is no str"),
        (_changed("cpus", True), "cpus is 'True', which is no int"),
        (_changed("cpus", 1.5), "cpus is '1.5', which is no int"),
        (_changed("cpus", -1), "cpus is '-1', which is no int"),
        (_changed("cpus", 1 << 63), "which is no int"),
        (_changed("alone.flops", [0, 0, 1]), "alone.flops is 0: a rank that computes nothing"),
        (_changed("alone", [1]), "alone is no object"),
        (_changed("collectives", {}), "collectives is no list"),
        (_changed("collectives.0", 7), "collectives[0] is no object"),
        (_changed("tuned", "x"), "tuned is no list"),
        (_changed("collectives.0.bytes", "8"), "collectives[0].bytes is '8', which is no int"),
        (_changed("collectives.0.seconds", 1.0), "collectives[0].seconds is no list"),
        (_changed("collectives.0.seconds", [1.0, 1.0]), "seconds is '[1.0, 1.0]', which is no Ran"),
        (_changed("steps.0.step", [1.0, 1.0, "2"]), "steps[0].step is"),
        (_changed("steps.0.step", [1.0, 1.0, False]), "steps[0].step is"),
        (_changed("steps.0.step", [1.0, 1.0, math.nan]), "steps[0].step is"),
        (_changed("steps.0.step", [1.0, 1.0, math.inf]), "steps[0].step is"),
        (_changed("steps.0.step", [10**400] * 3), "steps[0].step is"),
        (_changed("steps.0.step", [1.0, -1.0, 2.0]), "steps[0].step is"),
        (_changed("steps.0.step", [1.0, 1.5, 2.0]), "steps[0].step is"),
        (_changed("steps.0.step", [3.0, 1.0, 2.0]), "steps[0].step is"),
    ],
)
def test_what_is_damaged_is_named(text: bytes, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    file.write_bytes(text)
    with pytest.raises(ArgumentError) as caught:
        machine.read(str(file))
    assert str(caught.value).startswith(f"machine: {file} cannot be read: ")
    assert expected in str(caught.value)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"No such file.*bench --calibrate writes it"):
        machine.read(str(tmp_path / "machine.json"))
    with pytest.raises(ArgumentError, match="Is a directory"):
        machine.read(str(tmp_path))


def test_a_file_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "machine.json"
    MACHINE.write(str(file))
    monkeypatch.setattr(machine, "_MOST_BYTES", file.stat().st_size - 1)
    with pytest.raises(ArgumentError, match="has more than"):
        machine.read(str(file))
    monkeypatch.setattr(machine, "_MOST_BYTES", file.stat().st_size)
    assert machine.read(str(file)) == MACHINE


def test_lists_that_are_deep(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    file.write_text("[" * 100_000)
    with pytest.raises(ArgumentError, match="cannot be read"):
        machine.read(str(file))
