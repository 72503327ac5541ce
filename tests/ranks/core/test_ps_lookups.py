"""Lookups with real servers, in each mode: rows without a row made, cuts and tables as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paddlempi import errors, ps
from ps_roles import BOTH, ONE_SERVER, begin, folder, layouts

__all__ = ["begin", "folder"]

pytestmark = pytest.mark.mpi(ranks=[2, 3])

DIM = 4
SEEN, ALL = np.arange(6), np.arange(-30, 30)
Begin = Callable[..., bool]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "roles" in metafunc.fixturenames:
        metafunc.parametrize("roles", layouts(metafunc.config))


def on_servers(name: str) -> dict[str, int]:
    """The rows, bytes and backups of a table on all servers."""
    found = [one for at in ps.stats()["servers"] for one in at["tables"] if one["name"] == name]
    return {key: sum(one[key] for one in found) for key in ("rows", "bytes", "backups")}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_looked_up(begin: Begin, rank: int, roles: str, dtype: str) -> None:
    """Of several tables at once, too; the row that a push makes later begins with these bits."""
    if not begin(roles):
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(0.0), ps.Normal(), dtype=dtype, seed=2)
    other = ps.RemoteTable("u", 3, initializer="uniform", num_ids=100)
    wanted = ps.Table(DIM, ps.SGD(0.0), ps.Normal(), dtype=dtype, seed=2).pull(ALL)
    assert (table.pull(ALL, missing="initial") == wanted).all()
    rows = ps.pull([(other, SEEN), (table, ALL)], missing="zeros")
    assert (rows[0] == 0).all() and (rows[1] == 0).all()
    assert len(table) == len(other) == 0
    with pytest.raises(errors.ArgumentError, match=r"lookup: id 100 is not .*num_ids"):
        other.pull(np.array([100]), missing="zeros")
    ps.barrier()
    table.push(SEEN, np.ones((len(SEEN), DIM), np.float32))
    ps.barrier()
    assert len(table) == len(SEEN)
    zeros = table.pull(ALL, missing="zeros")
    assert (zeros[30:36] == wanted[30:36]).all()
    assert (zeros[:30] == 0).all() and (zeros[36:] == 0).all()
    looked = table.pull(ALL, missing="initial")
    ps.barrier()
    assert len(table) == len(SEEN)
    ps.barrier()
    assert (table.pull(ALL).view(np.uint32) == looked.view(np.uint32)).all()
    assert len(table) == len(ALL)


@pytest.mark.parametrize(
    ("mode", "more"),
    [("async", {}), ("half_async", {}), ("ssp", {"staleness": 0}), ("geo", {}), ("dc_asgd", {})],
)
def test_in_other_modes(begin: Begin, rank: int, mode: str, more: dict[str, Any]) -> None:
    """Nothing is made, no backup is kept, and who is ahead does not wait for the others."""
    if not begin(BOTH, mode=mode, **more):
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0), ps.Normal(), seed=2)
    fresh = ps.Table(DIM, ps.SGD(1.0), ps.Normal(), seed=2)
    ps.barrier()
    first = rank == ps.trainers()[0]
    if first:
        table.push(SEEN, np.ones((len(SEEN), DIM), np.float32))
        if mode == "half_async":
            ps.flush()
        rows = table.pull(ALL, missing="initial")  # in ssp mode the others have pushed nothing
        wanted = fresh.pull(ALL)
        wanted[30:36] -= 1
        assert (rows == wanted).all()
        told = on_servers("t")
        assert told["rows"] == len(SEEN) and told["backups"] == 0
    else:
        table.pull(ALL + 1000, missing="zeros")
    ps.barrier()
    assert len(table) == len(SEEN)
    ps.barrier()


def test_a_full_table_and_its_cut(begin: Begin, folder: Path) -> None:
    """A table at its limit answers, and a cut after an evaluation is as large as one before it."""
    if not begin(ONE_SERVER):
        return
    table = ps.RemoteTable("t", 64, ps.SGD(1.0), ps.Normal(), memory_limit=1 << 20)
    many = np.arange(50_000)
    with pytest.raises(errors.OutOfMemoryError, match="memory_limit"):
        table.pull(many)
    ps.barrier()
    before = on_servers("t")
    assert before["rows"] > 0

    def saved(step: int) -> int:
        ps.save(folder, step, keep=1)
        return sum(part.stat().st_size for part in folder.rglob("part-*"))

    size = saved(1)
    assert size > 256 * before["rows"]
    for missing in ("initial", "zeros"):
        rows = table.pull(many, missing=missing)
    assert (rows[-1] == 0).all()
    ps.barrier()
    assert on_servers("t") == before
    assert saved(2) == size
    assert ps.restore(folder)["rows"] == before["rows"]
