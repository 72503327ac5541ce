"""What else carries rows between two ranks: its sides are opened on both, and rank 0 asks."""

from __future__ import annotations

import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .... import _native, group
from ..collectives import OURS, WrongResultError, of_all_ranks
from .batches import Batches, moved_right
from .findings import Findings
from .measured import Call, Turn

__all__ = [
    "PULL",
    "PUSH",
    "Place",
    "Rival",
    "check",
    "of_all",
    "opened",
    "ours",
    "place",
    "pull_and_push",
]

PULL, PUSH = "pull", "push"


def pull_and_push(pull: Call, push: Call, itself: bool = False) -> Turn:
    return Turn({PULL: pull, PUSH: push}, itself=itself)


@dataclass(frozen=True)
class Place:
    """Where rivals have their files, and at which addresses the ranks reach each other.

    Attributes:
        folder: an empty folder, the same for all ranks of a node.
        hosts: the address of each rank; empty if all are on one node, which take Unix sockets.
    """

    folder: Path
    hosts: tuple[str, ...]

    def endpoint(self, name: str, rank: int) -> tuple[str, int]:
        """Return where a rank listens: the path of a socket and 0, or a host and a free port.

        Collective.
        """
        if not self.hosts:
            return str(self.folder / name), 0
        port = 0
        if group.get_rank() == rank:
            with socket.create_server((self.hosts[rank], 0)) as probe:
                port = probe.getsockname()[1]
        return self.hosts[rank], int(of_all_ranks(str(port))[rank])


class Rival(ABC):
    """A way to pull and push rows. Making one raises if it is not installed, on each rank alike."""

    NAME: str
    version: str

    @abstractmethod
    def open(self, at: Place) -> None:
        """Start the server of rank 1, and connect rank 0 with it. Collective."""

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
def place() -> Iterator[Place]:
    """Give the ranks of each node a folder of one of them. Collective."""
    one_node = group.get_local_size() == group.get_world_size()
    hosts: list[str] = []
    if not one_node:
        found = _native.control("addresses", one_host=False, variable="")["addresses"]
        hosts = of_all_ranks((found or [socket.gethostname()])[0])
    with tempfile.TemporaryDirectory(prefix="paddlempi-bench-") as mine:
        folders = of_all_ranks(mine)
        yield Place(Path(folders[0] if one_node else mine), tuple(hosts))
        of_all_ranks("")  # others may still read there


@contextmanager
def opened(
    makers: Sequence[Callable[[], Rival]], names: Sequence[str], findings: Findings
) -> Iterator[list[Rival]]:
    """Open the rivals that can be opened on both ranks. Collective."""
    made: list[Rival] = []
    with place() as at:
        try:
            for name, maker in zip(names, makers, strict=True):
                rival, reason = of_all(maker)
                if not reason:
                    _, reason = of_all(lambda rival=rival: rival.open(at))  # type: ignore[misc]
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
