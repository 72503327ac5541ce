"""python -m paddlempi bench ps: every level measures, checks and reports, in a short form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from paddlempi.testing import launch

pytestmark = pytest.mark.launcher("commands of python -m paddlempi", only=["openmpi"])

FEW = ("--dims", "5", "--batches", "300", "--rows", "2000", "--rounds", "3", "--sizes", "40,1M")
BENCH = (sys.executable, "-m", "paddlempi", "bench", "ps")


def measured(level: str, ranks: int, folder: Path, *more: str) -> tuple[dict[str, Any], str]:
    """Return the record of a level, and what it printed."""
    file = folder / "record.json"
    argv = [*BENCH, "--level", level, *FEW, *more, "--json", str(file)]
    result = launch.run(ranks, argv, timeout=120)
    assert not result.timed_out and result.returncode == 0, result.output
    record = json.loads(file.read_text())
    for row in record["rows"]:
        assert 0 < row["least_us"] <= row["p50_us"] <= row["p99_us"]
    assert len(record["load"]) == 2
    return record, result.stdout


def of(record: dict[str, Any], contender: str) -> list[dict[str, Any]]:
    return [row for row in record["rows"] if row["contender"] == contender]


def check_absent(record: dict[str, Any], printed: str, rival: str, contenders: list[str]) -> None:
    """What is not measured is told, with the reason."""
    for contender in contenders:
        was_measured = bool(of(record, contender))
        assert was_measured != (rival in record["not_measured"])
        assert was_measured == (f"not measured: {rival}: " not in printed)


def test_tables(tmp_path: Path) -> None:
    """Tables need no launcher."""
    file = tmp_path / "record.json"
    few = ("--dims", "16,5", "--batches", "300", "--rows", "5000", "--rounds", "3")
    done = subprocess.run(
        [*BENCH, *few, "--json", str(file)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads(file.read_text())
    assert [(row["dim"], row["what"]) for row in of(record, "paddlempi")] == [
        (dim, what) for dim in (16, 5) for what in ("lookup", "sgd", "row-wise adagrad")
    ]
    assert {size["dim"] for size in record["bytes_of_a_row"]} == {16, 5}
    for name in ("EmbeddingBag", "fbgemm TBE"):
        check_absent(record, done.stdout, name, [name])


@pytest.mark.parametrize("level", ["transport", "dense"])
def test_two_ranks(level: str, tmp_path: Path) -> None:
    record, printed = measured(level, 2, tmp_path)
    key, cases = {"transport": ("ids", [300]), "dense": ("bytes", [40, 1 << 20])}[level]
    assert [(row[key], row["what"]) for row in of(record, "paddlempi")] == [
        (case, what) for case in cases for what in ("pull", "push", "pull + push")
    ]
    assert "gRPC" in record["not_measured"]  # its program is not there
    grpcio = ["grpcio, nothing done", "grpcio, whole batch"]
    check_absent(record, printed, "grpcio", grpcio + ["grpcio, ids once"] * (level == "transport"))
    if level == "transport":
        for name in ("Redis", "torch RPC"):
            check_absent(record, printed, name, [name])


def test_administration_while_threads_wait_in_mpi(tmp_path: Path) -> None:
    record, _ = measured("rpc", 2, tmp_path)
    names = ["no threads in MPI", "8 threads in MPI", "paddlempi again"]
    assert [row["contender"] for row in record["rows"]] == names
    assert all(row["rounds"] == 150 for row in record["rows"])  # three blocks
    # With too few Go processors a call waits for the timer thread of the runtime: it took 6 to 60
    # times as long. Now it takes 1.3 times, which is waiting for a CPU.
    quiet, blocked, _ = record["rows"]
    assert blocked["p50_us"] < 5 * quiet["p50_us"]


def test_numbers_of_servers(tmp_path: Path) -> None:
    record, _ = measured("servers", 3, tmp_path)
    assert [(row["what"], row["contender"]) for row in record["rows"]] == [
        (what, name)
        for what in ("pull", "push", "pull + push")
        for name in ("1 server", "2 servers")
    ]
    assert all(row["rounds"] == 5 for row in record["rows"])  # one in each session


def test_servers_of_two_trainers(tmp_path: Path) -> None:
    record, _ = measured("servers", 3, tmp_path, "--trainers", "2")
    assert [row["contender"] for row in record["rows"]] == ["1 server"] * 3


def test_modes_with_a_slow_trainer(tmp_path: Path) -> None:
    file = tmp_path / "modes.svg"
    record, printed = measured("modes", 3, tmp_path, "--plot", str(file), "--rounds", "60")
    assert [(run["mode"], run["slow"]) for run in record["modes"]] == [
        (mode, slow)
        for slow in (2, 10)
        for mode in ("sync", "ssp", "async", "dc_asgd", "half_async", "geo")
    ]
    for run in record["modes"]:
        assert run["mode"] in printed and len(run["steps"]) == 2
        assert run["curve"][-1][1] < run["curve"][0][1], run
        assert len(run["curve"]) == run["steps"][0]
        if run["mode"] == "sync":
            assert abs(run["steps"][0] - run["steps"][1]) <= 1
    assert file.read_text().count("<polyline") == 12


def test_levels_are_for_a_number_of_ranks() -> None:
    result = launch.run(1, [*BENCH, "--level", "dense"], timeout=60)
    assert result.returncode == 1
    assert "--level dense is for two ranks" in result.stderr


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    argv = [*BENCH, "--level", "dense", "--json", str(tmp_path / "absent" / "x.json")]
    result = launch.run(2, argv, timeout=60)
    assert result.returncode == 1 and result.output.count("there is no folder") == 1
