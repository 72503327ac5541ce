"""The code blocks of the documents.

A fence says what its block is, in the words after the three backticks:

* ``python``: a program. It runs as it is printed, on two ranks (tests/jobs/docs says how they
  start); on others with ``ranks=N``, where one rank is a process without a launcher. With ``gpu``
  it runs where a GPU is. A program that defines tests is run by pytest.
* ``python notebook``: a cell, which a kernel of Jupyter runs; the next block is what it shows.
* ``python jax``: a program of JAX. tests/jobs/jax runs it, on two processes.
* ``python fragment``: part of a program. It is only compiled. Few blocks should be one.
* ``sh``, ``bash``, ``console``: commands, in ``console`` those after ``$``. Verbs and options are
  looked up. With ``run`` they run as they are printed, beside the programs of the page that have a
  name: its first line, ``# train.py``.
* nothing, or ``text``: something else.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "matrix"))

import groups  # noqa: E402

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

COMMANDS = {"sh", "bash", "console"}
LANGUAGES = {"", "text", "python", *COMMANDS}
# Words after the language, as regular expressions.
WORDS = {"python": r"fragment|gpu|jax|notebook|ranks=\d+", "sh": "run"}

# What may follow `make`: the verbs of the Makefile, and the groups of tests and their families.
VERBS = {
    *re.findall(r"^## ([a-z-]+) ", (ROOT / "Makefile").read_text(), re.M),
    *(f"test-{name}" for group in groups.GROUPS.values() for name in (group.name, group.family)),
}


@dataclass(frozen=True)
class Block:
    """A code block of a page. ``line`` is that of its fence."""

    page: Path
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether it is a program that runs with the other programs of its page."""
        return self.language == "python" and not {"fragment", "jax", "notebook"} & {*self.words}

    @property
    def ranks(self) -> int:
        return next((int(word[6:]) for word in self.words if word.startswith("ranks=")), 2)

    @property
    def is_test(self) -> bool:
        return re.search(r"^def test_", self.text, re.M) is not None

    @property
    def file(self) -> str:
        """The name of the program: ``train.py``, or "" if it has none."""
        found = re.match(r"# (\w+\.py)$", self.text.partition("\n")[0])
        return found[1] if found else ""

    @property
    def commands(self) -> str:
        """The commands of the block, one a line."""
        if self.language == "console":
            return "\n".join(re.findall(r"^\$ (.*)$", self.text, re.M))
        return self.text


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page."""
    found = []
    fence = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.M | re.S)
    text = page.read_text()
    for match in fence.finditer(text):
        language, *words = match[1].split() or [""]
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, language, tuple(words), match[2]))
    return found


BLOCKS = [block for page in PAGES for block in blocks(page)]
