"""benchmarks/cuda.py runs over the fake driver and reports; its figures mean nothing there."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from paddlempi.testing import launch

PROGRAM = Path(__file__).resolve().parents[3] / "benchmarks" / "cuda.py"


def test_it_reports(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    fake = ["--fake", os.environ["PADDLEMPI_CUDA"], "--rounds", "1"]
    result = launch.run(2, [sys.executable, str(PROGRAM), *fake, "--json", str(file)], timeout=120)
    assert result.returncode == 0 and not result.timed_out, result.output
    assert "the figures mean nothing" in result.stdout
    record = json.loads(file.read_text())
    assert record["fake"]
    assert [row["table"] for row in record["rows"]] == ["staging", "one GPU", "small"]
    for row in record["rows"]:
        assert all(us > 0 for us in row["us"].values())
        assert all(low > 0 for ratios in row["ratios"].values() for low in ratios)
    assert set(record["not_measured"]) == {"one GPU, MPI", "gloo", "nccl", "DDP"}
