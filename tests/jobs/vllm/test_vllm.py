"""vLLM's CPU backend, whose workers exchange their tensors over MPI (``PADDLEMPI_VLLM=1``)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from paddlempi.testing import launch

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

ENGINE = str(Path(__file__).with_name("engine.py"))
OURS = {"PADDLEMPI_VLLM": "1"}


def run(folder: Path, *words: str, **variables: str) -> tuple[dict[str, Any], str]:
    """Run the engine; return what it found, and its output."""
    # A CPU for each worker: with AVX-512 vLLM's own operators spin in shared memory.
    cpus = [*sorted(os.sched_getaffinity(0)) * 2][:2]
    bind = "|".join(map(str, cpus))
    settings = {"VLLM_CPU_OMP_THREADS_BIND": bind, "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(
        [sys.executable, ENGINE, str(folder), *words],
        env={**os.environ, **settings, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith('{"tokens"')]
    assert len(found) == 1, done.stdout
    return json.loads(found[0]), done.stdout


def test_tokens_are_those_of_vllms_own_operators(tmp_path: Path) -> None:
    theirs, _ = run(tmp_path / "theirs")
    ours, output = run(tmp_path / "ours", **OURS)
    assert "backend=paddlempi" in output
    assert len(ours["tokens"]) == 3 and len({*ours["tokens"][0]}) > 5
    assert ours == theirs


def test_a_worker_that_dies_is_named(tmp_path: Path) -> None:
    found, output = run(tmp_path / "model", "kill", **OURS)
    assert found["error"] == "EngineDeadError"
    # The engine ends within 2 s on an idle machine; vLLM itself gives the workers 4 s to end.
    assert found["after"] < 15, found
    assert "Worker failed with error 'all_reduce(" in output
    assert "rank(s) [1] died" in output


def test_bench_measures_vllms_operator(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    words = ["bench", "inference", "--rounds=2", f"--json={file}"]
    command = [sys.executable, "-m", "paddlempi", *words]
    result = launch.run(2, command, mpi="node", timeout=300)
    assert result.returncode == 0 and not result.timed_out, result.output
    found = json.loads(file.read_text())["inference"]
    # Without AVX-512 vLLM has no operators in shared memory.
    vllms = {"vllm"} if torch.cpu._is_avx512_supported() else set()
    assert found["same_tokens"] == dict.fromkeys({"paddlempi", "gloo", *vllms}, True)
    assert set(found["not_measured"]) == {"vllm"} - vllms


def test_operators_in_the_torch_of_vllm() -> None:
    """It is older than the one that the other tests have, and lacks some functions of it."""
    tests = Path(__file__).parents[2] / "ranks" / "torch" / "test_registered.py"
    command = [sys.executable, "-m", "pytest", "-q", "--mpi", "--mpi-ranks", "2", str(tests)]
    result = launch.run(2, command, mpi="node", timeout=300, cwd=tests.parents[3])
    assert result.returncode == 0 and not result.timed_out, result.output
    assert "no C functions for operators" not in result.output and " passed" in result.output
