"""Start a job of the matrix under a launcher, and judge what its ranks came to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mpis
import table
from hosts import Hosts, wait_for
from paddlempi._processes import GRACE, MARK, kill_marked, marked, sweep
from paddlempi.testing import launch
from requirements import hosts_missing as hosts_missing
from table import Cell, Outcome

HERE = Path(__file__).resolve().parent
HELPERS = HERE.parents[1] / "helpers"
RANKS = 3
STAY = {
    "openmpi": ("--continuous",),
    "debian-openmpi": ("--continuous",),
    "impi": ("-disable-auto-cleanup",),
}
"""What lets the other ranks live when one dies. MPICH's launcher ends them in spite of it."""


@dataclass
class Judged:
    """What a cell came to: complaints, and the longest time from the fault to an error."""

    cell: Cell
    complaints: list[str]
    seconds: float | None


@dataclass
class Job:
    """A plan and how its job ended."""

    mpi: str
    cells: Sequence[Cell]
    place: Path
    returncode: int = 0
    output: str = ""
    seconds: float = 0.0
    ended: float = 0.0
    timed_out: bool = False
    left: list[str] = field(default_factory=list)

    def reports(self, number: int) -> dict[int, dict[str, Any]]:
        """Return the reports of the ranks about a cell."""
        found = {}
        for rank in range(RANKS):
            path = self.place / f"rank-{rank}.jsonl"
            for line in path.read_text().splitlines() if path.exists() else ():
                report = json.loads(line)
                if report["number"] == number:
                    found[rank] = report
        return found

    def struck(self, number: int) -> float | None:
        path = self.place / f"struck-{number}"
        return float(path.read_text()) if path.exists() and path.stat().st_size else None


def run(cells: Sequence[Cell], mpi: str, prefix: Path, hosts: Any = None) -> list[Judged]:
    """Run cells of one kind as one job, and judge each."""
    with tempfile.TemporaryDirectory(prefix="faults-", dir="/tmp") as scratch:
        job = Job(mpi, cells, Path(scratch))
        stays = write_plan(job)
        options = STAY.get(mpi, ()) if stays else ()
        if hosts is None:
            start(job, prefix, options)
        elif job.cells[0].fault == "a host dies":
            with Hosts(2) as mortal:
                start_on(mortal, job, prefix)
        else:
            start_on(hosts, job, prefix)
        return [judge(job, number) for number in range(len(cells))]


def write_plan(job: Job) -> bool:
    """Write the plan of a job. Return whether its launcher is to leave the others alone."""
    first = job.cells[0]
    stays = first.outcome_with(job.mpi).stays
    path = [
        str(HERE),
        str(HELPERS),
        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
    ]
    plan = {
        "mpi": job.mpi,
        "ranks": RANKS,
        "kind": first.kind,
        "front": first.front,
        "stays": first.fault in ("mpi4py finalizes MPI", "a cut cable"),
        "path": path,
        "env": {"PADDLEMPI_ABORT_ON_DEATH": "0"} if first.kind == "ending" else {},
        "cells": [
            {"fault": c.fault, "class": c.operation, "limit": c.limit, "warm": c.warm}
            for c in job.cells
        ],
    }
    (job.place / "plan.json").write_text(json.dumps(plan))
    return stays


def start(job: Job, prefix: Path, options: Sequence[str]) -> None:
    """Run the job on this host until it has ended, or until its deadline."""
    temporary = job.place / "tmp"
    temporary.mkdir()
    mark, began = uuid.uuid4().hex, time.time()
    env = {**os.environ, MARK: mark, "TMPDIR": str(temporary)}
    program = [str(prefix / "bin" / "python"), str(HERE / "rank.py"), str(job.place)]
    command = launch.command(RANKS, program, prefix=prefix, env=env, options=options)
    started = time.monotonic()
    with open(job.place / "output", "wb") as output:
        process = subprocess.Popen(
            command.argv,
            env=command.env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if job.cells[0].fault == "Ctrl-C to all":
                interrupt_all(job, process)
            process.wait(sum(cell.most for cell in job.cells) + 180)
        except subprocess.TimeoutExpired:
            job.timed_out = True
        finally:
            job.ended, job.seconds = time.time(), time.monotonic() - started
            if not job.timed_out:
                job.left += processes_left(mark)
            kill_marked(mark)
            process.wait()
            sweep(began)
    job.returncode = process.returncode
    job.output = (job.place / "output").read_bytes().decode(errors="replace")
    job.left += files_left(job, temporary)


def interrupt_all(job: Job, process: subprocess.Popen[bytes]) -> None:
    """Send a SIGINT to every rank, once all are in their series."""
    if all_ready(job, lambda: process.poll() is not None):
        note_strike(job)
        for path in job.place.glob("ready-*"):
            os.kill(int(path.read_text()), signal.SIGINT)


def all_ready(job: Job, is_over: Callable[[], bool]) -> bool:
    """Wait until all ranks are in their series."""
    for _ in wait_for(200):
        if len([p for p in job.place.glob("ready-*") if p.read_text()]) == RANKS:
            time.sleep(0.3)
            return True
        if is_over():
            break
    return False


def note_strike(job: Job) -> None:
    (job.place / "struck-0").write_text(str(time.time()))


LAYOUT = (("h1", 2), ("h2", 1))
STAY_APART = {"openmpi": ["--with-ft", "ulfm"]}


def start_on(hosts: Hosts, job: Job, prefix: Path) -> None:
    """Run the job on two hosts, the victim on h2, until it has ended, or until its deadline."""
    mpi = mpis.MPI(job.mpi, prefix)
    job.place.chmod(0o755)
    mpirun, *arguments = mpi.mpirun(hosts, LAYOUT)
    options = STAY_APART.get(job.mpi, []) if job.cells[0].outcome_with(job.mpi).stays else []
    program = [mpi.python, HERE / "rank.py", job.place]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            hosts.execute,
            [mpirun, *options, *arguments, *program],
            timeout=sum(cell.most for cell in job.cells) + 180,
            env=mpi.environment(),
        )
        accident = ACCIDENTS.get(job.cells[0].fault)
        if accident is not None and all_ready(job, running.done):
            accident(hosts, job)
        result = running.result()
    job.returncode, job.output, job.timed_out = result.code, result.text, result.timed_out
    job.seconds, job.ended = result.seconds, result.ended
    job.left += [] if result.timed_out else list(result.strays)


def cut(hosts: Hosts, job: Job) -> None:
    """Unplug a host until all ranks have told what it came to: some MPIs cannot end without it."""
    note_strike(job)
    hosts.cut("h2")
    try:
        for _ in wait_for(20):
            if len(job.reports(0)) == RANKS:
                break
    finally:
        hosts.heal("h2")


def cut_and_heal(hosts: Hosts, job: Job) -> None:
    note_strike(job)
    hosts.cut("h2")
    time.sleep(1.5)
    hosts.heal("h2")
    time.sleep(1.0)
    (job.place / "healed").touch()


def end_host(hosts: Hosts, job: Job) -> None:
    """Kill process 1 of a host, and so all its processes."""
    note_strike(job)
    hosts.end("h2")


ACCIDENTS: dict[str, Callable[[Hosts, Job], None]] = {
    "a cut cable": cut,
    "a cut and healed cable": cut_and_heal,
    "a host dies": end_host,
}


def processes_left(mark: str) -> list[str]:
    """Return the processes of a job that live on after its launcher, with a grace."""
    ended = time.monotonic() + GRACE
    while marked(mark) and time.monotonic() < ended:
        time.sleep(0.05)
    left = []
    for pid in marked(mark):
        line = Path(f"/proc/{pid}/cmdline")
        left.append(f"process {line.read_bytes()!r}" if line.exists() else f"process {pid}")
    return left


def files_left(job: Job, temporary: Path) -> list[str]:
    """Return what the library left that has a name. What an MPI leaves after a kill is its own."""
    ours = [p for p in Path("/dev/shm").iterdir() if "paddlempi" in p.name]
    left = [p for p in temporary.rglob("*") if "paddlempi" in p.name]
    return [f"file {path}" for path in (*ours, *left)]


def judge(job: Job, number: int) -> Judged:
    """Compare what a cell came to with its expected outcome."""
    cell = job.cells[number]
    expected = cell.outcome_with(job.mpi)
    found, struck = job.reports(number), job.struck(number)
    complaints = list(job.left)
    seconds = None
    if job.timed_out:
        complaints.append(f"the job hung for {job.seconds:.0f} s")
    if struck is None and cell.fault not in table.NEVER_STRUCK:
        complaints.append("the fault did not come")
    victim = RANKS - 1
    for rank in range(RANKS):
        complaints += judge_rank(found.get(rank), rank == victim, expected, rank)
    if struck is not None:
        if expected.ends_job or cell.operation == "exit":
            seconds = job.ended - struck
        else:
            at = [r["at"] for rank, r in found.items() if rank != victim or expected.victim]
            seconds = max(at, default=struck) - struck
        if seconds > cell.most:
            complaints.append(f"it took {seconds:.1f} s, more than {cell.most:.0f} s")
    if cell.kind != "usable" or number == len(job.cells) - 1:
        complaints += judge_end(job, cell, expected)
    if complaints:
        complaints.append(
            f"status {job.returncode}; reports {found}; output:\n{job.output[-3000:]}"
        )
    return Judged(cell, complaints, seconds)


def judge_rank(
    report: dict[str, Any] | None, is_victim: bool, expected: Outcome, rank: int
) -> list[str]:
    """Compare one rank's report with the expected outcome."""
    wanted = expected.victim if is_victim else expected.others
    who = f"rank {rank}, the victim," if is_victim else f"rank {rank}"
    if wanted == "":
        return []
    if report is None:
        return [f"{who} did not report; expected: {wanted}"]
    complaints = []
    if report["outcome"] not in wanted.split("|"):
        complaints.append(f"{who} came to {report['outcome']}; expected: {wanted}")
    says_who = expected.named and report["outcome"] != "ProcFailedError"
    if not is_victim and says_who and RANKS - 1 not in report.get("ranks", ()):
        complaints.append(f"{who} names {report.get('ranks')}, and not the victim")
    if not is_victim:
        complaints += [
            f"{who}: {word!r} is not in {report.get('text')!r}"
            for word in expected.words
            if word not in report.get("text", "")
        ]
    for what, after in (
        ("group", expected.group),
        ("world", expected.world),
        ("new", expected.new),
    ):
        if what in report and report[what] not in after.split("|"):
            complaints.append(
                f"{who}: afterwards the {what} gave {report[what]}; expected: {after}"
            )
    return complaints


def judge_end(job: Job, cell: Cell, expected: Outcome) -> list[str]:
    """Compare the end of the job with the expected outcome."""
    complaints: list[str] = []
    if cell.nodes == 2 and any(c.outcome_with(job.mpi).group != "right" for c in job.cells):
        return complaints  # MPI is not finalized after that, and some launchers call that a failure
    if expected.status == "0" and job.returncode != 0:
        complaints.append(f"the job ended with status {job.returncode}; expected: 0")
    if expected.status == "not 0" and job.returncode == 0:
        complaints.append("the job ended with status 0")
    ends = sorted(int(path.name[4:]) for path in job.place.glob("end-*"))
    if expected.status == "0" and ends != list(range(RANKS)):
        complaints.append(f"only ranks {ends} came to their ends")
    if expected is table.ENDED and any(rank != RANKS - 1 for rank in ends):
        complaints.append(f"ranks {ends} came to their ends although the job was to end")
    for text in expected.says:
        if job.output.count(text) < 1:
            complaints.append(f"{text!r} is not in the output")
    return complaints
