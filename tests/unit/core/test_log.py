"""The log: silent by default, in a program's own log, and where the variables say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
if "logging" in sys.argv:
    import logging
    logging.basicConfig(level=logging.INFO, format="mine %(name)s %(message)s")
    if "level" in sys.argv:
        logging.getLogger("paddlempi").setLevel("INFO")
import paddlempi as dist
from paddlempi import _log

try:
    dist.init_process_group()
except dist.errors.ArgumentError as error:
    sys.exit(f"ArgumentError: {error}")
part = dist.new_group([0])
_log.warn("of 5 %", stacklevel=1)
if dist.get_rank() == 0:
    dist.destroy_process_group(part)
dist.destroy_process_group()
"""


def job(folder: Path, *words: str, ranks: int = 1, **variables: str) -> str:
    """Run the program; return what it writes to stderr. Warnings are not shown."""
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-W", "ignore", "-m", "paddlempi", "run", "-np", str(ranks)]
    env = os.environ | variables
    done = subprocess.run(
        [*command, "program.py", *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == ""
    assert done.returncode == ("ArgumentError" in done.stderr), done.stderr
    return done.stderr


def test_silent_by_default(tmp_path: Path) -> None:
    assert job(tmp_path) == ""
    assert job(tmp_path, "logging") == "", "also beside a root logger that writes, as Paddle's does"


def test_a_file_for_each_rank(tmp_path: Path) -> None:
    assert job(tmp_path, ranks=2, PADDLEMPI_LOG_FILE="log.%h.%p") == ""
    logs = sorted(path.read_text() for path in tmp_path.glob(f"log.{os.uname().nodename}.*"))
    assert len(logs) == 2
    first = next(text for text in logs if "rank 0 INFO" in text)
    for line in (
        r"rank \? INFO: init_process_group: the world is by store: ",
        r"rank 0 INFO: rank 0 of 2, rank 0 of 2 of its node, messages go by node, core \w+",
        r"rank 0 INFO: no MPI: ",
        r"rank 0 INFO: group 1 begins: rank 0 of the ranks range\(0, 2\)",
        r"rank 0 INFO: group 2 begins: rank 0 of the ranks \(0,\)",
        r"rank 0 WARNING: of 5 %",
        r"rank 0 INFO: group 2 has ended",
        r"rank 0 INFO: the world has ended",
    ):
        assert re.search(line, first), first
    (second,) = set(logs) - {first}
    assert "rank 1 WARNING: of 5 %" in second and "group 2" not in second


def test_levels_on_stderr(tmp_path: Path) -> None:
    told = job(tmp_path, PADDLEMPI_LOG="warning").splitlines()
    assert len(told) == 1 and told[0].endswith(" rank 0 WARNING: of 5 %")


def test_the_log_of_the_program(tmp_path: Path) -> None:
    told = job(tmp_path, "logging", "level")
    assert told.startswith("mine paddlempi init_process_group: the world is by ")
    assert "mine paddlempi the world has ended\n" in told


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("PADDLEMPI_LOG", "loud", "PADDLEMPI_LOG=loud: it must be one of debug, info, warning, er"),
        ("PADDLEMPI_LOG_FILE", "/absent/%p", "PADDLEMPI_LOG_FILE=/absent/%p: /absent/"),
    ],
)
def test_values_that_mean_nothing(variable: str, value: str, text: str, tmp_path: Path) -> None:
    assert f"ArgumentError: {text}" in job(tmp_path, **{variable: value})
