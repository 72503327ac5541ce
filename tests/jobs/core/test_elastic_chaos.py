"""Ranks of an elastic job are killed at random moments: it goes on, and computes what it should.

``ELASTIC_RUNS=250 make try T=tests/jobs/core/test_elastic_chaos.py`` runs more of them,
``ELASTIC_SEED`` others. What each run does follows from its seed, which is in its name; when its
kills come depends on the machine.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import elastic_program
import numpy as np
import pytest
from fresh_signals import take_signals
from outside import environment
from paddlempi.testing import launch

RUNS = int(os.environ.get("ELASTIC_RUNS", "10"))
FIRST = int(os.environ.get("ELASTIC_SEED", "0"))

DEADLINE = 90.0
"""Seconds. A run takes some; one that is not over then hangs."""

STEPS, PAUSE = 150, 0.01

KINDS = ("one", "first", "two", "reform", "init", "many")
"""Whom a run kills: any rank; rank 0; two at once; one more while the ranks that are left make a
new world; one that starts; one after the other. Every fifth run is by an mpirun."""

pytestmark = pytest.mark.launcher("an mpirun that leaves the others alone", only=["openmpi"])


class Run:
    """One job, and what is known of it from outside."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chosen = folder, random.Random(seed)
        self.kind = KINDS[seed % len(KINDS)]
        self.size = self.chosen.randint(3 if self.kind in ("two", "reform") else 2, 4)
        self.replace = self.chosen.random() < 0.5
        self.kills: list[tuple[float, int]] = []  # when, and in which world
        # A launcher of an MPI replaces nothing, and ends the job if a rank dies in MPI_Init.
        self.by_mpi = seed % 5 == 4 and self.kind != "init"
        script = [elastic_program.__file__, str(folder), str(STEPS), str(PAUSE)]
        if self.by_mpi:
            argv = [sys.executable, *script]
            ranks = launch.command(self.size, argv, env=environment(), options=["--continuous"])
            command, variables = ranks.argv, ranks.env
        else:
            options = ["--elastic", "1", *([] if self.replace else ["--no-replace"])]
            run = [sys.executable, "-m", "paddlempi", "run", "-np", str(self.size)]
            command, variables = [*run, *options, *script], environment()
        self.process = subprocess.Popen(
            command,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=take_signals,
        )
        self.until = time.monotonic() + DEADLINE

    def lines(self, name: str) -> list[list[str]]:
        """What is in a file of whole lines; nothing if it is not there."""
        with suppress(FileNotFoundError):
            text = (self.folder / name).read_text()
            return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return []

    def world(self) -> tuple[int, list[int]]:
        """The number of the last world that all its members have told of, and their processes."""
        found: dict[int, dict[int, int]] = {}
        sizes = {}
        for pid, generation, rank, size in (map(int, line) for line in self.lines("ranks")):
            found.setdefault(generation, {})[rank] = pid
            sizes[generation] = size
        whole = [g for g, members in found.items() if len(members) == sizes[g]]
        last = max(whole, default=-1)
        return last, [found[last][rank] for rank in sorted(found[last])] if whole else []

    def runs(self) -> bool:
        return self.process.poll() is None and time.monotonic() < self.until

    def wait_for_world(self, after: int, least: int) -> list[int]:
        """Wait for a world behind the number ``after``; its processes, or none if there is none."""
        while self.runs() and not self.lines("ended"):
            number, members = self.world()
            if number > after and len(members) >= least:
                return members
            time.sleep(0.005)
        return []

    def kill(self, *pids: int) -> None:
        number = self.world()[0]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.kills.append((time.monotonic(), number))

    def disturb(self) -> None:
        """Kill whom this run kills."""
        draw = self.chosen
        if self.kind == "init":
            begins = draw.uniform(0.0, 1.5)
            while self.runs() and not list(self.folder.glob("pid-*")):
                time.sleep(0.005)
            time.sleep(begins)
            pids = [int(path.name[4:]) for path in self.folder.glob("pid-*")]
            self.kill(draw.choice(pids))
            return
        members = self.wait_for_world(-1, 2)
        for _ in range(4 if self.kind == "many" else 1):
            time.sleep(draw.uniform(0, 0.01 * STEPS * 0.6 / (4 if self.kind == "many" else 1)))
            number, members = self.world()
            if len(members) < 2 or self.lines("ended"):
                return
            if self.kind in ("two", "reform"):
                one, other = draw.sample(members, 2)
                if self.kind == "two":
                    self.kill(one, other)
                else:
                    self.kill(one)
                    time.sleep(draw.uniform(0.0, 0.6))
                    if len(self.world()[1]) > 1:
                        self.kill(other)
                continue
            self.kill(members[0] if self.kind == "first" else draw.choice(members))
            if self.kind == "many":
                self.wait_for_world(number, 2)

    def end(self) -> str:
        """Wait for the end, and return the output."""
        try:
            return self.process.communicate(timeout=max(1.0, self.until - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGTERM)  # again: at once
            output = self.process.communicate()[0]
            pytest.fail(f"it hangs\n{output}")

    def idle(self) -> list[float]:
        """For each kill how long it took until a step counted in a later world."""
        steps = [line for path in self.folder.glob("steps-*") for line in self.lines(path.name)]
        times = []
        for when, number in self.kills:
            after = [float(t) for t, world, _ in steps if int(world) > number and float(t) > when]
            times += [min(after) - when] if after else []
        return times


@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
def test_ranks_are_killed(tmp_path: Path, seed: int) -> None:
    """Nothing hangs, and the weights are those of a replay in one process, bit for bit."""
    run = Run(tmp_path, seed)
    try:
        run.disturb()
        output = run.end()
    finally:
        run.process.kill()
    said = f"kind {run.kind}, {run.size} ranks, replace {run.replace}, by MPI {run.by_mpi}, "
    said += f"kills {run.kills}\n{output}"
    print(said, [f"{seconds:.2f} s" for seconds in run.idle()])
    found = sorted(tmp_path.glob("weights-*.npy"))
    assert found, said
    late = (tmp_path / "ended").stat().st_mtime - time.time() + time.monotonic()
    after = any(when > late - 0.05 for when, _ in run.kills)
    assert run.process.returncode == 0 or run.by_mpi or after, said
    expected = np.concatenate(elastic_program.replay(tmp_path / "worlds", STEPS))
    for path in found:
        assert np.array_equal(np.load(path), expected), f"{path.name}: {said}"
