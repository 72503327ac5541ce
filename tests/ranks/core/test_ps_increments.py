"""Increments of cuts that servers have written, while trainers push."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from paddlempi import ps
from paddlempi.ps.cuts import open_cut
from ps_roles import BOTH, ONE_SERVER, ONE_TRAINER, begin, folder

__all__ = ["begin", "folder"]

pytestmark = pytest.mark.mpi(ranks=[2, 3])

Begin = Callable[..., bool]


def export(folder: Path, rank: int, steps: tuple[int, ...]) -> None:
    """Compare increments in a chain with full exports."""
    full, rolling, change = (folder / f"{name}-{rank}" for name in ("full", "rolling", "change"))
    ps.export(folder, rolling, step=steps[0], states=True)
    tables = ps.load(rolling)
    for before, step in pairwise(steps):
        ps.export(folder, change, step=step, since=before, states=True)
        ps.apply_increment(rolling, change, rolling)
        ps.export(folder, full, step=step, states=True)
        assert rolling.read_bytes() == full.read_bytes()
        tables.apply(change)
        wanted = ps.load(folder, step=step)
        for name in wanted:
            ids = wanted[name].ids()
            assert np.array_equal(tables[name].ids(), ids)
            assert np.array_equal(tables[name].pull(ids), wanted[name].pull(ids))


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("roles", [ONE_SERVER, ONE_TRAINER, BOTH])
def test_increments_of_a_training(
    begin: Begin, roles: str, mode: str, folder: Path, rank: int
) -> None:
    if not begin(roles, mode=mode):
        return
    table = ps.RemoteTable("t", 3, ps.Adagrad(0.1), ps.Normal(), dtype="bfloat16")
    random = np.random.default_rng(rank)
    for step in range(1, 4):
        for _ in range(3):
            ids = np.unique(random.integers(200, size=30))
            table.push(ids, random.normal(size=(len(ids), 3)).astype(np.float32))
        ps.save(folder, step, keep=0)
    if rank == ps.trainers()[0]:
        export(folder, rank, (1, 2, 3))
    ps.restore(folder, 1)  # go back: the cuts of steps 2 and 3 are left behind
    for _ in range(3):
        table.push(np.arange(5), np.ones((5, 3), np.float32))
    ps.save(folder, 2, keep=0)
    if rank == ps.trainers()[0]:
        export(folder, rank, (1, 2))
        export(folder, rank, (3, 2))
    ps.barrier()


@pytest.mark.parametrize("roles", [BOTH])
def test_a_cut_has_the_version_of_each_server(
    begin: Begin, roles: str, folder: Path, rank: int
) -> None:
    if not begin(roles, mode="async"):
        return
    table = ps.RemoteTable("t", 2, ps.SGD(1.0))
    ids = np.arange(rank, 50)  # so that all servers have some
    ps.save(folder, 1, keep=0)
    for _ in range(4):
        table.push(ids, np.ones((len(ids), 2), np.float32))
    ps.barrier()
    ps.save(folder, 2, keep=0)
    servers = len(ps.pservers())
    first, second = (open_cut(folder, step).versions for step in (1, 2))
    assert first == [0] * servers
    assert second == [4 * len(ps.trainers())] * servers
    if rank == 0:
        ps.export(folder, folder / "a", since=1)
        ps.export(folder, folder / "b", since=first)
        assert (folder / "a").read_bytes() == (folder / "b").read_bytes()
    ps.barrier()
