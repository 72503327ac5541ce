"""python -m paddlempi bench ps: it measures and checks without a launcher."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.one_mpi


def test_bench_ps(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    few = ("--dims", "16,5", "--batches", "300", "--rows", "5000", "--rounds", "3")
    done = subprocess.run(
        [sys.executable, "-m", "paddlempi", "bench", "ps", *few, "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(file.read_text())
    ours = [row for row in record["rows"] if row["contender"] == "paddlempi"]
    assert [(row["dim"], row["what"]) for row in ours] == [
        (dim, what) for dim in (16, 5) for what in ("lookup", "sgd", "row-wise adagrad")
    ]
    assert all(0 < row["least_us"] <= row["p50_us"] for row in record["rows"])
    assert {size["dim"] for size in record["bytes_of_a_row"]} == {16, 5}
    for name in ("EmbeddingBag", "fbgemm TBE"):
        measured = any(row["contender"] == name for row in record["rows"])
        assert measured != (name in record["not_measured"])
        assert measured == (f"not measured: {name}" not in done.stdout)
