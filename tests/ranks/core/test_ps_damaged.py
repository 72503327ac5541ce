"""Cuts that are damaged: what is restored, what is said, and what ps.save removes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from paddlempi import errors, ps
from ps_roles import begin, folder, layouts

__all__ = ["begin", "folder"]

pytestmark = pytest.mark.mpi(ranks=[2])

DIM, IDS = 3, np.arange(200)
Begin = Callable[..., bool]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "roles" in metafunc.fixturenames:
        metafunc.parametrize("roles", layouts(metafunc.config))


def table_of() -> ps.RemoteTable:
    return ps.RemoteTable("t", DIM, ps.SGD(1.0))


def step_of(table: ps.RemoteTable) -> float:
    """Push once; the value of all rows is minus the number of steps then."""
    table.push(IDS, np.full((len(IDS), DIM), 1 / len(ps.trainers()), np.float32))
    return float(table.pull(IDS)[0, 0])


def damage(rank: int, folder: Path, step: int, how: str) -> None:
    """Let the first trainer change a part of a cut."""
    if rank == ps.trainers()[0]:
        parts = (folder / f"cut-{step:08d}").glob("part-*")
        part = max(parts, key=lambda path: path.stat().st_size)
        data = bytearray(part.read_bytes())
        if how == "truncated":
            del data[-1]
        else:
            data[len(data) // 2] ^= 16
        part.write_bytes(data)
    ps.barrier("damaged")


def cuts(folder: Path) -> list[int]:
    return sorted(int(path.parent.name[4:]) for path in folder.glob("cut-*/manifest.json"))


@pytest.mark.parametrize("how", ["truncated", "flipped"])
def test_an_older_cut_is_taken_and_the_newer_is_named(
    begin: Begin, rank: int, roles: str, folder: Path, how: str
) -> None:
    if not begin(roles):
        return
    table = table_of()
    for step in range(1, 4):
        assert step_of(table) == -step
        ps.save(folder, step, keep=0)
    damage(rank, folder, 3, how)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        told = ps.restore(folder)
    assert told["step"] == 2 and (table.pull(IDS) == -2).all()
    assert [one["step"] for one in told["skipped"]] == [3]
    assert "cut-00000003" in told["skipped"][0]["why"], told
    assert len(heard) == 1 and told["skipped"][0]["why"] in str(heard[0].message)
    assert heard[0].filename == __file__
    with pytest.warns(UserWarning, match="cut-00000003"):
        assert (ps.load(folder)["t"].pull(IDS) == -2).all()

    step_of(table)
    for call in (lambda: ps.restore(folder, 3), lambda: ps.load(folder, step=3)):
        with pytest.raises(errors.ArgumentError, match="cut-00000003"):
            call()
    assert (table.pull(IDS) == -3).all(), "no row has changed"
    for step in (1, 2):
        damage(rank, folder, step, how)
    with pytest.raises(errors.ArgumentError, match=r"of 3 complete cuts .* none is whole"):
        ps.restore(folder)
    assert (table.pull(IDS) == -3).all(), "no row has changed"
    ps.barrier("read")


def test_nothing_is_skipped(begin: Begin, roles: str, folder: Path) -> None:
    if not begin(roles):
        return
    table = table_of()
    step_of(table)
    ps.save(folder, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ps.restore(folder)["skipped"] == []
        assert ps.restore(folder, 1)["skipped"] == []
        ps.load(folder)


def test_a_damaged_cut_does_not_count(begin: Begin, rank: int, roles: str, folder: Path) -> None:
    """ps.save keeps as many cuts that are whole as it should."""
    if not begin(roles):
        return
    table = table_of()
    for step in range(1, 5):
        step_of(table)
        if step == 3:
            damage(rank, folder, 2, "flipped")
        ps.save(folder, step, keep=2)
        ps.barrier("saved")
        assert cuts(folder) == {1: [1], 2: [1, 2], 3: [1, 2, 3], 4: [3, 4]}[step]
        ps.barrier("looked")
    assert ps.restore(folder)["step"] == 4
    damage(rank, folder, 4, "flipped")
    with pytest.warns(UserWarning, match="cut-00000004"):
        assert ps.restore(folder)["step"] == 3


def test_learning_rates_are_restored(begin: Begin, rank: int, roles: str, folder: Path) -> None:
    if begin(roles):
        first = rank == ps.trainers()[0]

        def set_rate(rate: float) -> None:
            if first:
                ps.set_learning_rate("t", rate)
            ps.barrier("set")

        table = table_of()
        assert step_of(table) == -1
        ps.save(folder, 1)
        set_rate(0.5)
        assert step_of(table) == -1.5
        ps.save(folder, 2)
        set_rate(0.25)
        ps.restore(folder, 2)
        assert step_of(table) == -2, "the rate of the cut"
        ps.restore(folder, 1)
        assert step_of(table) == -2, "no rate was set"
    ps.shutdown()
    if begin(roles):
        table = table_of()
        ps.restore(folder)
        assert step_of(table) == -2
        trained = ps.load(folder, train=True)["t"]
        trained.push(IDS, np.ones((len(IDS), DIM), np.float32))
        assert (trained.pull(IDS) == -2).all()
