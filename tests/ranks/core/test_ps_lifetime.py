"""Ids that come and go on servers: what they hold is what tables of one process hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paddlempi import errors, ps
from paddlempi.ps.cuts import open_cut
from ps_roles import BOTH, ONE_SERVER, ONE_TRAINER, begin, folder, layouts

__all__ = ["begin", "folder"]

pytestmark = pytest.mark.mpi(ranks=[2, 3])

Begin = Callable[..., bool]
DIM, IDS = 3, 120
ALL = np.arange(IDS)
KINDS = {
    "all": {"admit_after": 2, "expire_after": 9, "max_rows": 41},
    "admission": {"admit_after": 3},
    "expiry": {"expire_after": 4},
    "cap": {"max_rows": 17},
}
COUNTED = ("dropped", "expired", "evicted")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "roles" in metafunc.fixturenames:
        metafunc.parametrize("roles", layouts(metafunc.config))


def owners(ids: np.ndarray, servers: int) -> np.ndarray:
    """The servers of ids: route.Owner of the core."""
    found = []
    for number in ids.tolist():
        h = number & (1 << 64) - 1
        h = ((h ^ h >> 30) * 0xBF58476D1CE4E5B9) & (1 << 64) - 1
        h = ((h ^ h >> 27) * 0x94D049BB133111EB) & (1 << 64) - 1
        found.append((h ^ h >> 31) * servers >> 64)
    return np.array(found)


def batch(step: int, trainer: int) -> tuple[np.ndarray, np.ndarray]:
    """What a trainer pushes in a step: few ids often, others seldom, some several times."""
    random = np.random.default_rng(1000 * step + trainer)
    wide = random.integers(0, IDS, random.integers(0, 20))
    hot = random.integers(0, 12, random.integers(0, 8)) + 5 * (step // 12)
    ids = np.concatenate([wide, hot]) % IDS
    return ids, random.standard_normal((len(ids), DIM)).astype(np.float32)


def make(kind: Any, *name: str, **settings: Any) -> Any:
    return kind(*name, DIM, ps.Adagrad(0.5), ps.Uniform(-1, 1), seed=3, **settings)


class Model:
    """The servers' parts as tables of this process, which get the merged batches."""

    def __init__(self, servers: int, max_rows: int | None = None, **settings: Any) -> None:
        self.servers = servers
        caps = [
            None if max_rows is None else max_rows // servers + (server < max_rows % servers)
            for server in range(servers)
        ]
        self.parts = [make(ps.Table, max_rows=cap, **settings) for cap in caps]

    def push(self, step: int) -> None:
        given = [batch(step, trainer) for trainer in range(len(ps.trainers()))]
        if not sum(len(ids) for ids, _ in given):
            return  # nobody has named the table: this is no step of it
        # A trainer adds up its gradients of an id before it sends it.
        ids, rows = [], []
        for each, gradients in given:
            first = list(dict.fromkeys(each.tolist()))
            sums = np.zeros((len(first), DIM), np.float32)
            for number, gradient in zip(each.tolist(), gradients, strict=True):
                sums[first.index(number)] += gradient
            ids.append(np.array(first, np.int64))
            rows.append(sums)
        merged, sums = np.concatenate(ids), np.concatenate(rows)
        owner = owners(merged, self.servers)
        for server, part in enumerate(self.parts):
            part.push(merged[owner == server], sums[owner == server])

    def pull(self) -> np.ndarray:
        out = np.empty((IDS, DIM), np.float32)
        owner = owners(ALL, self.servers)
        for server, part in enumerate(self.parts):
            out[owner == server] = part.pull(ALL[owner == server])
        return out

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def counted(self) -> list[int]:
        return [sum(part.info()[name] for part in self.parts) for name in COUNTED]


def told(table: ps.RemoteTable) -> list[dict[str, Any]]:
    """What each server says of a table."""
    tables = [one for server in ps.stats()["servers"] for one in server["tables"]]
    return [one for one in tables if one["name"] == table.name]


@pytest.mark.parametrize("which", KINDS)
def test_servers_hold_what_one_process_holds(
    begin: Begin, folder: Path, rank: int, roles: str, which: str
) -> None:
    """Bit for bit, also when a cut is restored halfway, and in a second run."""
    if not begin(roles):
        return
    settings, trainer = KINDS[which], ps.trainers().index(rank)
    model = Model(len(ps.pservers()), **settings)
    table = make(ps.RemoteTable, "t", **settings)
    again = make(ps.RemoteTable, "again", **settings)
    found = {}
    for step in range(40):
        table.push(*batch(step, trainer))
        model.push(step)
        if step % 8 == 7:
            found[step] = table.pull(ALL)
            assert (found[step] == model.pull()).all(), step
            parts = told(table)
            assert sum(one["rows"] for one in parts) == len(model)
            assert [sum(one[name] for one in parts) for name in COUNTED] == model.counted()
            cap = settings.get("max_rows", 0)
            assert sum(one["max_rows"] for one in parts) == cap
            assert all(one["rows"] <= one["max_rows"] or not cap for one in parts)
            assert all(
                bool(one["sketch_bytes"]) == (which in ("all", "admission")) for one in parts
            )
        if step == 20:
            ps.save(folder, step)
        ps.barrier()
    assert sum(model.counted())
    ps.restore(folder)
    for step in range(21, 40):
        table.push(*batch(step, trainer))
        if step in found:
            assert (table.pull(ALL) == found[step]).all(), step
    for step in range(40):
        again.push(*batch(step, trainer))
    assert (again.pull(ALL) == found[39]).all()


def test_a_cut_is_read_by_another_number_of_servers(begin: Begin, folder: Path, rank: int) -> None:
    """And into a smaller table, and into one process: the rows of the last pushes stay."""
    settings = {"admit_after": 2, "expire_after": 30, "max_rows": 60}
    if begin(ONE_SERVER):
        table = make(ps.RemoteTable, "t", **settings)
        plain = ps.RemoteTable("plain", 1, ps.SGD(1.0))
        plain.push(ALL[:50], np.ones((50, 1), np.float32))
        for step in range(40):
            table.push(*batch(step, ps.trainers().index(rank)))
        ps.save(folder, 40)
    ps.shutdown()
    cut = open_cut(folder)
    number = [one.name for one in cut.tables].index("t")
    uses = {
        one: stamp
        for ids, stamps in cut.stamps(number)
        for one, stamp in zip(ids.tolist(), stamps.tolist(), strict=True)
    }
    steps = cut.tables[number].steps  # a step without ids is none of the table
    assert 35 < steps <= 40 and 20 < len(uses) <= 60 and min(uses.values()) >= steps - 30
    alone = ps.load(folder, train=True)["t"]
    state = alone.state_dict()
    assert dict(zip(state["ids"].tolist(), state["stamps"].tolist(), strict=True)) == uses
    assert state["sketch"] and state["steps"] == steps
    fresh = make(ps.Table)
    for max_rows in (60, 11):
        if begin(BOTH):
            smaller = make(ps.RemoteTable, "t", **{**settings, "max_rows": max_rows})
            aged = ps.RemoteTable("plain", 1, ps.SGD(1.0), max_rows=4 * IDS)  # it had no lifetime
            ps.restore(folder, tables=["t"] if max_rows == 11 else None)
            assert len(aged) == (0 if max_rows == 11 else 50)
            parts = told(smaller)
            kept = stay(uses, [one["max_rows"] for one in parts])
            assert sum(one["rows"] for one in parts) == len(kept)
            assert (smaller.pull(kept) == alone.pull(kept)).all()
            gone = np.setdiff1d(ALL, kept)
            assert (smaller.pull(gone) == fresh.pull(gone)).all()
            ps.barrier()
        ps.shutdown()


def stay(uses: dict[int, int], caps: list[int]) -> np.ndarray:
    """The ids of the last uses for which there is room on servers of these caps."""
    ids = np.array(list(uses))
    kept: list[int] = []
    for server, cap in enumerate(caps):
        mine = ids[owners(ids, len(caps)) == server].tolist()
        kept += sorted(mine, key=lambda one: (uses[one], one))[-cap:]
    return np.array(kept)


def test_counts_of_sights_survive_servers_that_come_and_go(
    begin: Begin, folder: Path, rank: int
) -> None:
    """An id that was seen twice before cuts gets its row at the third push, and not before."""
    ones = np.ones((5, DIM), np.float32)
    ids, other = np.arange(5), np.arange(5) + 50
    for number, roles in enumerate([BOTH, ONE_SERVER, BOTH, ONE_TRAINER]):
        if begin(roles, mode="async"):
            table = make(ps.RemoteTable, "t", admit_after=4)
            if number:
                ps.restore(folder)
            ps.barrier("there")
            if rank == ps.trainers()[0]:
                if number in (0, 3):
                    for _ in range(2 if number == 0 else 1):
                        table.push(ids, ones)
                    table.push(other, ones)
                assert len(table) == 0, (number, roles)
                if number == 3:
                    table.push(ids, ones)
                    assert len(table) == 5
            ps.save(folder, number + 1)
        ps.shutdown()


@pytest.mark.parametrize("mode", ["async", "half_async", "ssp", "dc_asgd"])
def test_each_mode_admits_and_evicts(begin: Begin, rank: int, roles: str, mode: str) -> None:
    settings = {"staleness": 50} if mode == "ssp" else {}
    settings |= {"mean_square": 0.9, "backup_rows": 100} if mode == "dc_asgd" else {}
    if not begin(roles, mode=mode, **settings):
        return
    table = make(ps.RemoteTable, "t", admit_after=2, expire_after=60, max_rows=24)
    trainer = ps.trainers().index(rank)
    for step in range(30):
        ids, gradients = batch(step, trainer)
        table.pull(ids)
        table.push(ids, gradients)
        assert all(one["rows"] <= one["max_rows"] for one in told(table))
    ps.flush()
    ps.barrier()
    parts = told(table)
    assert sum(one["evicted"] for one in parts) and sum(one["dropped"] for one in parts)
    assert np.isfinite(table.pull(ALL)).all()
    seen = len(table)
    table.pull(ALL + 1000)
    assert len(table) == seen  # pulls make no rows


def test_what_does_not_go(begin: Begin, roles: str, rank: int) -> None:
    if not begin(roles, mode="async"):
        return
    servers = len(ps.pservers())
    if servers > 1:
        with pytest.raises(errors.ArgumentError, match=r'"few" has max_rows=1.*servers share'):
            ps.RemoteTable("few", DIM, max_rows=1)
        with pytest.raises(
            errors.UnsupportedError, match="memory_limit=1000000 and expire_after=3"
        ):
            ps.RemoteTable("both", DIM, expire_after=3, memory_limit=10**6)
    for name in ("admit_after", "max_rows"):
        with pytest.raises(errors.ArgumentError, match=f"{name}=.* below 1"):
            ps.RemoteTable("zero", DIM, **{name: 0})
    capped = ps.RemoteTable("capped", DIM, max_rows=20)
    ps.barrier()
    with pytest.raises(
        errors.ArgumentError, match=r"write: .* room for .* its part of max_rows=20"
    ):
        capped.write(ALL, np.ones((IDS, DIM), np.float32))
    assert len(capped) == 0
    with pytest.raises(errors.UnsupportedError, match='"capped" has admit_after, expire_after or'):
        ps.set_mode("geo")
    with pytest.raises(errors.MismatchError, match="max_rows"):
        ps.RemoteTable("capped", DIM, max_rows=21 + rank)


def test_geo_is_refused(begin: Begin, roles: str) -> None:
    if begin(roles, mode="geo", geo_step=2):
        for name in ("admit_after", "expire_after", "max_rows"):
            with pytest.raises(errors.UnsupportedError, match="In mode geo"):
                ps.RemoteTable("t", DIM, **{name: 9})
