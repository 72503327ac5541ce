"""What a mutant is, where in the sources there can be one, and how some are drawn by chance."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

# The languages: of 60 mutants, how many are drawn of each; folders; the ends of file names.
SHARES = {"Go": 30, "C": 14, "Python": 16}
SOURCES = {
    "Go": (("gocore", "capi"), (".go",)),
    "C": (("gocore", "capi"), (".c", ".h")),
    "Python": (("python",), (".py",)),
}
# What is left out: tests, and fakes for them; headers of others; what this machine does not
# compile; programs that the benchmarks alone compare with.
LEFT_OUT = re.compile(
    r"_test\.go$|/testdata/|fake/|/mpistub/|/xla_ffi\.h$|/cuda/kernels/|/neon\.c$|_arm64\.go$|_other\.go$"
    r"|/rival_\w+\.py$"
)
# What follows it in a file is left out, too.
GENERATED = "DO NOT EDIT"

# What is no code: comments and texts. Also the C code of a Go file, which is a comment.
_TEXTS = r'"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])*'"
_C_COMMENTS = r"//[^\n]*|/\*.*?\*/|"
NO_CODE = {
    "Go": re.compile(_C_COMMENTS + r"`[^`]*`|" + _TEXTS, re.DOTALL),
    "C": re.compile(_C_COMMENTS + _TEXTS, re.DOTALL),
    "Python": re.compile(r"#[^\n]*|\"\"\".*?\"\"\"|'''.*?'''|" + _TEXTS, re.DOTALL),
}

Changes = tuple[tuple[re.Pattern[str], str], ...]


def _changes(*pairs: tuple[str, str]) -> Changes:
    return tuple((re.compile(pattern), to) for pattern, to in pairs)


_EVERYWHERE = (
    (r" == ", " != "),
    (r" != ", " == "),
    (r" < ", " <= "),
    (r" <= ", " < "),
    (r" > ", " >= "),
    (r" >= ", " > "),
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r" \+= ", " -= "),
    (r"(?<![\w.])0(?![\w.])", "1"),
    (r"^(\s*)continue(;?)$", r"\1break\2"),
)
_AS_C = (
    (r" && ", " || "),
    (r" \|\| ", " && "),
    (r"([^&\w])!(?=[A-Za-z_(])", r"\1"),
    (r"([\w)]) & (?=[\w(^])", r"\1 | "),
    (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"),
)
CHANGES = {
    "Go": _changes(
        *_EVERYWHERE,
        *_AS_C,
        (r"([\w)])&(?=[\w(])", r"\1|"),  # without blanks in a longer expression
        (r"([\w)\]])-(?=[\w(])", r"\1+"),
        (r"([\w)\]])\+(?=[\w(])", r"\1-"),
        (r"(?<![\w.])1(?![\w.])", "2"),
        (r"\bmin\(", "max("),
        (r"\bmax\(", "min("),
        (r"\+\+$", "--"),
        (r"^\s*defer [\w.]+\(.*\)$", ""),
    ),
    "C": _changes(
        *_EVERYWHERE,
        *_AS_C,
        (r"(?<![\w.])1(?![\w.])", "0"),  # most are true
        (r"\bmemory_order_(release|acquire|acq_rel|seq_cst)\b", "memory_order_relaxed"),
    ),
    "Python": _changes(
        *_EVERYWHERE,
        (r"(?<![\w.])1(?![\w.])", "2"),
        (r" and ", " or "),
        (r" or ", " and "),
        (r"\bnot (?!in\b)", ""),
        (r" not in ", " in "),
        (r" is not ", " is "),
        (r" is (?!not\b)", " is not "),
        (r"\bTrue\b", "False"),
        (r"\bFalse\b", "True"),
        (r"\bmin\(", "max("),
        (r"\bmax\(", "min("),
        (r"\bany\(", "all("),
        (r"\ball\(", "any("),
    ),
}


class Mutant(NamedTuple):
    """One changed line. ``nth``: it is the n-th line of its file with this text, from 1."""

    file: str
    nth: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}: {self.before.strip()} -> {self.after.strip() or '(nothing)'}"

    @property
    def key(self) -> str:
        """What names it in a state, whatever else its list has."""
        return f"{self.file} #{self.nth}\n- {self.before}\n+ {self.after}"

    @property
    def language(self) -> str:
        suffix = Path(self.file).suffix
        return next(name for name, (_, ends) in SOURCES.items() if suffix in ends)

    @property
    def room(self) -> str:
        return str(Path(self.file).parent)

    def apply(self, text: str) -> str | None:
        """Return the changed text of its file; None if it has no such line."""
        lines = text.split("\n")
        places = [number for number, line in enumerate(lines) if line == self.before]
        if len(places) < self.nth:
            return None
        lines[places[self.nth - 1]] = self.after
        return "\n".join(lines)


def files(root: Path, language: str) -> list[Path]:
    """Return the files of a language that may have mutants, by their folders."""
    folders, ends = SOURCES[language]
    found = [
        path
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.suffix in ends and not LEFT_OUT.search("/" + path.relative_to(root).as_posix())
    ]
    return sorted(found, key=lambda path: (path.parent, path.name))


def in_file(file: str, text: str, language: str) -> Iterator[Mutant]:
    """Return all mutants of a file, from the top down."""
    code = NO_CODE[language].sub(lambda found: re.sub(r"[^\n]", "\1", found[0]), text)
    seen: dict[str, int] = {}
    end = text.find(GENERATED)
    place = 0
    for line, bare in zip(text.split("\n"), code.split("\n"), strict=True):
        place += len(line) + 1
        if 0 <= end < place:
            return
        nth = seen[line] = seen.get(line, 0) + 1
        if re.match(r"\s*(#\s*(include|if|el|endif|pragma)|import |from |package )", bare):
            continue
        for pattern, to in CHANGES[language]:
            if found := pattern.search(bare.rstrip("\1 ")):
                changed = line[: found.start()] + found.expand(to) + line[found.end() :]
                yield Mutant(file, nth, line, changed)


def candidates(root: Path, language: str) -> list[Mutant]:
    """Return all mutants of a language, those of a room beside each other."""
    return [
        mutant
        for path in files(root, language)
        for mutant in in_file(path.relative_to(root).as_posix(), path.read_text(), language)
    ]


def shares(count: int) -> dict[str, int]:
    """Divide a number of mutants among the languages."""
    whole = sum(SHARES.values())
    found = {language: count * share // whole for language, share in SHARES.items()}
    found["Go"] += count - sum(found.values())
    return found


def draw(
    root: Path,
    count: int,
    seed: int,
    works: Callable[[Mutant], bool],
    rejected: Collection[Mutant] = (),
) -> list[Mutant]:
    """Draw mutants: one out of each of equal parts of all, so that each room has its share.

    ``works`` tells whether one compiles. In place of one that does not, or is rejected, another of
    its part comes; all others stay as they are.
    """
    found = []
    for language, share in shares(count).items():
        known = candidates(root, language)
        for part in range(share):
            among = known[len(known) * part // share : len(known) * (part + 1) // share]
            random.Random(f"{seed} {language} {part}").shuffle(among)
            found += [next(m for m in among if m not in rejected and works(m))] if among else []
    return found
