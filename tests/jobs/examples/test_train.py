"""examples/train.py does what its first lines say, on any number of ranks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from example import DEADLINE, FOLDER, check_curves, check_report, train
from paddlempi.cli import marks as marks_of
from paddlempi.testing import launch


def test_on_any_number_of_ranks(tmp_path: Path) -> None:
    """One rank without mpirun, 2 and 3 ranks: the accuracy, and the same losses."""
    curves = []
    for ranks in 1, 2, 3:
        text, losses = train(ranks, "train.py", tmp_path / f"{ranks}.json")
        check_report(text, ranks=ranks, epochs=15)
        curves.append(losses)
    check_curves(*curves)
    text, losses = train_with_a_death(tmp_path)
    assert losses == pytest.approx(curves[1], rel=1e-6), text
    check_report(text, ranks=2, epochs=len(re.findall("^epoch", text, re.M)))


def train_with_a_death(folder: Path) -> tuple[str, list[float]]:
    """Train on 2 ranks, and kill one in the middle. Return what the job printed, and its losses."""
    saved, marks, out = folder / "saved", folder / "marks", folder / "losses.json"
    marks.mkdir()
    words = ["--losses", str(out), "--checkpoints", str(saved)]
    job = launch.command(2, [sys.executable, str(FOLDER / "train.py"), *words])
    supervised = [
        sys.executable,
        "-m",
        "paddlempi",
        "run",
        "--restarts",
        "1",
        "--marks",
        str(marks),
    ]
    process = subprocess.Popen(
        [*supervised, "--", *job.argv],
        env=job.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        end = time.monotonic() + DEADLINE
        while not any(saved.glob("step-*0")) and process.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.01)
        (attempt,) = marks.iterdir()
        victim = next(mark for mark in marks_of.read(attempt) if mark.rank == 1)
        os.kill(victim.pid, signal.SIGKILL)
        text, _ = process.communicate(timeout=DEADLINE)
    finally:
        process.terminate()
        process.wait()
    assert process.returncode == 0, text
    found = re.search(r"^goes on after step (\d+); (\d+) step\(s\) are done again$", text, re.M)
    assert found and int(found[1]) % 20 == 0, text
    assert "a rank died" in text and "starting attempt 1, 0 restart(s) left" in text
    losses: list[float] = json.loads(out.read_text())
    return text, losses
