"""What else carries rows between two ranks: its sides are opened on both, and rank 0 asks."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .... import group
from ..collectives import OURS, WrongResultError, of_all_ranks
from .batches import Batches, moved_right
from .findings import Findings
from .measured import Call, Turn

__all__ = ["PULL", "PUSH", "Rival", "check", "folder", "of_all", "opened", "ours", "pull_and_push"]

PULL, PUSH = "pull", "push"


def pull_and_push(pull: Call, push: Call, itself: bool = False) -> Turn:
    return Turn({PULL: pull, PUSH: push}, itself=itself)


class Rival(ABC):
    """A way to pull and push rows. Making one raises if it is not installed, on each rank alike."""

    NAME: str
    version: str

    @abstractmethod
    def open(self, folder: Path) -> None:
        """Start the server of rank 1, and connect rank 0 with it. Collective.

        Args:
            folder: an empty folder for sockets and files, the same on both ranks.
        """

    @abstractmethod
    def table(self, batches: Batches) -> None:
        """Make a table of ``batches.rows`` rows, which are all there. Rank 0 calls it."""

    @abstractmethod
    def turns(self, batches: Batches) -> dict[str, Turn]:
        """Return what takes turns with paddlempi, by name; what it carries was checked."""

    @abstractmethod
    def close(self) -> None:
        """End the connection, and then the server. Collective."""


def of_all(make: Callable[[], Any]) -> tuple[Any, str]:
    """Return what ``make()`` returns, or the reason why it failed on some rank. Collective."""
    made, reason = None, ""
    try:
        made = make()
    except Exception as error:  # a library that does not fit this Python or torch raises anything
        reason = f"rank {group.get_rank()}: {type(error).__name__}: {error}"
    reasons = [text for text in of_all_ranks(reason) if text]
    return made, (reasons or [""])[0]


@contextmanager
def folder() -> Iterator[Path]:
    """Give the ranks a folder of rank 0. Collective."""
    with tempfile.TemporaryDirectory(prefix="paddlempi-bench-") as mine:
        yield Path(of_all_ranks(mine)[0])
        of_all_ranks("")  # others may still read there


@contextmanager
def opened(
    makers: Sequence[Callable[[], Rival]], names: Sequence[str], findings: Findings
) -> Iterator[list[Rival]]:
    """Open the rivals that can be opened on both ranks. Collective."""
    made: list[Rival] = []
    with folder() as place:
        try:
            for name, maker in zip(names, makers, strict=True):
                rival, reason = of_all(maker)
                if not reason:
                    _, reason = of_all(lambda rival=rival: rival.open(place))  # type: ignore[misc]
                if reason:
                    findings.absent(name, reason)
                else:
                    made.append(rival)
                    findings.about[name] = rival.version
            versions = ", ".join(f"{rival.NAME} {rival.version}" for rival in made)
            findings.say(f"# against {versions or 'nothing else'}")
            yield made
        finally:
            for rival in made:
                rival.close()


def check(name: str, turn: Turn, rows: Callable[[], Any], batches: Batches) -> None:
    """Raise WrongResultError unless a push moves the rows that are pulled as it should.

    Args:
        rows: returns what was last pulled, for each id of the batch.
    """
    seen = []
    for call in (PULL, PUSH, PULL):
        turn.calls[call](0)
        if call == PULL:
            seen.append(batches.np.array(rows(), dtype="float64"))
    if not moved_right(batches, seen[1] - seen[0]):
        raise WrongResultError(f"bench: {name}, dim {batches.dim}: the rows are wrong")


def ours(batches: Batches, pull: Call, push: Call, rows: Callable[[], Any]) -> dict[str, Turn]:
    """Return paddlempi's turn, which was checked."""
    turn = pull_and_push(pull, push)
    check(OURS, turn, rows, batches)
    return {OURS: turn}
