"""Trainers and parameter servers on two hosts; argv[2] says what they do.

* values: one trainer and one server, each on either host, and then all ranks are both.
* cut: two trainers and two servers train until the cable of h2 is cut.
* kill: the same until the server on h2 is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import paddlempi as dist
import ranks_report
from paddlempi import ps

DIM, ROWS, STEPS = 32, 30_000, 3


@ps.server_function("double")
def double(request: ps.KVRequest) -> np.ndarray:
    return request.values * 2


def batch(trainer: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng([trainer, step])
    ids = random.choice(10 * ROWS, ROWS, replace=False)
    return ids, random.normal(size=(ROWS, DIM)).astype(np.float32)


def trained(roles: str) -> ranks_report.Facts:
    """Train a few steps; compare with one process, and count the bytes that went over MPI."""
    ps.init(roles, timeout=60)
    facts: ranks_report.Facts = {}
    if ps.is_trainer():
        trainer, count = ps.trainers().index(dist.get_rank()), len(ps.trainers())
        table = ps.RemoteTable("t", DIM, ps.Adagrad(0.1), ps.Normal(), seed=3)
        alone = ps.Table(DIM, ps.Adagrad(0.1), ps.Normal(), seed=3)
        for step in range(STEPS):
            parts = [batch(one, step) for one in range(count)]
            table.push(*parts[trainer])
            ids, gradients = (np.concatenate(part) for part in zip(*parts, strict=True))
            alone.push(ids, gradients)
        few = np.arange(5)  # they travel in the message itself
        table.push(few, np.ones((5, DIM), np.float32))
        alone.push(np.tile(few, count), np.ones((5 * count, DIM), np.float32))
        facts = {"same": True, "bytes": ps.stats()["bytes"]}
        for asked in (ids, few):
            rows, expected = table.pull(asked), alone.pull(asked)
            facts["same"] &= bool((rows.view(np.uint32) == expected.view(np.uint32)).all())
            half, one = (
                kind(DIM, initializer=ps.Normal(), seed=4, dtype="bfloat16")
                for kind in (partial(ps.RemoteTable, "half"), ps.Table)
            )
            facts["same"] &= bool((half.pull(asked) == one.pull(asked)).all())
        kv = ps.KV("double", 3, "uint8")
        for count in (ROWS, 5):
            values = np.arange(3 * count, dtype=np.uint8).reshape(count, 3)
            rows = kv.wait(kv.push_pull(np.arange(count), values))
            facts["same"] &= bool((rows == values * 2).all())
    ps.shutdown()
    return facts


def steps(on_h2: bool, mode: str) -> None:
    table = ps.RemoteTable("t", DIM) if ps.is_trainer() else None
    if table is None:
        if mode == "kill" and on_h2:
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
        ps.serve()
        return
    ids, gradients = batch(0, 0)
    while True:
        table.push(ids, gradients)
        table.pull(ids)
        ranks_report.write({"rank": dist.get_rank(), "time": time.time()})


def struck(mode: str) -> ranks_report.Facts:
    """Train until an error ends it, and try what else a trainer calls."""
    on_h2 = os.uname().nodename == "h2"
    ps.init("trainer:1,trainer+pserver:1,pserver:1", timeout=60)
    ranks_report.write({"rank": dist.get_rank(), "time": time.time()})
    facts = ranks_report.error_of(lambda: steps(on_h2, mode))
    facts["time"] = time.time()
    if ps.is_trainer():
        facts["then"] = [ranks_report.error_of(call) for call in (ps.barrier, ps.complete)]
        facts["waited"] = time.time() - facts["time"]
    return facts


def await_reports(count: int) -> None:
    """Wait until so many ranks have reported an error: the end of one may end others before."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        reports = [path.read_text() for path in Path(sys.argv[1]).glob("*.json")]
        if sum('"error"' in report for report in reports) >= count:
            return
        time.sleep(0.05)


def main() -> None:
    dist.init_process_group("mpi", timeout=60.0)
    rank = dist.get_rank()
    if sys.argv[2] == "values":
        roles = ("trainer:1,pserver:1", "pserver:1,trainer:1", "trainer+pserver:*")
        ranks_report.write({"rank": rank, "trained": [trained(one) for one in roles]})
        return
    ranks_report.write({"rank": rank, **struck(sys.argv[2])})
    await_reports(2 if sys.argv[2] == "kill" else 3)
    os._exit(0)


main()
