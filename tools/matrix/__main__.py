"""What the Makefile calls: environments, and the table of the tests (``tools/matrix --help``).

It needs nothing but Python 3.10 and its venv.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import document
import environments
import groups
import lanes
from environments import ROOT, LeftOut

QUICK = ("quick-go", "quick-unit", "quick-ranks")
FRONTS = {
    "torch": "torch",
    "paddle": "tests",
    "jax": "jax",
    "programs": "programs",
    "vllm": "vllm",
    "docs": "programs",
}


def results(folder: Path, *groups: str) -> int:
    """Print the closing lines of groups, or of all; then also write results.json."""
    words = [sys.executable, str(ROOT / "tools" / "results.py"), str(folder), *groups]
    return subprocess.run(words).returncode


def run_tier(name: str) -> int:
    """Run a tier; ``ci`` goes on where `make test` has ended."""
    chosen = [groups.GROUPS[group] for group in QUICK] if name == "quick" else groups.of_tier(name)
    before = lanes.RESULTS / "tier.json"
    done = json.loads(before.read_text()) if name == "ci" and before.exists() else None
    if done is not None:  # `.ci/run` has called `make test` before
        names = {path.name.partition(".")[0] for path in lanes.RESULTS.glob("*.group.json")}
        chosen = [group for group in chosen if group.name not in names]
    wall, cpu = groups.BUDGETS.get(name, (None, None))
    if name == "all":
        os.environ["TEST_ALL"] = "1"
    status = lanes.run(chosen, {"tier": name, "wall": wall, "cpu": cpu}, after=done)
    return results(lanes.RESULTS) or status


def run_named(name: str) -> int:
    """Run the groups of a verb `make test-NAME`, under the MPIs and ranks that are asked for."""
    if name in groups.TIERS or name == "quick":
        return run_tier(name)
    chosen = groups.named(name)
    mpis, ranks = (os.environ.get(variable, "").split() for variable in ("MPIS", "RANKS"))
    if (mpis or ranks) and name not in groups.GROUPS:
        family = [group for group in groups.GROUPS.values() if group.family == name]
        wanted = {g.name: g for g in (family if ranks else chosen)}.values()
        chosen = [
            group
            for group in wanted
            if (not mpis or (group.mpi or group.environment.partition(":")[0]) in mpis)
            and (not ranks or str(group.ranks) in ranks)
        ]
    if not chosen:
        families = sorted({group.family for group in groups.GROUPS.values()})
        print(f"make test-{name}: no such tests; there are {', '.join(families)}", file=sys.stderr)
        return 2
    status = lanes.run(chosen)
    return results(lanes.RESULTS, *(group.name for group in chosen)) or status


def make(names: list[str]) -> int:
    """Make things; 3 and the reason as the last line if this machine cannot."""
    try:
        environments.make(names)
    except LeftOut as reason:
        print(reason)
        return 3
    except subprocess.CalledProcessError as error:
        print(
            f"tools/matrix: {' '.join(map(str, error.cmd))}: status {error.returncode}",
            file=sys.stderr,
        )
        return 1
    return 0


def run_in(name: str, words: list[str], ranks: int = 0) -> int:
    """Replace this process by a command in an environment, as ranks if ``ranks`` is not 0."""
    if status := make([*name.split(",")]):
        return status
    environment = name.split(",")[0].partition(":")[0]
    python = environments.python(environment)
    if ranks:
        words = ["-m", "paddlempi.testing.launch", "-np", str(ranks), "--", *words]
    print("+", python.replace(f"{ROOT}/", ""), *words, flush=True)
    env = environments.variables(environment)
    if "fake-cuda" in name or "tools" in name:
        env["CC"] = environments.c_compiler()
    os.chdir(ROOT)
    os.execve(python, [python, *words], env)
    raise AssertionError("execve does not return")


def try_one(test: str, mpi: str, ranks: int) -> int:
    """Run one test: on ranks, or as one that starts its jobs itself."""
    test = as_path(test)
    front = next((part for key, part in FRONTS.items() if f"/{key}" in test), "tests")
    on_ranks = test.startswith(("tests/ranks/", "tests/gpu/"))
    environment = "openmpi" if mpi == "node" or front in ("torch", "programs") else mpi
    environment = front if front in ("jax", "vllm") else environment
    environment = "docs" if "tests/site" in test else environment
    needs = environment if environment == "docs" else f"{environment}:{front}"
    needs += ",fake-cuda" if "cuda" in test else ""
    words = ["python"] if on_ranks else []
    words += [
        "-m",
        "pytest",
        "-q",
        *(["--mpi", "--mpi-ranks", str(ranks)] if on_ranks else []),
        test,
    ]
    if mpi == "node" and on_ranks:
        words = ["-m", "paddlempi.testing.launch", "--mpi", "node", "-np", str(ranks), "--", *words]
        return run_in(needs, words)
    return run_in(needs, words, ranks if on_ranks else 0)


def as_path(test: str) -> str:
    """Return the path of a test; results name it by its module: tests.unit.core.test_x::test_y."""
    if "/" in test.partition("::")[0]:
        return test
    module, _, name = test.partition("::")
    return f"{module.replace('.', '/')}.py" + (f"::{name}" if name else "")


def show_commands(name: str) -> int:
    """Print the commands of groups, a line each, as a shell takes them in this folder."""
    for group in groups.of_tier(name) if name in groups.TIERS else groups.named(name):
        print(shlex.join(group.command(lanes.RESULTS)).replace(f"{ROOT}/", ""))
    return 0


def show_help() -> int:
    """Print the verbs of the Makefile, and the groups of the table."""
    for title, verb, text in re.findall(
        r"^(?:# (.*)\n)?## (\S+) +(.*)$", (ROOT / "Makefile").read_text(), re.M
    ):
        if title:
            print(f"\n{title}")
        print(help_line(verb, text))
    print("\nTests by name: make test-NAME")
    print('  MPIS="openmpi mpich" and RANKS="2 3" choose among them')
    families: dict[str, str] = {}
    for group in groups.GROUPS.values():
        families.setdefault(group.family, group.shows)
    for family, shows in families.items():
        print(help_line(f"test-{family}", shows))
    return 0


def help_line(verb: str, text: str) -> str:
    """Return a verb and what it does, in lines of 80 columns."""
    start = f"  make {verb:17} "
    more = " " * (len("  make ") + 18)
    return textwrap.fill(text, 80, initial_indent=start, subsequent_indent=more)


def main(arguments: list[str]) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="tools/matrix", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    test = verbs.add_parser("test", help="run a tier (test, ci, all, quick), a group or a family")
    test.add_argument("name")
    made = verbs.add_parser("make", help="make environments and other things")
    made.add_argument("names", nargs="+")
    inside = verbs.add_parser("in", help="run a Python program in an environment")
    inside.add_argument(
        "environment", help="things that are made, with commas; the first one runs it"
    )
    inside.add_argument("words", nargs=argparse.REMAINDER)
    ranks = verbs.add_parser("ranks", help="run a command as ranks of an environment's MPI")
    ranks.add_argument("environment")
    ranks.add_argument("np", type=int)
    ranks.add_argument("words", nargs=argparse.REMAINDER)
    one = verbs.add_parser("try", help="run one test")
    one.add_argument("test")
    one.add_argument("mpi")
    one.add_argument("np", type=int)
    page = verbs.add_parser("document", help="write the table into docs/testing.md")
    page.add_argument("--check", action="store_true", help="write nothing; fail if it is stale")
    listed = verbs.add_parser("list", help="print the commands of a tier, a group or a family")
    listed.add_argument("name")
    verbs.add_parser("help", help="list the verbs of make")
    args = parser.parse_args(arguments)
    if args.verb == "test":
        return run_named(args.name)
    if args.verb == "make":
        return make(args.names)
    if args.verb == "in":
        return run_in(args.environment, args.words)
    if args.verb == "ranks":
        return run_in(args.environment, args.words, args.np)
    if args.verb == "try":
        return try_one(args.test, args.mpi, args.np)
    if args.verb == "document":
        return document.main(args.check)
    if args.verb == "list":
        return show_commands(args.name)
    return show_help()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
