"""python -m paddlempi bench on two ranks: it measures and reports."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from paddlempi.testing import launch


def bench(*words: str, status: int = 0, **env: str) -> launch.Result:
    argv = [sys.executable, "-m", "paddlempi", "bench", *words]
    result = launch.run(2, argv, timeout=120, env=env)
    assert not result.timed_out and result.returncode == status, result.output
    return result


@pytest.mark.launcher("a command that also measures MPI", only=["openmpi"])
def test_the_table_and_the_record(tmp_path: Path) -> None:
    file, picture = tmp_path / "record.json", tmp_path / "picture.svg"
    few = ("--max", "4096", "--iterations", "20", "--warmup", "2")
    result = bench("all_reduce", "broadcast", *few, "--against", "mpi,mpi4py", "--json", str(file))
    record = json.loads(file.read_text())
    assert (record["ranks"], record["nodes"], record["options"]["max"]) == (2, 1, 4096)
    sizes = [8 << i for i in range(10)]
    names = ["paddlempi", "mpi", "mpi4py", "paddlempi again"]
    rows = record["rows"]
    found = [(row["operation"], row["bytes"], row["contender"]) for row in rows]
    assert found == [(o, s, n) for o in ("all_reduce", "broadcast") for s in sizes for n in names]
    for row in rows:
        assert 0 < row["p50_us"] <= row["p99_us"] and row["calls"] == 20
        assert row["path"] == {"mpi4py": "", "mpi": "mpi"}.get(row["contender"], "inline")
        assert row["bus_gbps"] == row["algorithm_gbps"]  # of two ranks, for these operations
        assert (row["ratio"] is None) == (row["contender"] == "paddlempi")
        assert (row["differs"] is None) == row["contender"].startswith("paddlempi")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert sum(line[:2] == ["4096", "paddlempi"] for line in lines) == 2
    assert "\r" not in result.stderr  # the progress bar is for terminals

    bench("reduce_scatter", *few, "--same-buffer", "--dtype", "int32", "--plot", str(picture))
    drawn = picture.read_text()
    assert drawn.count("<polyline") == 2 and ">memcpy<" in drawn


@pytest.mark.launcher("a command that also measures MPI", only=["openmpi"])
def test_every_operation_and_16_bit_floats() -> None:
    words = ["all", "--min", "64", "--max", "64", "--iterations", "4", "--dtype", "float16"]
    result = bench(*words, "--against", "mpi")
    found = re.findall(r"^# (\w+), numpy float16$", result.stdout, re.M)
    assert len(found) == 11
    ours = r"^# (\w+), .*\n.*\n +\d+  paddlempi .* (\S+)$"
    paths = dict(re.findall(ours, result.stdout, re.M))
    assert {*paths.values()} == {"inline", "-"} and paths["sendrecv"] == paths["pingpong"] == "-"
    assert "mpi: the algorithm 'mpi' cannot serve this call; 'inline' did" in result.stdout
    assert len(re.findall(r"^ +mpi  ", result.stdout, re.M)) == 6  # not 3 reductions and messages


@pytest.mark.launcher("a command that also measures MPI", only=["openmpi"])
def test_plain_mpi_is_not_what_the_user_forces() -> None:
    words = ["all_gather", "--min", "64", "--max", "64", "--iterations", "4", "--against", "mpi"]
    result = bench(*words, PADDLEMPI_ALGO="all_gather:mpi_uneven")
    paths = re.findall(r"(paddlempi|mpi|again)  .* (mpi\w*)(?:  .*)?$", result.stdout, re.M)
    assert paths == [("paddlempi", "mpi_uneven"), ("mpi", "mpi"), ("again", "mpi_uneven")]


@pytest.mark.launcher("a command that also measures MPI", only=["openmpi"])
@pytest.mark.parametrize("tool", ["all_reduce", "io"])
def test_an_error_is_told_once(tool: str, tmp_path: Path) -> None:
    result = bench(tool, "--json", str(tmp_path / "absent" / "x.json"), status=1)
    assert result.output.count("bench: ") == 1
    assert f"there is no folder {tmp_path / 'absent'}" in result.stderr
