"""python -m paddlempi bench io: every contender is measured and checked, in a short form."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from paddlempi.testing import launch

pytestmark = pytest.mark.launcher("a command of python -m paddlempi", only=["openmpi"])


def test_files(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    command = [sys.executable, "-m", "paddlempi", "bench", "io", "--bytes", "32M"]
    command += ["--iterations", "2", "--folder", str(tmp_path), "--json", str(record)]
    result = launch.run(2, command, timeout=120)
    assert not result.timed_out and result.returncode == 0, result.output
    found = json.loads(record.read_text())
    assert found["bytes"] == 32 << 20 and found["ranks"] == 2
    for kind in ("save_s", "load_s"):
        assert {"paddlempi"} < found[kind].keys()
        assert all(len(times) == 2 and min(times) > 0 for times in found[kind].values())
    with_torch = find_spec("torch") is not None
    assert ("DCP, FileSystemWriter" in found["save_s"]) == with_torch
    assert with_torch or "not measured: DCP: torch is not installed" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]
