"""The program of every rank: trainers make one kind of call, until a fault strikes or is over.

Every push adds one to rows that a trainer has for itself, half of it in mode "geo", where a trainer
adds its share. So of each row it is known which pushes it has. What a trainer has pushed is in a
file, because it may die.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cells import (
    CABLE,
    DIED,
    DISK,
    DONE,
    KILL,
    LATE,
    MASTER,
    MOMENTS,
    STOP,
    STOPPED,
    TRAINER,
    Cell,
)
from paddlempi import errors, ps
from ranks_tools import stamp, stamped, start

DIM, OWN, SHARED = 4, 16, 64
ROUNDS = 120
PAUSE = 0.01  # seconds between two calls
SHARDS = 120


def own_ids(rank: int) -> Any:
    return 1000 * (rank + 1) + np.arange(OWN)


class Book:
    """What a trainer has pushed: lines of a file. The last line of each kind counts.

    Attributes:
        tried: the sum of all pushes that were begun.
        sure: the sum of those that are surely applied.
    """

    def __init__(self, place: Path, rank: int) -> None:
        self._file = (place / f"book-{rank}").open("a", buffering=1)
        self.tried = self.sure = 0.0

    def note(self) -> None:
        print(json.dumps({"tried": self.tried, "sure": self.sure}), file=self._file)

    def cut(self, step: int) -> None:
        """Note that a cut has all that was tried."""
        print(json.dumps({"cut": step, "rows": self.tried}), file=self._file)


class Trainer:
    """What a trainer does."""

    def __init__(self, cell: Cell, place: Path, rank: int) -> None:
        self.cell, self.rank, self.mode = cell, rank, cell.mode
        self.folder = place / "cuts"
        self.book = Book(place, rank)
        self.table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
        self.ids = np.concatenate([np.arange(SHARED), own_ids(rank)])
        self.first = rank == ps.trainers()[0]
        self.shards = ps.tasks(SHARDS, size=1, lease=30.0)
        self.call: Callable[[int], None] = getattr(self, cell.moment)

    def run(self) -> None:
        for _ in range(3):
            self.add()
        self.at_first_cut = self.book.tried
        self.book.cut(1)
        ps.save(self.folder, 1)
        for _ in range(2):
            self.add()
        ps.barrier("ready")
        if self.first:
            stamp("go")
        if self.cell.fault == DISK:
            self.on_a_full_disk()
        elif self.cell.moment == "lease":
            self.lease()
        else:
            for number in range(ROUNDS):
                self.call(number)
                time.sleep(PAUSE)
        self.flush()
        self.check()

    def add(self) -> None:
        """Push once."""
        share = 1 / len(ps.trainers()) if self.mode == "geo" else 1.0
        self.book.tried += share
        self.book.note()
        self.table.push(self.ids, np.full((len(self.ids), DIM), -1, np.float32))
        if self.mode in ("sync", "async"):
            self.flushed()

    def flush(self) -> None:
        ps.flush()
        self.flushed()

    def flushed(self) -> None:
        self.book.sure = self.book.tried
        self.book.note()

    def check(self) -> None:
        """Check that each push is in this trainer's own rows, once."""
        rows = self.table.pull(own_ids(self.rank))
        assert (rows == self.book.tried).all(), (self.book.tried, rows)

    def pull(self, number: int) -> None:
        if number % 10 == 0:
            self.add()
        for _ in range(3):
            self.table.pull(self.ids)

    def push(self, number: int) -> None:
        self.add()

    def save(self, number: int) -> None:
        self.add()
        if number % 4 == 0:
            self.book.cut(number + 10)
            ps.save(self.folder, number + 10)
            self.flushed()

    def restore(self, number: int) -> None:
        self.add()
        if number % 10 == 0:
            told = ps.restore(self.folder, 1)
            assert told["step"] == 1 and told["time"] <= time.time(), told
            self.book.tried = self.book.sure = self.at_first_cut
            self.book.note()
            self.check()

    def lease(self) -> None:
        for _ in self.shards:
            self.add()
            time.sleep(PAUSE)

    def switch(self, number: int) -> None:
        self.add()
        if number % 5 == 0:
            other = "async" if self.mode != "async" else "sync"
            wanted = self.cell.mode if self.mode != self.cell.mode else other
            ps.set_mode(wanted, geo_step=7)
            self.flushed()
            self.mode = wanted

    def on_a_full_disk(self) -> None:
        """Save, while another file has the rest of the disk, and when it is gone."""
        filler = self.folder / "filler"
        if self.first:
            with filler.open("wb", buffering=0) as file:
                try:
                    while file.write(bytes(1 << 12)):
                        pass
                except OSError:
                    stamp("struck")
        ps.barrier("the disk is full")
        self.add()
        try:
            ps.save(self.folder, 2)
        except errors.Error as error:
            assert "No space left" in str(error) or "no space left" in str(error), error
        else:
            raise AssertionError("a cut on a full disk")
        ps.barrier("it failed")
        if self.first:
            filler.unlink()
        ps.barrier("there is room")
        self.flushed()
        self.check()
        self.book.cut(3)
        ps.save(self.folder, 3)


def strike(fault: str) -> None:
    """Kill or stop this process."""
    pid = os.getpid()
    if fault == STOP:
        again = f"sleep {STOPPED}; kill -CONT {pid}"
        subprocess.Popen(["sh", "-c", again], start_new_session=True)
    stamp("struck")
    os.kill(pid, signal.SIGKILL if fault == KILL else signal.SIGSTOP)


def arm(fault: str) -> None:
    """Strike this process soon after the trainers have begun."""
    import threading

    def wait() -> None:
        while not stamped("go"):
            time.sleep(0.005)
        time.sleep(np.random.default_rng().uniform(0.05, 0.5))
        strike(fault)

    threading.Thread(target=wait, daemon=True).start()


def wait_for_others(place: Path, cell: Cell) -> None:
    """Wait until the others have ended, so that none of them takes this end for a death.

    The master may wait for the end of trainers whose job has failed.
    """
    give_up = time.monotonic() + 60
    for rank, role in enumerate(cell.roles):
        killed = cell.fault == KILL and rank == len(cell.roles) - 1
        while role != MASTER and not killed and not (place / f"ended-{rank}").exists():
            if time.monotonic() > give_up:
                return
            time.sleep(0.02)


def main() -> None:
    place = Path(os.environ["PS_FAULTS_PLACE"])
    cell = Cell(**json.loads(os.environ["PS_FAULTS_CELL"]))
    assert cell.moment in MOMENTS
    rank = start()
    ended: dict[str, Any] = {"rank": rank, "outcome": DONE, "text": ""}
    victim = rank == len(cell.roles) - 1
    try:
        ps.init(
            dict(enumerate(cell.roles)),
            mode=cell.mode,
            timeout=cell.timeout,
            geo_step=7,
            send_queue=4,
            merge=3,
        )
        if victim and cell.fault in (KILL, STOP):
            arm(cell.fault)
        if cell.roles[rank] == TRAINER:
            Trainer(cell, place, rank).run()
            ps.complete()
        else:
            ps.serve()
    except (errors.PeerDiedError, errors.TimeoutError) as error:
        died = isinstance(error, errors.PeerDiedError)
        ended |= {"outcome": DIED if died else LATE, "ranks": error.ranks, "text": str(error)}
        if cell.roles[rank] == TRAINER:  # as far as it goes: servers that live wait for it
            with contextlib.suppress(errors.Error):
                ps.complete()
    except BaseException:
        ended |= {"outcome": "wrong", "text": traceback.format_exc()}
    ended["at"] = time.time()
    (place / f"ended-{rank}.part").write_text(json.dumps(ended))
    (place / f"ended-{rank}.part").rename(place / f"ended-{rank}")
    wait_for_others(place, cell)
    sys.stdout.flush()
    if cell.fault in (KILL, CABLE):
        os._exit(0)  # MPI cannot be finalized with a dead rank


if __name__ == "__main__":
    main()
