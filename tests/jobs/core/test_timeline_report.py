"""``trace report`` of a real job names the rank that sleeps, and says for how long."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from outside import environment

PADDLEMPI = [sys.executable, "-m", "paddlempi"]
DEADLINE = 60

PROGRAM = """
import time
import numpy as np
import paddlempi as dist

dist.init_process_group()
small, large = np.ones(2, np.float32), np.ones(50_000, np.float32)
for i in range(100):
    if dist.get_rank() == 1:
        time.sleep(0.005)
    dist.all_reduce(small)
    dist.all_reduce(large)
    dist.barrier()
"""


def test_a_rank_that_sleeps_5_ms_a_step_is_named(tmp_path: Path) -> None:
    program, output = tmp_path / "program.py", tmp_path / "run.json"
    program.write_text(PROGRAM)
    subprocess.run(
        [*PADDLEMPI, "run", "-np", "2", "--timeline", str(output), str(program)],
        capture_output=True,
        timeout=DEADLINE,
        env=environment(),
        check=True,
    )
    done = subprocess.run(
        [*PADDLEMPI, "trace", "report", "--json", str(output)],
        capture_output=True,
        timeout=DEADLINE,
        env=environment(),
        check=True,
    )
    data = json.loads(done.stdout)
    [step] = data["steps"]
    assert step["calls"] == 3 and 98 <= step["steps"] <= 100
    late = data["late"][0]
    assert late["rank"] == 1
    # time.sleep takes 5 ms and what the kernel needs to wake the process.
    assert late["median"] == pytest.approx(5_000_000, abs=500_000)
    [first] = [finding for finding in data["findings"] if finding["kind"] == "late"]
    assert first["ranks"] == [1] and "late in each step" in first["text"]
    assert data["ranks"][0]["part"]["waited"] >= 90 * 5_000_000
