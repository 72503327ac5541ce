"""python -m paddlempi bench of Paddle: operations and steps over MPI and gloo, checked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from paddlempi.testing import launch


def test_it_reports(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    words = ["all_reduce", "reduce_scatter", "gather", "--framework", "paddle"]
    words += ["--min", "64", "--max", "64", "--iterations", "4", "--against", "mpi,gloo"]
    words += ["--step", "paddle", "--model", "mlp-4M,sparse-embedding", "--rounds", "2"]
    argv = [sys.executable, "-m", "paddlempi", "bench", *words, "--json", str(file)]
    result = launch.run(2, argv, timeout=200)
    assert result.returncode == 0 and not result.timed_out, result.output
    record = json.loads(file.read_text())
    measured = {(row["operation"], row["contender"]) for row in record["rows"]}
    ours = {(o, c) for o in words[:3] for c in ("paddlempi", "mpi", "paddlempi again")}
    assert measured == ours | {("all_reduce", "gloo"), ("gather", "gloo")}
    assert "reduce_scatter" in record["not_measured"]["reduce_scatter, gloo"]
    mlp, sparse = record["steps"]
    assert mlp["what"] == "4.0 MiB of gradients, 1 collectives a step"
    assert set(mlp["tanc_ms"]) == {"barrier", "paddlempi", "gloo"}
    assert set(sparse["tanc_ms"]) == {"barrier", "paddlempi"}
    assert "sparse" in sparse["absent"]["gloo"]
