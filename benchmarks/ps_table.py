"""The time of a table's pulls and pushes in one process: another commit's, and this tree's.

    python benchmarks/ps_table.py [--before REVISION] [--pairs 30] [--on]

It builds ``benchmarks/pstable`` with the table of REVISION (``HEAD~1``) and with that of this tree,
and runs them in turn, in random order within a pair. Without ``--on`` both have an ordinary table;
with it, that of this tree has ids that come and go: ``admit_after``, ``expire_after`` and
``max_rows`` are all on, and every id has its row. Times are processor time, so other programs
matter less; the ratio of each pair is this tree's by the other's. For a pull and a push it prints
the median of the ratios and the upper bound of its one-sided 95 % confidence interval, which is one
of the ratios, by the binomial distribution of how many lie below the median.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = "benchmarks/pstable"
ON = {"admit_after": 2, "expire_after": 1 << 40}


def build(tree: Path, program: Path) -> None:
    """Build the program with the table of a tree."""
    words = [sys.executable, str(tree / "tools" / "go.py"), "build", "-o", str(program)]
    subprocess.run([*words, f"./{PROGRAM}"], cwd=tree, check=True)


def upper_bound(ratios: list[float]) -> float:
    """Return the upper bound of the median's one-sided 95 % interval; the greatest of a few."""
    n, ordered, below = len(ratios), sorted(ratios), 0.0
    for k in range(n):
        below += math.comb(n, k) / 2**n
        if below >= 0.95:
            return ordered[k]
    return ordered[-1]


def measure(program: Path, config: dict[str, object], args: argparse.Namespace) -> list[float]:
    """Return the medians of one process: a pull and a push, in ns."""
    words = [str(program), json.dumps(config), str(args.batch), str(args.rows), str(args.rounds)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    """Build both, run the pairs, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", default="HEAD~1", help="the other commit")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=21, help="of each process")
    parser.add_argument("--batch", type=int, default=65536, help="ids of a call")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--on", action="store_true", help="ids of this tree's table come and go")
    args = parser.parse_args()
    config: dict[str, object] = {
        "dim": args.dim,
        "dtype": "float32",
        "refuse": True,
        "initializer": {"name": "zeros"},
        "optimizer": {"name": args.optimizer, "learning_rate": 0.1, "epsilon": 1e-8},
    }
    mine = config | (ON | {"max_rows": 2 * args.rows} if args.on else {})
    with tempfile.TemporaryDirectory() as folder:
        tree, programs = Path(folder) / "tree", [Path(folder) / name for name in ("before", "now")]
        words = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*words, "add", "--quiet", "--detach", str(tree), args.before], check=True)
        try:
            shutil.copytree(ROOT / PROGRAM, tree / PROGRAM, dirs_exist_ok=True)
            build(tree, programs[0])
        finally:
            subprocess.run([*words, "remove", "--force", str(tree)], check=True)
        build(ROOT, programs[1])
        both = list(zip(programs, (config, mine), strict=True))
        pairs: list[list[list[float]]] = []
        for _ in range(args.pairs):
            times: list[list[float]] = [[], []]
            for which in random.sample((0, 1), 2):
                times[which] = measure(*both[which], args)
            pairs.append(times)
    for i, name in enumerate(("pull", "push")):
        ratios = [now[i] / before[i] for before, now in pairs]
        least = [min(pair[which][i] for pair in pairs) / 1000 for which in (0, 1)]
        print(
            f"{name}: least {least[0]:.0f} and {least[1]:.0f} us; ratio {min(ratios):.3f} to "
            f"{max(ratios):.3f}, median {statistics.median(ratios):.3f}, at most "
            f"{upper_bound(ratios):.3f} (95 %)"
        )


if __name__ == "__main__":
    main()
