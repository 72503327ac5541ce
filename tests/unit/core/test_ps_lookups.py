"""Lookups: pulls that make no rows, over a fake of one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paddlempi import errors, ps
from paddlempi._ops import TableCall
from ps_fake import PsCore, ps_core

__all__ = ["ps_core"]

DIM = 5
SOME, ALL = np.array([7, -3, 7]), np.array([7, 2**62, -3, 0], np.int64)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("initializer", [ps.Zeros(), ps.Uniform(-1, 1), ps.Normal(0.5, 2)])
def test_a_table_of_this_process(initializer: Any, dtype: str) -> None:
    table = ps.Table(DIM, ps.Adam(0.5), initializer, dtype=dtype, seed=3)
    table.push(SOME, np.ones((3, DIM), np.float32))
    known = table.pull(SOME)
    zeros = table.pull(ALL, missing="zeros")
    assert (zeros[[0, 2]] == known[:2]).all() and (zeros[[1, 3]] == 0).all()
    looked = table.pull(ALL, missing="initial")
    out = np.full((4, DIM), 9, np.float32)
    assert table.pull(ALL, out, missing="initial") is out
    assert len(table) == 2 and table.ids().tolist() == [-3, 7]
    size = table.bytes()
    made = table.pull(ALL)  # the bits of a row that is made later
    assert (looked.view(np.uint32) == made.view(np.uint32)).all()
    assert (out.view(np.uint32) == made.view(np.uint32)).all()
    assert len(table) == 4 and table.bytes() >= size


def test_a_table_that_is_full_or_bounded() -> None:
    table = ps.Table(64, initializer="normal", num_ids=100_000, memory_limit=1 << 20)
    ids = np.arange(100_000)
    with pytest.raises(errors.OutOfMemoryError, match="memory_limit"):
        table.pull(ids)
    before = table.info()
    rows = table.pull(ids, missing="initial")
    assert table.info() == before
    assert (rows[-5:] == ps.Table(64, initializer="normal").pull(ids[-5:])).all()
    for missing in ("initial", "zeros"):
        with pytest.raises(errors.ArgumentError, match=r"ids\[0\] is 100000; .*num_ids"):
            table.pull(np.array([100_000]), missing=missing)


@pytest.mark.parametrize("missing", ["none", "Zeros", 0, False, ["zeros"]])
def test_another_word(ps_core: PsCore, missing: Any) -> None:
    ps.init()
    table = ps.RemoteTable("t", DIM)
    for call in (
        lambda: ps.Table(DIM).pull(SOME, missing=missing),
        lambda: table.pull(SOME, missing=missing),
        lambda: table.prefetch(SOME, missing=missing),
        lambda: ps.pull([(table, SOME)], missing=missing),
    ):
        with pytest.raises(errors.ArgumentError, match=r"missing=.* is none of 'initial', 'zeros'"):
            call()


def test_calls_of_tables_on_servers(ps_core: PsCore) -> None:
    ps.init()
    table = ps.RemoteTable("t", DIM, initializer="uniform", seed=4)
    other = ps.RemoteTable("u", DIM, initializer="uniform", seed=4)
    wanted = ps.Table(DIM, initializer="uniform", seed=4).pull(ALL)
    assert (table.pull(ALL, missing="initial") == wanted).all()
    assert (table.prefetch(ALL, missing="initial").wait() == wanted).all()
    assert (table.prefetch(ALL, missing="zeros").wait() == 0).all()
    rows = ps.pull([(table, ALL), (other, SOME)], missing="zeros")
    assert (rows[0] == 0).all() and (rows[1] == 0).all()
    info = ps_core._real.control("table_info", f'{{"table": {table._number}}}')
    assert '"rows":0' in info.replace(" ", "")
    assert (ps.pull([(table, ALL)])[0] == wanted).all()
    assert ps_core.requests == [
        (TableCall.LOOK_ZEROS, ["t", "u"]),
        (TableCall.PULL, ["t"]),
    ]
