"""Kills random ranks of jobs that `paddlempi run --restarts` starts anew, for a while.

    python tools/soak_restarts.py SECONDS SEED VENV

A job of two ranks counts to STEPS, with a checkpoint every few steps, and is killed DEATHS times:
one of its ranks by SIGKILL, at a random step. It must end with the right sums, and leave no process
and no memory behind. Jobs follow each other until the time is over.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS, DEATHS, DEADLINE = 60, 2, 300

PROGRAM = """
import os, random, signal, sys
import numpy as np
import paddlempi as dist
here, seed = sys.argv[1], int(sys.argv[2])
dist.init_process_group("mpi", timeout=60)
rank, attempt = dist.get_rank(), int(os.environ["PADDLEMPI_RESTART"])
draw = random.Random(1000 * seed + attempt)
victim, fatal = draw.randrange(dist.get_world_size()), draw.randrange(STEPS)
last = dist.latest_checkpoint(here)
begin, total = (last.step, float((last.path / str(rank)).read_text())) if last else (0, 0.0)
for step in range(begin, STEPS):
    if step % 5 == 0 and step > begin:
        with dist.checkpoint(here, step, keep=2) as folder:
            (folder / str(rank)).write_text(str(total))
    if attempt < DEATHS and rank == victim and step >= min(max(fatal, begin), STEPS - 1):
        os.kill(os.getpid(), signal.SIGKILL)
    x = dist.zeros(1000)
    x += (rank + 1) * step
    dist.all_reduce(x)
    total += x[0]
assert total == 3 * STEPS * (STEPS - 1) / 2, total
open(f"{here}/done{rank}", "w").write(str(attempt))
""".replace("STEPS", str(STEPS)).replace("DEATHS", str(DEATHS))


def leftovers(mark: str) -> list[str]:
    """Return the processes that have the mark in their command."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if mark in command and folder.name != str(os.getpid()):
            found.append(f"{folder.name}: {command}")
    return found


def job(venv: Path, seed: int) -> str:
    """Run one job; return why it is wrong, or an empty text."""
    with tempfile.TemporaryDirectory(prefix="paddlempi-soak-") as here:
        program = Path(here, "train.py")
        program.write_text(PROGRAM)
        command = [
            str(venv / "bin/python"),
            "-m",
            "paddlempi",
            "run",
            "--restarts",
            str(DEATHS),
            "--",
        ]
        mpirun = [str(venv / "bin/mpirun"), "-np", "2", command[0], str(program), here, str(seed)]
        environment = os.environ | {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        done = subprocess.run(
            [*command, *mpirun],
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        # What the launcher has killed may take a moment to end.
        patience = time.monotonic() + 10
        while (left := leftovers(here)) and time.monotonic() < patience:
            time.sleep(0.1)
        ended = [path.read_text() for path in Path(here).glob("done*")]
    if done.returncode or ended != [str(DEATHS)] * 2 or left:
        what = f"status {done.returncode}, attempts of the ranks that ended {ended}, left {left}"
        return f"seed {seed}: {what}\n{done.stdout}{done.stderr}"
    return ""


def main(seconds: float, seed: int, venv: Path) -> int:
    """Run jobs for so many seconds; return 1 if one was wrong, else 0."""
    end, jobs = time.monotonic() + seconds, 0
    segments = set(os.listdir("/dev/shm"))
    draw = random.Random(seed)
    while jobs == 0 or time.monotonic() < end:
        if wrong := job(venv, draw.randrange(1 << 30)):
            print(wrong)
            return 1
        jobs += 1
    left = {name for name in set(os.listdir("/dev/shm")) - segments if "paddlempi" in name}
    print(f"{jobs} jobs, each killed {DEATHS} times and started anew")
    if left:
        print(f"left in /dev/shm: {left}")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]).absolute()))
