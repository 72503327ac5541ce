"""examples/train_ps_layers.py reaches on parameter servers what one process reaches."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from example import DEADLINE, FOLDER, alone
from paddlempi.testing import run

pytest.importorskip("torch", reason="torch is not installed")

SMALL = ("--clicks=100000", "--words=250000")


def on_servers(ranks: int, roles: str, *options: str) -> str:
    """Run the example with roles. Return what it printed."""
    script = str(FOLDER / "train_ps_layers.py")
    command = [sys.executable, "-m", "paddlempi", "run", "--roles", roles, script, *options]
    result = run(ranks, command, timeout=DEADLINE)
    assert result.returncode == 0, result.output
    return result.stdout


def test_beside_one_process(tmp_path: Path) -> None:
    """2 trainers and 2 servers: the same losses and rows; then servers that train, and async."""
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    expected = alone("train_ps_layers.py", f"--out={one}", *SMALL)
    beside = f"--beside={one}"
    text = on_servers(4, "trainer:2,pserver:2", beside, f"--out={two}", *SMALL)
    assert "2 trainers, 2 servers, sync" in text
    losses = [
        {name: result["losses"] for name, result in json.loads(file.read_text()).items()}
        for file in (one, two)
    ]
    assert list(losses[0]) == ["clicks", "tumours", "words"]
    for name, of_one in losses[0].items():
        # Rounding adds up with the steps, so the first half is compared.
        half = len(of_one) // 2
        assert losses[1][name][:half] == pytest.approx(of_one[:half], rel=2e-3)
        assert of_one[-1] < 0.95 * of_one[0]
    assert losses[0] != losses[1]  # the floats were added in another order
    rows = [re.findall(r"tables .*: ([\d,]+) rows", output) for output in (expected, text)]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 1
    moved = dict(re.findall(r" (grpc|local|mpi|shared) ([\d,]*\d\.\d+)", text))
    assert list(moved) == ["grpc", "local", "mpi", "shared"]
    assert 0 < float(moved["grpc"]) < 0.01 * float(moved["shared"].replace(",", ""))

    text = on_servers(2, "trainer+pserver:2", "--tasks=tumours", "--mode=async", beside)
    assert "2 trainers, 2 servers, async" in text
