"""Pushes for which a server has no room: they change nothing, on any server."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
from paddlempi import errors, ps
from ps_roles import begin, layouts

__all__ = ["begin"]

pytestmark = pytest.mark.mpi(ranks=[2, 3])

DIM, STEPS = 64, 120
IDS = np.arange(32)
LIMIT = 1 << 20  # of each server: room for some 30 slabs of rows, one for each of 64 shards


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "roles" in metafunc.fixturenames:
        metafunc.parametrize("roles", layouts(metafunc.config))


def ones(count: int) -> np.ndarray:
    return np.ones((count, DIM), np.float32)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("limited", ["first", "last"])
def test_a_push_without_room_changes_nothing(
    begin: Callable[..., bool], dist: ModuleType, rank: int, roles: str, mode: str, limited: str
) -> None:
    """Every push has new ids of a table with a limit. So from some step on some have no room."""
    if not begin(roles, mode=mode):
        return
    number, trainers = ps.trainers().index(rank), len(ps.trainers())
    free = ps.RemoteTable("free", DIM, ps.SGD(1.0))
    counted = ps.RemoteTable("counted", DIM, ps.Adam(0.1))
    full = ps.RemoteTable("full", DIM, ps.SGD(1.0), memory_limit=LIMIT)
    done: list[np.ndarray] = []
    refused = 0
    for step in range(STEPS):
        new = (step * trainers + number) * 10**4 + np.arange(4 if step < STEPS // 2 else 1)
        parts = [(free, IDS, ones(len(IDS))), (counted, IDS, ones(len(IDS)))]
        parts.insert(0 if limited == "first" else 2, (full, new, ones(len(new))))
        try:
            ps.push(parts)
            done.append(new)
        except (errors.OutOfMemoryError, errors.RefusedError) as error:
            refused += 1
            assert "memory_limit" in str(error) or "refused the step" in str(error), error
        if mode == "sync":
            assert (free.pull(IDS) == -len(done) * trainers).all(), (step, len(done))
    counts: list[int] = [0] * trainers
    dist.all_gather_object(counts, len(done), ps.trainer_group())
    assert refused and sum(counts)
    assert (free.pull(IDS) == -sum(counts)).all(), counts
    if mode == "sync":  # else pushes of the same rows come in any order
        assert len(set(counts)) == 1, counts
        alone = ps.Table(DIM, ps.Adam(0.1))
        for _ in done:
            alone.push(IDS, ones(len(IDS)) * trainers)
        assert np.allclose(counted.pull(IDS), alone.pull(IDS), rtol=1e-5)
    ps.barrier()
    for ids in done:
        assert (full.pull(ids) == -1).all()
    if done:  # rows that are there need no room
        ps.push([(free, IDS, ones(len(IDS))), (full, done[0], ones(len(done[0])))])
        assert (full.pull(done[0]) == -2).all()


def test_a_write_without_room_changes_nothing(begin: Callable[..., bool], roles: str) -> None:
    if not begin(roles, mode="async"):
        return
    if ps.trainers()[0] != ps.session.current("test").rank:
        return
    full = ps.RemoteTable("full", DIM, memory_limit=LIMIT)
    last = 0
    with pytest.raises(errors.OutOfMemoryError, match="memory_limit"):
        for step in range(1, 400):
            ids = np.concatenate([IDS[:8], 10**4 * step + np.arange(2)])
            full.write(ids, ones(len(ids)) * step)
            last = step
    assert last > 0 and (full.pull(IDS[:8]) == last).all()


def test_a_push_with_room_is_one_request(begin: Callable[..., bool], roles: str) -> None:
    """Also of a table with a limit, if the rows were pulled before."""
    if not begin(roles, mode="async"):
        return
    if ps.trainers()[0] != ps.session.current("test").rank:
        return
    free = ps.RemoteTable("free", DIM)
    full = ps.RemoteTable("full", DIM, memory_limit=1 << 24)
    ps.pull([(free, IDS), (full, IDS)])

    def requests() -> int:
        return sum(server["bytes_in"] for server in ps.stats()["servers"])

    def bytes_of(push: Callable[[], object]) -> int:
        before = requests()
        push()
        return requests() - before

    usual = bytes_of(lambda: ps.push([(free, IDS, ones(32)), (full, IDS, ones(32))]))
    assert usual == bytes_of(lambda: ps.push([(free, IDS, ones(32)), (full, IDS, ones(32))]))
    values, ids = 2 * ones(32).nbytes, 2 * IDS.nbytes
    headers = len(ps.pservers()) * (32 + 2 * 16)
    assert usual == values + ids + headers, (usual, values + ids + headers)
