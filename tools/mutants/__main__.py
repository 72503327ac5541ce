"""Count how many mutants of the package the tests catch.

    python tools/mutants [--list LIST] [--state FILE] [--stages NAME,NAME...] [--environments TREE]
    python tools/mutants --only NUMBER,NUMBER... [--times N]
    python tools/mutants --compare BEFORE.json AFTER.json
    python tools/mutants --draw COUNT SEED

A mutant is one changed operator or constant in a file of Go, C or Python. Those of a stored list
are tried in a copy of the tree, one after another. Each goes through the stages until one of them
fails: then it is caught. --stages chooses some of them, to see what each adds. A line that is no
longer there is gone, which is no failure.

The unchanged tree goes first. It must pass all stages, and its seconds limit those of the mutants.
The state is written after each mutant: the same command goes on where another was stopped, in the
same copy, whatever has become of the tree since then. The copy is removed at the end.

--only tries some mutants of the list, several times, and keeps nothing. It takes the limits of the
state. --compare says which mutants one run caught and the other did not. --draw writes the list.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

# In place of this folder, so that tools/mutants is a package.
sys.path[:1] = [str(Path(__file__).resolve().parents[1])]

from mutants import changes, stages, stored  # noqa: E402
from mutants.changes import Mutant  # noqa: E402
from mutants.state import (  # noqa: E402
    FAILED,
    GONE,
    INVALID,
    SURVIVED,
    Outcome,
    State,
    compare,
    sums,
)
from mutants.tree import Tree, fails  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests" / "mutants.txt"
TITLE = "Count how many mutants of the package the tests catch. __main__.py says more."
STATE = ROOT / "build" / "mutants" / "run.json"
# A stage may take SLOWER times the seconds of the unchanged tree, and always LIMIT seconds. The
# unchanged tree may take UNCHANGED seconds.
LIMIT = 90
SLOWER = 3
UNCHANGED = 3600


def commands(tree: Tree, name: str, mutant: Mutant | None) -> list[list[str]]:
    """Return the commands of a stage, for a mutant or for the unchanged tree."""
    stage = stages.STAGES[name]
    if stage is not None:
        return [stages.command(tree.environments, stage)]
    return tree.go_tests(mutant) if mutant else [tree.go_test("-count=1", "./gocore/...")]


def time_unchanged(tree: Tree, state: State, mutants: Iterable[Mutant]) -> None:
    """Run the unchanged tree in the stages of some mutants that have no limit yet: it must pass."""
    needed = {name for name in state.stages for m in mutants if stages.applies(name, m)}
    for name in state.stages:
        if name not in needed or name in state.limits:
            continue
        start = time.monotonic()
        if why := fails(commands(tree, name, None), tree, UNCHANGED):
            raise SystemExit(f"the unchanged tree does not pass: {name}: {why}")
        seconds = time.monotonic() - start
        state.limits[name] = max(LIMIT, SLOWER * seconds)
        state.write()
        print(f"unchanged  {name}: {seconds:.0f} s", flush=True)


def attempt(mutant: Mutant, tree: Tree, state: State) -> Outcome:
    """Try a mutant in its stages, and take it back."""
    start = time.monotonic()

    def ended(how: str, stage: str = "") -> Outcome:
        return Outcome(how, stage, round(time.monotonic() - start, 1))

    if not tree.apply(mutant):
        return ended(GONE)
    try:
        if not tree.compiles(mutant):
            return ended(INVALID)
        core = mutant.language != "Python"  # Go's tests need none, so it is built after them
        for name in state.stages:
            if not stages.applies(name, mutant):
                continue
            if core and name != stages.GO:
                core = False
                if not tree.build():
                    return ended(INVALID)
            if why := fails(commands(tree, name, mutant), tree, state.limits[name]):
                return ended(why, name)
        return ended(SURVIVED)
    finally:
        tree.restore()


def prepared(state: State, folder: Path, environments: Path, mutants: list[Mutant]) -> Tree:
    """Return the tree for some mutants."""
    tree = Tree(ROOT, folder, environments)
    wheel = stages.python(environments, stages.Stage(""))
    if state.stages != [stages.GO]:
        tree.prepare(wheel)
    time_unchanged(tree, state, mutants)
    return tree


def try_all(mutants: list[Mutant], state: State, environments: Path) -> None:
    """Try the mutants that have no outcome yet; print each outcome, and the table."""
    todo = [mutant for mutant in mutants if mutant.key not in state.outcomes]
    if todo:
        tree = prepared(state, state.path.with_suffix(".tree"), environments, todo)
        for mutant in todo:
            outcome = attempt(mutant, tree, state)
            state.outcomes[mutant.key] = outcome
            state.write()
            number = mutants.index(mutant) + 1
            print(f"{number:3} {outcome!s:12} {outcome.seconds:6.0f} s  {mutant}", flush=True)
        tree.remove()
    print(sums(mutants, state.outcomes, state.stages))


def try_some(mutants: list[Mutant], times: int, state: State, environments: Path) -> None:
    """Try some mutants several times; print each outcome."""
    tree = prepared(state, state.path.with_suffix(".only"), environments, mutants)
    for mutant in mutants:
        outcomes = [attempt(mutant, tree, state) for _ in range(times)]
        caught = sum(outcome.how == FAILED for outcome in outcomes)
        print(f"{caught} of {times}: {', '.join(map(str, outcomes))}: {mutant}", flush=True)
    tree.remove()


def draw(path: Path, count: int, seed: int) -> None:
    """Write a list. Those that the list rejects already stay so, and others come for them."""
    known = stored.read(path) if path.exists() else stored.Stored()
    tree = Tree(ROOT, STATE.with_name("draw.tree"), ROOT)

    def works(mutant: Mutant) -> bool:
        try:
            return tree.apply(mutant) and tree.compiles(mutant)
        finally:
            tree.restore()

    mutants = changes.draw(ROOT, count, seed, works, known.rejected)
    stored.write(path, stored.Stored(known.header, tuple(mutants), known.rejected))
    tree.remove()
    for number, mutant in enumerate(mutants, 1):
        print(f"{number:3} {mutant}")


def usable(names: list[str], environments: Path) -> list[str]:
    """Return the stages whose environments are there; say which are not."""
    found = []
    for name in names:
        stage = stages.STAGES[name]
        if stage is None or stages.python(environments, stage).exists():
            found.append(name)
        else:
            print(f"left out: {name}: there is no .venv-{stage.environment}", flush=True)
    return found


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(prog="tools/mutants", description=TITLE)
    parser.add_argument("--list", type=Path, default=LIST, help="tests/mutants.txt")
    parser.add_argument("--state", type=Path, default=STATE, help="build/mutants/run.json")
    parser.add_argument("--stages", default=",".join(stages.STAGES), help="by default all")
    parser.add_argument("--environments", type=Path, default=ROOT, help="the tree that has them")
    parser.add_argument("--only", metavar="NUMBER,...", help="of the list, from 1")
    parser.add_argument("--times", type=int, default=1, help="with --only")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    parser.add_argument("--draw", nargs=2, type=int, metavar=("COUNT", "SEED"))
    given = parser.parse_args()
    if given.draw:
        draw(given.list, *given.draw)
        return
    mutants = list(stored.read(given.list).mutants)
    if given.compare:
        before, after = (State(path).outcomes for path in given.compare)
        text, lost = compare(mutants, before, after)
        print(text)
        if lost:
            numbers = ",".join(map(str, lost))
            again = f"--only {numbers} --times 3 --state {given.compare[1]}"
            print(f"lost, to be tried again: python tools/mutants {again}")
        return
    environments = given.environments.resolve()
    names = given.stages.split(",")
    if unknown := [name for name in names if name not in stages.STAGES]:
        parser.error(f"--stages {unknown[0]}: there are {', '.join(stages.STAGES)}")
    state = State(given.state.resolve(), usable(names, environments), kept=not given.only)
    if given.only:
        some = stored.numbers(given.only, mutants)
        try_some(some, given.times, state, environments)
    else:
        try_all(mutants, state, environments)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C: what it started ends
    # A shell ignores it for what runs in the background; there the tests of Ctrl-C would hang.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
