"""Read the marks that the ranks of a job have left (:mod:`paddlempi._marks`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mark", "read"]


@dataclass
class Mark:
    """What the file of one rank says."""

    rank: int = -1
    size: int = 0
    pid: int = 0
    host: str = ""
    watches: int = 0
    """The signal by which the rank asks for preemption; 0: it has not asked."""
    raised: str = ""
    """The exception that ended the process; "" if none did."""
    by_death: bool = False
    """Whether that exception came from the death of another rank."""
    left: bool = False
    """Whether the rank left its world in order, by destroy or at its exit."""
    status: int | None = None
    """The exit status; None if the process has not ended in order."""


def read(folder: Path) -> list[Mark]:
    """Return what the files of ranks in ``folder`` say, in the order of the ranks."""
    # A process that has not begun is a child of a rank.
    return sorted((mark for mark in _marks(folder) if mark.rank >= 0), key=lambda mark: mark.rank)


def _marks(folder: Path) -> Iterator[Mark]:
    for path in folder.iterdir():
        mark = Mark()
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, IndexError):  # a line that a full disk has cut
                _take(mark, line)
        yield mark


def _take(mark: Mark, line: str) -> None:
    what, _, rest = line.partition(" ")
    words = rest.split(" ")
    if what == "began":
        numbers = [int(word) for word in words[:3]]
        mark.host, mark.left = words[3], False
        mark.rank, mark.size, mark.pid = numbers
    elif what == "watches":
        mark.watches = int(rest)
    elif what == "raised":
        mark.by_death, mark.raised = words[0] == "death", rest.partition(" ")[2]
    elif what == "left":
        mark.left = True
    elif what == "exit":
        mark.status = int(rest)
        mark.left = True
