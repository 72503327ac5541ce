"""Read the marks that the ranks of a job have left (:mod:`paddlempi._marks`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .._exit import PREEMPTED

__all__ = ["Mark", "read"]


@dataclass
class Mark:
    """What the file of one process says."""

    rank: int = -1
    """-1: the process has not begun."""
    size: int = 0
    pid: int = 0
    host: str = ""
    coming: bool = False
    """Whether the process is in ``init_process_group``."""
    watches: int = 0
    """The signal by which the rank asks for preemption; 0: it has not asked."""
    asked: bool = False
    """Whether the rank knows that the job was asked to end."""
    raised: str = ""
    """The exception that ended the process; "" if none did."""
    cause: str = ""
    """What that exception comes from: ``death``, ``left``, ``error``, ``program``."""
    dead: str = ""
    """The ranks whose death the rank knew when it left its world or failed; "" if none."""
    left: bool = False
    """Whether the rank left its world in order, by destroy or at its exit."""
    status: int | None = None
    """The exit status; None if the process has not ended in order."""

    @property
    def failed(self) -> bool:
        """Whether the rank ended by an exception, or with a status other than 0."""
        return bool(self.raised or self.status)

    @property
    def by_death(self) -> bool:
        """Whether it failed because another rank had died.

        After a death an error of this library comes from it, whatever it is. So does a status of
        the program's own, if no exception tells otherwise. PREEMPTED says why it is there.
        """
        after = bool(self.dead) and self.cause != "program" and self.status != PREEMPTED
        return self.failed and (self.cause == "death" or after)


def read(folder: Path, *, begun: bool = True) -> list[Mark]:
    """Return what the files in ``folder`` say, in the order of the ranks.

    Args:
        folder: the folder of the marks.
        begun: leave out processes that have not begun, such as children of a rank.
    """
    found = (mark for mark in _marks(folder) if mark.rank >= 0 or not begun)
    return sorted(found, key=lambda mark: mark.rank)


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
    if what in ("began", "raised", "left", "exit"):
        mark.coming = False
    if what == "comes":
        mark.pid, mark.host, mark.coming = int(words[0]), words[1], True
    elif what == "began":
        numbers = [int(word) for word in words[:3]]
        mark.host, mark.left = words[3], False
        mark.rank, mark.size, mark.pid = numbers
    elif what == "watches":
        mark.watches = int(rest)
    elif what == "asked":
        mark.asked = True
    elif what == "raised":
        mark.cause, mark.raised = words[0], rest.partition(" ")[2]
    elif what == "dead":
        mark.dead = rest
    elif what == "left":
        mark.left = True
    elif what == "exit":
        mark.status = int(rest)
        mark.left = True
