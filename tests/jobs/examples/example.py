"""Functions that run the examples and check what they report."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from paddlempi.testing import launch, run

FOLDER = Path(__file__).parents[3] / "examples"
DEADLINE = 240
# What newer releases of NumPy refuse is an error with the pinned one too.
STRICT = {"PYTHONWARNINGS": "error:Conversion of an array with ndim > 0:DeprecationWarning"}


def alone(name: str, *options: str) -> str:
    """Run an example as one process without a launcher. Return what it printed."""
    return _without_mpi(str(FOLDER / name), *options)


def elastic(ranks: int, name: str, *options: str) -> str:
    """Run an example on ranks, without MPI, of which dead ones are not replaced."""
    run = ("-m", "paddlempi", "run", "-np", str(ranks), "--elastic", "1", "--no-replace")
    return _without_mpi(*run, str(FOLDER / name), *options)


def _without_mpi(*words: str) -> str:
    env = {key: value for key, value in os.environ.items() if "MPI" not in key} | STRICT
    command = [sys.executable, *words]
    began = time.time()
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, env=env)
    launch.sweep(began)  # without a launcher Open MPI leaves its segment, under mpi4py too
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def on_ranks(ranks: int, name: str, *options: str) -> str:
    """Run an example under mpirun. Return what it printed."""
    command = [sys.executable, str(FOLDER / name), *options]
    result = run(ranks, command, timeout=DEADLINE, env=STRICT)
    assert result.returncode == 0, result.output
    return result.stdout


def train(ranks: int, name: str, out: Path, *options: str) -> tuple[str, list[float]]:
    """Run an example, one rank without mpirun. Return what it printed, and its losses."""
    words = (name, f"--losses={out}", *options)
    text = alone(*words) if ranks == 1 else on_ranks(ranks, *words)
    losses: list[float] = json.loads(out.read_text())
    return text, losses


def check_curves(one: list[float], two: list[float], *more: list[float]) -> None:
    """Check that the same global batches give the same losses on 1, 2 and more ranks.

    Rounding adds up with the epochs, so the first four are compared.
    """
    for other in (two, *more):
        assert other[:4] == pytest.approx(one[:4], rel=2e-4)
    assert one[3] < 0.5 * one[0]
    # Floats that are added in another order give other bits. Equal bits would mean that the
    # ranks did not divide the work.
    assert one != two


def check_report(text: str, ranks: int, epochs: int) -> None:
    """Check what rank 0 prints: a line per epoch, the accuracy, and that all ranks are equal."""
    lines = re.findall(
        r"^epoch +\d+  loss [\d.]+ +\d+ images/s  communicating +[\d.]+ %$", text, re.M
    )
    assert len(lines) == epochs, text
    accuracy = re.search(r"^test accuracy ([\d.]+)$", text, re.M)
    assert accuracy and float(accuracy[1]) >= 0.95, text
    assert f"parameters equal bit for bit on all {ranks} ranks: yes" in text
