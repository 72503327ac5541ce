"""What became of each mutant, in a file that is written after each, and tables of it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from mutants.changes import SHARES, Mutant

# How a mutant ends. A stage fails twice, or comes to its limit: the mutant hangs, or the machine
# has become slower. Gone: its line is no longer there.
FAILED, LIMIT, SURVIVED, GONE, INVALID = "failed", "limit", "survived", "gone", "does not compile"


class Outcome(NamedTuple):
    """How a mutant ended, in which stage, after how many seconds."""

    how: str
    stage: str = ""
    seconds: float = 0

    def __str__(self) -> str:
        return {FAILED: self.stage, LIMIT: f"{self.stage} limit"}.get(self.how, self.how)

    @property
    def caught(self) -> bool:
        return self.how in (FAILED, LIMIT)


class State:
    """The outcomes of a run, and the limits of its stages, which stay when it goes on."""

    def __init__(self, path: Path, stages: list[str] | None = None, *, kept: bool = True) -> None:
        self.path = path
        self.kept = kept  # else only its limits are used
        self.limits: dict[str, float] = {}
        self.outcomes: dict[str, Outcome] = {}
        known = json.loads(path.read_text()) if path.exists() else {}
        self.stages: list[str] = stages or known.get("stages", [])
        if known:
            if kept and known["stages"] != self.stages:
                was = ",".join(known["stages"])
                raise SystemExit(f"{path} is of the stages {was}: name another --state, or these")
            self.limits = known["limits"]
            self.outcomes = {key: Outcome(*value) for key, value in known["outcomes"].items()}

    def write(self) -> None:
        """Write it in one step, so that a run that is killed leaves the one before."""
        if not self.kept:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        whole = {"stages": self.stages, "limits": self.limits, "outcomes": self.outcomes}
        new.write_text(json.dumps(whole, indent=1))
        os.replace(new, self.path)


def table(rows: Iterable[Iterable[object]]) -> str:
    """Return rows as lines with columns."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
    return "\n".join(lines)


def by_stage(outcomes: Iterable[Outcome]) -> Counter[str]:
    """Count what each stage caught."""
    return Counter(outcome.stage for outcome in outcomes if outcome.how == FAILED)


def sums(mutants: Iterable[Mutant], outcomes: Mapping[str, Outcome], stages: list[str]) -> str:
    """Return the table of a run: by language and room, and the sum of each language and of all."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for mutant in mutants:
        if outcome := outcomes.get(mutant.key):
            for language, room in (
                (mutant.language, mutant.room),
                (mutant.language, "all"),
                ("all", "all"),
            ):
                groups.setdefault((language, room), []).append(outcome)
    catching = [stage for stage in stages if by_stage(groups.get(("all", "all"), ()))[stage]]
    head = ["language", "room", "mutants", "caught", *catching]
    head += ["timeouts", "survived", "gone", "invalid", "seconds"]
    order = [*SHARES, "all"]
    rows = []
    keys = sorted(groups, key=lambda at: (order.index(at[0]), at[1] == "all", at[1]))
    for language, room in keys:
        group = groups[language, room]
        how = Counter(outcome.how for outcome in group)
        by = by_stage(group)
        row = [language, room, len(group), how[FAILED], *(by[stage] for stage in catching)]
        row += [how[LIMIT], how[SURVIVED], how[GONE], how[INVALID]]
        rows.append([*row, round(sum(outcome.seconds for outcome in group))])
    return table([head, *rows])


def lost(before: Outcome, after: Outcome) -> bool:
    """Tell whether the tests of after miss what those of before caught.

    A mutant that came to a limit is caught only if the other run caught it, too. One that is gone
    or does not compile is not compared.
    """
    return before.how == FAILED and after.how == SURVIVED


def compare(
    mutants: Iterable[Mutant], before: Mapping[str, Outcome], after: Mapping[str, Outcome]
) -> tuple[str, list[int]]:
    """Return the table of two runs, and the numbers of the mutants that are lost, from 1."""
    rows: list[list[object]] = [["mutant", "before", "after", "", ""]]
    found = []
    caught = [0, 0]
    compared = 0
    for number, mutant in enumerate(mutants, 1):
        then, now = before.get(mutant.key), after.get(mutant.key)
        mark = ""
        if then and now and {then.how, now.how} <= {FAILED, LIMIT, SURVIVED}:
            compared += 1
            both = then.caught and now.caught
            caught[0] += both or then.how == FAILED
            caught[1] += both or now.how == FAILED
            if lost(then, now):
                mark = "lost"
                found.append(number)
            elif LIMIT in (then.how, now.how) and not both:
                mark = "unclear"
            elif now.caught and not then.caught:
                mark = "found"
        rows.append([number, then or "not run", now or "not run", mark, mutant])
    end = f"{compared} compared, caught before: {caught[0]}, after: {caught[1]}"
    return f"{table(rows)}\n{end}", found
