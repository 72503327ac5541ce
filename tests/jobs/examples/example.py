"""Functions that run the examples and check what they report."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from paddlempi.testing import launch, run

FOLDER = Path(__file__).parents[3] / "examples"
DEADLINE = 240


def alone(name: str, *options: str) -> str:
    """Run an example as one process without a launcher. Return what it printed."""
    env = {key: value for key, value in os.environ.items() if "MPI" not in key}
    command = [sys.executable, str(FOLDER / name), *options]
    began = time.time()
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, env=env)
    launch.sweep(began)  # without a launcher Open MPI leaves its segment, under mpi4py too
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def on_ranks(ranks: int, name: str, *options: str) -> str:
    """Run an example under mpirun. Return what it printed."""
    result = run(ranks, [sys.executable, str(FOLDER / name), *options], timeout=DEADLINE)
    assert result.returncode == 0, result.output
    return result.stdout


def curve(ranks: int, name: str, out: Path, *options: str) -> list[float]:
    """Run an example for four epochs and return their losses."""
    command = [sys.executable, str(FOLDER / name), "--epochs=4", f"--losses={out}", *options]
    result = run(ranks, command, timeout=DEADLINE)
    # After four epochs the accuracy may still be too low. Then the exit status is not 0.
    assert out.exists(), result.output
    losses: list[float] = json.loads(out.read_text())
    return losses


def check_report(text: str, ranks: int, epochs: int) -> None:
    """Check what rank 0 prints: a line per epoch, the accuracy, and that all ranks are equal."""
    lines = re.findall(
        r"^epoch +\d+  loss [\d.]+ +\d+ images/s  communicating +[\d.]+ %$", text, re.M
    )
    assert len(lines) == epochs, text
    accuracy = re.search(r"^test accuracy ([\d.]+)$", text, re.M)
    assert accuracy and float(accuracy[1]) >= 0.95, text
    assert f"parameters equal bit for bit on all {ranks} ranks: yes" in text
