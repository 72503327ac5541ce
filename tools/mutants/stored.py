"""The stored list of mutants, a text that people read.

A mutant is three lines, and a line that is empty follows:

    gocore/heap/heap.go #2
    - 	if a < b {
    + 	if a <= b {

``#2``: the second line of the file with this text. Words after it say why the mutant is none,
because nothing that one can see changes; it is not run, and not drawn again. What is above the
first mutant is the header, whose lines begin with ``#``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mutants.changes import Mutant

_MUTANT = re.compile(r"^(\S+) #(\d+)(?: (.+))?\n- (.*)\n\+ ?(.*)$", re.MULTILINE)


class Stored(NamedTuple):
    """What a list has: its mutants, and those that are none with the reasons."""

    header: str = ""
    mutants: tuple[Mutant, ...] = ()
    rejected: dict[Mutant, str] = {}  # noqa: RUF012 (nobody changes it)


def read(path: Path) -> Stored:
    """Read a list."""
    text = path.read_text()
    header = "".join(line + "\n" for line in text.splitlines() if line.startswith("#"))
    mutants, rejected = [], {}
    for file, nth, why, before, after in _MUTANT.findall(text):
        mutant = Mutant(file, int(nth), before, after)
        if why:
            rejected[mutant] = why
        else:
            mutants.append(mutant)
    return Stored(header, tuple(mutants), rejected)


def write(path: Path, stored: Stored) -> None:
    """Write a list."""
    known = [(mutant, "") for mutant in stored.mutants] + list(stored.rejected.items())
    path.write_text(stored.header + "".join(map(_lines, known)))


def _lines(known: tuple[Mutant, str]) -> str:
    mutant, why = known
    first = f"{mutant.file} #{mutant.nth} {why}".rstrip()
    return f"\n{first}\n- {mutant.before}\n{f'+ {mutant.after}'.rstrip()}\n"


def numbers(words: str, mutants: Iterable[Mutant]) -> list[Mutant]:
    """Return the mutants that numbers name: "3,17" are the third and the 17th of a list."""
    known = list(mutants)
    chosen = [int(word) for word in words.split(",")]
    if wrong := [number for number in chosen if not 1 <= number <= len(known)]:
        raise SystemExit(f"--only {wrong[0]}: the list has the mutants 1 to {len(known)}")
    return [known[number - 1] for number in chosen]
