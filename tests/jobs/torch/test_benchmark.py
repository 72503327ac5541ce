"""benchmarks/torch_overhead.py runs, checks its results and reports. Speed is not tested."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from paddlempi.testing import launch

PROGRAM = Path(__file__).resolve().parents[3] / "benchmarks" / "torch_overhead.py"


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_it_reports(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    argv = [sys.executable, str(PROGRAM), "--quick", "--json", str(file)]
    result = launch.run(2, argv, timeout=300)
    assert result.returncode == 0 and not result.timed_out, result.output
    record = json.loads(file.read_text())
    rows = {(row["operation"], row["bytes"]): row for row in record["rows"]}
    operations = [
        "all_reduce",
        "isend/irecv",
        "all_gather_into_tensor",
        "reduce_scatter_tensor",
        "all_to_all_single",
        "broadcast",
    ]
    expected = [(name, size) for name in operations for size in (8, 65536)]
    assert list(rows) == [*expected, ("DDP step", None), ("FSDP2 step", None)]
    for key, row in rows.items():
        assert row["us"]["paddlempi"] > 0
        assert key[1] is None or row["us"]["noop"] > 0
        gloo = row["us"].get("gloo", 0) > 0
        assert gloo or f"{key[0]}, gloo" in record["not_measured"]
        assert gloo == ("gloo_ratio" in row)
    assert "share_us" in rows["all_reduce", 8]
    for name, _ in rows:
        assert name in result.stdout
