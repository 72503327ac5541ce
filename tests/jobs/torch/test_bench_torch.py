"""python -m paddlempi bench of torch: operations and steps over MPI and gloo, checked."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import job
import pytest
from paddlempi.testing import launch


def reported(file: Path, *words: str) -> dict[str, Any]:
    """Return the record of a run that is compared with plain MPI and gloo."""
    argv = [sys.executable, "-m", "paddlempi", "bench", *words, "--json", str(file)]
    result = launch.run(2, [*argv, "--against", "mpi,gloo"], timeout=300)
    assert result.returncode == 0 and not result.timed_out, result.output
    record: dict[str, Any] = json.loads(file.read_text())
    return record


@pytest.mark.launcher("also the bare MPI is measured")
def test_it_reports(tmp_path: Path) -> None:
    import torch  # here, because every worker of pytest imports the module

    if not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    words = ["all", "--framework", "torch", "--dtype", "bfloat16", "--min", "64", "--max", "64"]
    record = reported(tmp_path / "calls.json", *words, "--iterations", "4")
    measured = {(row["operation"], row["contender"]): row for row in record["rows"]}
    for name in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "sendrecv", "barrier"):
        assert measured[name, "paddlempi"]["p50_us"] > 0
        assert (name, "gloo") in measured or f"{name}, gloo" in record["not_measured"]
    assert measured["all_reduce", "paddlempi"]["path"] == "inline"
    kinds = ("ddp", "fsdp2", "hsdp")
    words = ["step", *kinds, "--model", "mlp-1M", "--rounds", "2"]
    record = reported(tmp_path / "steps.json", *words)
    for step, kind, collectives in zip(record["steps"], kinds, (1, 12, 16), strict=True):
        assert (step["kind"], step["model"], step["rounds"]) == (kind, "mlp-1M", 2)
        assert step["what"] == f"1.0 MiB of gradients, {collectives} collectives a step"
        names = {"no communication", "barrier", "paddlempi", "paddlempi again"}
        assert set(step["ms"]) - {"gloo", "mpi"} == {*names, "collectives alone"}
        assert ("mpi" in step["tanc_ms"]) != ("mpi" in step["absent"]), step  # absent: hsdp
        assert ("mpi" in step["absent"]) == (kind == "hsdp" or record["mpi"] is None), step
        assert "gloo" in step["ms"] or step["absent"]["gloo"]
        assert set(step["tanc_ms"]) - {"gloo", "mpi"} == {"barrier", "paddlempi"}
        assert min(step["ms"].values()) > 0


def test_a_model_that_is_not_there() -> None:
    words = ["step", "ddp", "fsdp2", "--model", "mlp-1M,mlp-9M"]
    result = job.run(2, [*job.PADDLEMPI, "bench", *words], timeout=200).result
    assert result.returncode == 1, result.output
    assert result.stderr.count("bench: --model 'mlp-9M' is none of mlp-1M, mlp-16M, trans") == 1


def test_the_model_of_parameter_servers(tmp_path: Path) -> None:
    """TorchRec is in an environment of its own (make bench-ps), so here it is absent."""
    file = tmp_path / "record.json"
    words = ["ps", "--level", "model", "--dims", "4", "--batches", "80", "--rows", "400"]
    words += ["--rounds", "3", "--json", str(file)]
    result = job.run(2, [*job.PADDLEMPI, "bench", *words], timeout=200).result
    assert result.returncode == 0, result.output
    record = json.loads(file.read_text())
    names = {row["contender"] for row in record["rows"]}
    assert {"paddlempi", "paddlempi again"} <= names
    for name in ("TorchRec, gloo", "TorchRec, paddlempi"):
        assert (name in names) != (name in record["not_measured"])
    (losses,) = record["losses"]
    assert losses["samples"] == 10 and losses["losses"].keys() == names
    assert losses["losses"]["paddlempi"] == losses["losses"]["paddlempi again"]
    assert all(0 < loss < 2 for loss in losses["losses"]["paddlempi"])
