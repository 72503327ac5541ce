"""examples/train.py does what its first lines say, on any number of ranks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from paddlempi.testing import run

EXAMPLE = Path(__file__).parents[2] / "examples" / "train.py"
DEADLINE = 240


def test_trains_alone_without_a_launcher() -> None:
    """One rank, no mpirun: the accuracy is reached and printed."""
    env = {name: value for name, value in os.environ.items() if "MPI" not in name}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=DEADLINE, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_report(done.stdout, ranks=1, epochs=15)


@pytest.mark.parametrize("ranks", [2, 3])
def test_trains_on_several_ranks(ranks: int) -> None:
    result = run(ranks, [sys.executable, str(EXAMPLE)], timeout=DEADLINE)
    assert result.returncode == 0, result.output
    check_report(result.stdout, ranks=ranks, epochs=15)


def test_loss_does_not_depend_on_the_number_of_ranks(tmp_path: Path) -> None:
    """The same global batches on 1, 2 and 3 ranks give the same curve but for rounding."""
    curves = []
    for ranks in (1, 2, 3):
        out = tmp_path / f"{ranks}.json"
        result = run(
            ranks, [sys.executable, str(EXAMPLE), "--epochs=4", f"--losses={out}"], timeout=DEADLINE
        )
        # Four epochs do not reach the accuracy on every machine; the exit status says so.
        assert out.exists(), result.output
        curves.append(json.loads(out.read_text()))
    for curve in curves[1:]:
        assert curve == pytest.approx(curves[0], rel=2e-4)
    assert curves[0][-1] < 0.5 * curves[0][0]
    # Float addition in another order leaves a trace; equal bits would mean that the
    # ranks did not divide the work.
    assert curves[0] != curves[1]


def check_report(text: str, ranks: int, epochs: int) -> None:
    """What rank 0 prints: loss, speed and share of communication; accuracy; equality."""
    lines = re.findall(
        r"^epoch +\d+  loss [\d.]+ +\d+ images/s  communicating +[\d.]+ %$", text, re.M
    )
    assert len(lines) == epochs, text
    accuracy = re.search(r"^test accuracy ([\d.]+)$", text, re.M)
    assert accuracy and float(accuracy[1]) >= 0.95, text
    assert f"parameters equal bit for bit on all {ranks} ranks: yes" in text
