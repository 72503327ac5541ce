"""Cuts that are made while threads push: each is a state that existed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import job
import pytest


def cuts_under_load() -> None:
    """A thread of every trainer pushes two tables all the time; the main threads save.

    Every push adds one to the rows that all trainers share, and to those of its own trainer. So of
    every cut it is known which pushes it has.
    """
    import os
    import threading

    import numpy as np
    from paddlempi import ps
    from ps_job import DIM, begin
    from ranks_tools import done

    roles, mode = os.environ["PS_ROLES"], os.environ["PS_MODE"]
    folder, cuts = os.environ["PS_FOLDER"], int(os.environ["PS_CUTS"])
    rank = begin(roles, mode=mode)
    if not ps.is_trainer():
        ps.shutdown()
        done()
        return
    trainers = ps.trainers()
    tables = [ps.RemoteTable(name, DIM, ps.SGD(1.0), num_ids=10**6) for name in ("a", "b")]
    shared = np.arange(64)
    own = {trainer: 1000 * (trainer + 1) + np.arange(16) for trainer in trainers}
    written = 10**5 + np.arange(16)
    ids = np.concatenate([shared, own[rank]])
    ones = np.full((len(ids), DIM), -1, np.float32)
    stop = threading.Event()

    def push() -> None:
        while not stop.is_set():
            ps.push([(table, ids, ones) for table in tables])

    def write() -> None:
        value = 0
        while not stop.is_set():
            value += 1
            tables[0].write(written, np.full((len(written), DIM), value, np.float32))

    def check() -> dict[int, float]:
        pushes: dict[int, float] = {}
        saved = ps.load(folder)
        for name in ("a", "b"):
            for trainer in trainers:
                rows = saved[name].pull(own[trainer])
                assert (rows == pushes.setdefault(trainer, rows[0, 0])).all(), (name, trainer, rows)
            rows = saved[name].pull(shared)
            assert (rows == sum(pushes.values())).all(), (name, pushes, rows)
        rows = saved["a"].pull(written)
        assert (rows == rows[0, 0]).all(), rows
        if mode == "sync":
            assert len(set(pushes.values())) == 1, pushes
        return pushes

    work = [push, write] if rank == trainers[0] else [push]
    threads = [threading.Thread(target=call) for call in work]
    for thread in threads:
        thread.start()
    before = dict.fromkeys(trainers, 0.0)
    distinct = 0
    try:
        for step in range(1, cuts + 1):
            ps.save(folder, step)
            if rank == trainers[0]:
                now = check()
                assert all(now[trainer] >= before[trainer] for trainer in trainers), (before, now)
                distinct += now != before
                before = now
            ps.barrier("checked")
        assert rank != trainers[0] or distinct > cuts // 4, distinct
    finally:
        stop.set()
        for thread in threads:  # who comes first waits for nobody: the others complete
            thread.join()
            if thread is threads[0]:
                ps.complete()
    ps.shutdown()
    done()


@pytest.mark.parametrize(
    ("size", "roles", "mode"),
    [
        (4, "trainer:2,pserver:2", "sync"),
        (4, "trainer:3,pserver:1", "async"),
        (1, "trainer+pserver", "async"),
        (1, "trainer+pserver", "sync"),
        (2, "trainer+pserver:*", "async"),
    ],
    ids=["sync-2x2", "async-3x1", "async-1x1", "sync-1x1", "async-both"],
)
def test_a_cut_under_load_is_a_state_that_existed(
    size: int, roles: str, mode: str, folder: Path
) -> None:
    env = {"PS_ROLES": roles, "PS_MODE": mode, "PS_FOLDER": str(folder), "PS_CUTS": "40"}
    ended = job.run(size, cuts_under_load, env=env, timeout=120)
    assert ended.returncode == 0, ended.output
    assert ended.result.stdout.count("done\n") == size, ended.output


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cuts"
