"""A job that goes back to an older cut, and saves: what it has left behind is no newest cut."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from paddlempi import errors, ps
from paddlempi.ps.cuts import newest
from ps_roles import BOTH, ONE_SERVER, begin, folder

__all__ = ["begin", "folder"]

pytestmark = pytest.mark.mpi(ranks=[2, 3])

Begin = Callable[..., bool]
IDS = np.arange(3)


@pytest.fixture
def table(begin: Begin, roles: str) -> ps.RemoteTable | None:
    """A table of one float a row; None on a rank that only serves."""
    return ps.RemoteTable("t", 1, ps.SGD(1.0)) if begin(roles, mode="async") else None


class Job:
    """Writes a value into the rows, and saves it."""

    def __init__(self, table: ps.RemoteTable, folder: Path, rank: int) -> None:
        self.table, self.folder, self.first = table, folder, rank == ps.trainers()[0]

    def save(self, step: int, value: float, keep: int = 2) -> None:
        if self.first:
            self.table.write(IDS, np.full((3, 1), value, np.float32))
        ps.save(self.folder, step, keep=keep, extra=bytes([int(value)]))

    def newest(self, step: int, value: float) -> None:
        """Check what a job finds that begins now, here and in a process without servers."""
        saved = ps.latest(self.folder)
        assert saved is not None and saved.step == step
        assert newest(self.folder) == step
        told = ps.restore(self.folder)
        assert (told["step"], told["skipped"], told["extra"]) == (step, [], bytes([int(value)]))
        assert (self.table.pull(IDS) == value).all()
        ps.barrier()

    def left(self) -> list[int]:
        ps.barrier()
        return sorted(int(path.parent.name[4:]) for path in self.folder.glob("cut-*/manifest.json"))


@pytest.mark.parametrize("roles", [ONE_SERVER, BOTH])
def test_new_cuts_supersede_those_that_were_left(
    table: ps.RemoteTable | None, folder: Path, rank: int
) -> None:
    if table is None:
        return
    job = Job(table, folder, rank)
    for step in (10, 20, 30):
        job.save(step, step, keep=0)
    ps.restore(folder / ".." / folder.name, 10)  # another name of it
    for step in (11, 12, 13):
        job.save(step, step)
    assert job.left() == [12, 13]
    job.newest(13, 13)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (ps.load(folder)["t"].pull(IDS) == 13).all()


@pytest.mark.parametrize("roles", [ONE_SERVER, BOTH])
def test_a_step_that_was_left_is_saved_again(
    table: ps.RemoteTable | None, folder: Path, rank: int
) -> None:
    if table is None:
        return
    job = Job(table, folder, rank)
    for step in (10, 20, 30):
        job.save(step, step, keep=0)
    with pytest.raises(errors.ArgumentError, match="cuts are not overwritten"):
        job.save(20, 1)
    ps.restore(folder, 30, tables=["t"])  # that is no way back
    ps.restore(folder, 10)
    job.save(20, 120, keep=0)
    job.newest(20, 120)
    with pytest.raises(errors.ArgumentError, match="cuts are not overwritten"):
        job.save(20, 1)
    # Who names what was left behind gets it, and goes on from there.
    assert ps.restore(folder, 30)["extra"] == bytes([30])
    assert job.left() == [10, 20, 30]
    job.save(31, 31, keep=0)
    job.newest(31, 31)
    job.save(40, 40, keep=2)
    assert job.left() == [31, 40]
