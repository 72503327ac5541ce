"""A job under torch's profiler is recorded: both files, on one clock, have the same operations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from outside import environment
from paddlempi import trace
from paddlempi.trace import clock, kineto

PADDLEMPI = [sys.executable, "-m", "paddlempi"]
DEADLINE = 100
CALLS = 100

PROGRAM = f"""
import sys, time
import torch
import torch.distributed as dist
import paddlempi.torch
from torch.profiler import ProfilerActivity, profile

dist.init_process_group("mpi")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
x = torch.ones(1 << 16)
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for i in range({CALLS}):
        time.sleep(0.002)
        dist.all_reduce(x)
        model(torch.ones(4, 300)).sum().backward()
profiler.export_chrome_trace(f"{{sys.argv[1]}}/rank{{dist.get_rank()}}.json")
dist.destroy_process_group()
"""


@pytest.mark.launcher("run --timeline")
def test_spans_of_torch_lie_on_what_was_recorded(tmp_path: Path) -> None:
    program, output, folder = tmp_path / "program.py", tmp_path / "run.json", tmp_path / "torch"
    program.write_text(PROGRAM)
    folder.mkdir()
    command = [*PADDLEMPI, "run", "-np", "2", "--timeline", str(output), str(program), str(folder)]
    run(command)
    timeline = clock.align(trace.load(output))
    found, left = kineto.read_folder(folder, timeline)
    assert [one.rank for one in found] == [0, 1] and left == []
    for one in found:
        agreed = kineto.agreement(timeline, one)
        assert agreed.spans >= 2 * CALLS  # DDP's too
        # On an idle machine 99 of 100 are nearer than 50 us.
        assert agreed.within(5_000_000) > 0.8
        assert agreed.clocks < 1_000_000

    merged = tmp_path / "merged.json"
    run([*PADDLEMPI, "trace", "merge", str(output), "--torch", str(folder), "-o", str(merged)])
    events = json.loads(merged.read_text())["traceEvents"]
    names = {(event["pid"], event.get("name")) for event in events}
    assert {(0, "all_reduce"), (1, "all_reduce")} <= names
    assert any(name == "mpi:all_reduce" for _, name in names)


def run(command: list[str]) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE, env=environment(), check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
