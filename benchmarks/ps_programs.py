"""What a program of examples/ reaches with parameter servers in each mode, and when.

    python benchmarks/ps_programs.py                         # or: make bench-ps-programs
    python benchmarks/ps_programs.py --program words --modes sync async --rounds 3

In each round one process trains alone, and then 2 trainers, 2 servers and a master train in each
mode. It prints a table in Markdown: the quality, how far it is from that of one process, when the
quality first was as near to the last one of one process as it must be, and the ratio of the times
until then in the same round. --json keeps all rounds, and adds those that the file has.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from paddlempi.testing import run

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MODES = ("sync", "async", "half_async", "ssp", "geo", "dc_asgd")
ROLES = "trainer:2,pserver:2,master:1"
# How far a quality may be from that of one process, and whether a higher one is better.
PROGRAMS = {"dlrm": (0.005, True), "words": (0.03, False), "ratings": (0.015, False)}
ALONE = {"one process": 1, "one process, batches of two": 2}

Course = dict[str, Any]


def train(program: str, what: str, out: Path, shards: list[str]) -> Course:
    """Train alone, or in a mode. Return the course."""
    words = [str(EXAMPLES / f"train_ps_{program}.py"), f"--out={out}", *shards]
    if what in ALONE:
        command = [sys.executable, *words, f"--trainers={ALONE[what]}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    else:
        roles = [sys.executable, "-m", "paddlempi", "run", "--roles", ROLES]
        result = run(5, [*roles, *words, f"--mode={what}"], timeout=600)
        if result.returncode:
            raise SystemExit(f"{what}: status {result.returncode}\n{result.output}")
    course: Course = json.loads(out.read_text())
    return course


def spread(values: list[float], places: int) -> str:
    """Return the median, the least and the greatest of some values."""
    low, middle, high = (f"{f(values):.{places}f}" for f in (min, statistics.median, max))
    return f"{middle} ({low} to {high})" if len(values) > 1 else middle


def row(what: str, rounds: list[dict[str, Course]], near: float, higher: bool) -> str:
    """Return the line of one way to train."""
    sign = 1 if higher else -1
    qualities, apart, reached, ratios = [], [], [], []
    for found in rounds:
        if what not in found:
            continue
        course, one = found[what], found["one process"]["quality"]
        qualities.append(course["quality"])
        apart.append(course["quality"] - one)
        first, alone = (
            next((at for at, now in c["points"] if sign * now >= sign * one - near), float("inf"))
            for c in (course, found["one process"])
        )
        reached.append(first)
        ratios.append(alone / first)
    farthest = f"{max(apart, key=abs):+.4f}"
    return (
        f"| {what} | {spread(qualities, 4)} | {farthest} | {spread(reached, 1)} | "
        f"{spread(ratios, 2)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", choices=PROGRAMS, default="dlrm")
    parser.add_argument("--modes", nargs="+", default=[*list(ALONE)[1:], *MODES])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--shards", help="how much data there is; default: that of the program")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    near, higher = PROGRAMS[options.program]
    shards = [f"--shards={options.shards}"] if options.shards else []
    rounds = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            rounds.append({})
            for what in ("one process", *options.modes):
                rounds[-1][what] = train(options.program, what, Path(folder) / "out.json", shards)
                loads.append(os.getloadavg()[0])
                if options.json:
                    options.json.write_text(json.dumps(rounds))
    print(f"{len(rounds)} rounds; a load of {min(loads):.0f} to {max(loads):.0f}\n")
    print(f"| | quality | apart, at most | seconds to within {near} | one process : it |")
    print("|---|---|---|---|---|")
    for what in dict.fromkeys(name for found in rounds for name in found):
        print(row(what, rounds, near, higher))


if __name__ == "__main__":
    main()
