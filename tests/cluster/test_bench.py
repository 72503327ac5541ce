"""python -m paddlempi bench in a job of several nodes, as `make bench-hosts` starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import requirements
from hosts import Hosts
from mpis import MPI, ROOT

PROGRAM = ROOT / "benchmarks" / "on_hosts.py"
WINDOWS = ROOT / "benchmarks" / "windows.py"
FEW = ("--iterations", "4", "--warmup", "1")


def test_what_the_ranks_of_several_nodes_print(openmpi: MPI, hosts: Hosts, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    words = ["all_reduce", "broadcast", "--min", "8", "--max", "1M", *FEW, "--json", file]
    program = ["-m", "paddlempi", "bench", *words]
    result = openmpi.run(hosts, (("h1", 2), ("h2", 1)), program, timeout=120)
    assert result.code == 0 and not result.timed_out, str(result)
    assert "3 ranks on 2 nodes (2 + 1)" in result.out
    record = json.loads(file.read_text())
    assert (record["nodes"], record["shape"]) == (2, "2 + 1")
    assert record["options"]["against"][:1] == ["mpi4py"]  # without being asked
    counted = {}
    for row in record["rows"]:
        if row["counted"]:
            assert row["contender"] != "paddlempi again"
            assert row["traffic"] >= 1, row
            counted[row["operation"], row["contender"], row["bytes"]] = row["traffic"]
    for name in ("all_reduce", "broadcast"):
        assert (name, "paddlempi", 1 << 20) in counted and (name, "mpi4py", 1 << 20) in counted
        # The barrier around the calls would count for more.
        assert (name, "paddlempi", 8) not in counted


def test_it_starts_on_hosts(openmpi: MPI, hosts: Hosts) -> None:
    if reason := requirements.delay_missing():
        pytest.skip(reason)
    words = ["all_reduce", "--min", "1M", "--max", "1M", "--against", "usual", *FEW]
    network = ["--rate", "10gbit", "--delay", "100us"]
    done = subprocess.run(
        [sys.executable, PROGRAM, "--mpi", "openmpi", "--shape", "2x1", *network, "--", *words],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "## openmpi, 2x1, 10gbit, 100 us away" and "(2 x 1)" in lines[1]
    row, usual, _ = (line.split() for line in lines[-3:])
    assert row[:2] == ["1048576", "paddlempi"] and usual[0] == "usual", lines
    assert min(float(row[2]), float(usual[1])) > 200, lines  # us: two messages in turn
    # Every byte crosses the network once: twice would be 2. What TCP sends again, and questions of
    # ranks that wait on a busy machine, were 0.07 once.
    assert 1 <= float(row[-2]) < 1.5, row


def test_a_table_of_each_shape_and_the_records(openmpi: MPI, hosts: Hosts, tmp_path: Path) -> None:
    file = tmp_path / "build" / "hosts.json"
    words = ["all_reduce", "all_to_all", "pingpong", "barrier", "--sizes", "8,1M", *FEW, "--table"]
    done = subprocess.run(
        [sys.executable, PROGRAM, "--mpi", "openmpi", "--json", file, "--", *words],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    two, four = done.stdout.split("## openmpi, ")[1:]
    runs = json.loads(file.read_text())["runs"]
    for text, run, shape in zip((two, four), runs, ("2 x 1", "2 x 2"), strict=True):
        assert run["shape"] == shape and f"({shape})" in text
        assert run["mpi"]["name"] and len(run["load"]) == 3 and run["versions"]["numpy"]
        table = [line.split() for line in text.splitlines() if line[0] not in "#n0123456789"]
        assert [line[0] for line in table] == [
            *("operation", "all_reduce", "all_reduce", "all_to_all", "all_to_all"),
            *("pingpong", "pingpong", "barrier"),
        ]
        of_pair = [row for row in run["rows"] if row["operation"] == "pingpong" and row["counted"]]
        assert of_pair and all(1 <= row["traffic"] < 1.5 for row in of_pair)


def test_windows_are_measured(openmpi: MPI, tmp_path: Path) -> None:
    """benchmarks/windows.py on one node and on hosts; its figures mean nothing with two rounds."""
    tools = [ROOT / ".venv-tools" / "bin" / "python", ROOT / "tools" / "go.py", "--cc"]
    cc = subprocess.run(tools, capture_output=True, text=True, check=True).stdout.strip()
    file = tmp_path / "record.json"
    words = ["--sizes", "65536", "--rounds", "2", "--computing", "1", "--json", str(file)]
    started = {
        "one node": ["-m", "paddlempi.testing.launch", "-np", "2", "--", "python", WINDOWS],
        "hosts": [PROGRAM, "--mpi", "openmpi", "--shape", "2x1", "--program", WINDOWS, "--"],
    }
    for where, command in started.items():
        done = subprocess.run(
            [openmpi.python, *command, *words],
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "CC": cc},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        rows = json.loads(file.read_text())["rows"]
        assert [row["bytes"] for row in rows] == [65536]
        for row in rows:
            names = ["paddlempi", "C", "C, allocated", "mpi4py"]
            assert all(row[name]["p50_us"] > 0 for name in names)
            assert ("memcpy" in row) == (where == "one node")
            # While rank 1 computes for 2 s, our puts are executed, and MPI's may wait.
            assert 0 < row["computing_ms"]["paddlempi"] < 1000


def test_it_says_what_is_missing() -> None:
    """Another user than root, who cannot make hosts."""
    program = f"import os, runpy; os.geteuid = lambda: 1; runpy.run_path({str(PROGRAM)!r}, "
    done = subprocess.run(
        [sys.executable, "-c", program + "run_name='__main__')"], capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr == f"on_hosts: {requirements.NOT_ROOT}\n"
