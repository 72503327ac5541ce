"""python -m paddlempi bench of Paddle: operations and steps over MPI and gloo, checked."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from paddlempi.testing import launch


def reported(file: Path, *words: str) -> dict[str, Any]:
    """Return the record of a run that is compared with plain MPI and gloo."""
    argv = [sys.executable, "-m", "paddlempi", "bench", *words, "--json", str(file)]
    result = launch.run(2, [*argv, "--against", "mpi,gloo"], timeout=200)
    assert result.returncode == 0 and not result.timed_out, result.output
    record: dict[str, Any] = json.loads(file.read_text())
    return record


def test_it_reports(tmp_path: Path) -> None:
    words = ["all_reduce", "reduce_scatter", "gather", "--framework", "paddle"]
    few = ["--min", "64", "--max", "64", "--iterations", "4"]
    record = reported(tmp_path / "calls.json", *words, *few)
    measured = {(row["operation"], row["contender"]) for row in record["rows"]}
    ours = {(o, c) for o in words[:3] for c in ("paddlempi", "mpi", "paddlempi again")}
    assert measured == ours | {("all_reduce", "gloo"), ("gather", "gloo")}
    assert "reduce_scatter" in record["not_measured"]["reduce_scatter, gloo"]
    words = ["step", "paddle", "--model", "mlp-4M,sparse-embedding", "--rounds", "2"]
    mlp, sparse = reported(tmp_path / "steps.json", *words)["steps"]
    assert mlp["what"] == "4.0 MiB of gradients, 1 collectives a step"
    assert set(mlp["tanc_ms"]) == {"barrier", "paddlempi", "gloo"}
    assert set(sparse["tanc_ms"]) == {"barrier", "paddlempi"}
    assert "sparse" in sparse["absent"]["gloo"]
