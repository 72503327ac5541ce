"""What the ranks of a group do in steps, each of which succeeds on all of them or on none.

::

    with together("save_file") as step:
        step.tell = write_part(progress=step.alive)      # may raise
    step.told                         # what every rank told, in the order of the group

If the block raises on some ranks, these raise their own error, and the others ``RefusedError``.
Before init and after destroy the process is alone.

The ranks that have ended their block wait for the others. If a block may take long, it calls
:meth:`Step.alive` as it goes on. The group's deadline then bounds how long a rank does nothing, not
how long it takes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from . import _native
from .errors import Error, RefusedError
from .group import ProcessGroup, get_rank, get_world_size, is_initialized, members
from .objects import all_gather_object

__all__ = ["Step", "flush", "leads", "rank_in", "size_of", "together", "world_rank"]


_SHARE = 0.25
"""The part of the deadline after which a rank tells that it goes on."""

_Outcome = tuple[str, Any, bool]
"""The error of a rank, what it tells, and whether it goes on."""


class Step:
    """One step: what this rank tells, and after the step what all have told."""

    __slots__ = ("_every", "_group", "_last", "_over", "_what", "tell", "told")

    def __init__(self, what: str, group: ProcessGroup | None) -> None:
        self.tell: Any = None
        self.told: list[Any] = []
        self._what, self._group = what, group
        self._every: float | None = None
        self._last = time.monotonic()
        self._over = False  # all know that it has failed

    def alive(self, done: int = 0) -> None:
        """Tell the others now and then that this rank goes on; they may be waiting for it.

        A block that calls it calls no collectives.

        Args:
            done: of no account, so that this method is a callback of progress.

        Raises:
            RefusedError: ``ranks`` have raised an error of their own. The step is over.
        """
        if not is_initialized():
            return
        if self._every is None:
            answer = _native.control("group_info", group=members(self._group)._id)
            self._every = float(answer["timeout"]) * _SHARE
        if time.monotonic() - self._last >= self._every:
            self._refuse(_all(("", None, True), self._group))
            self._last = time.monotonic()

    def with_life(self, progress: Callable[[int], object]) -> Callable[[int], None]:
        """Return a callback of progress that calls ``progress``, and then :meth:`alive`."""

        def told(done: int) -> None:
            progress(done)
            self.alive()

        return told

    def _end(self) -> None:
        """Wait for the others, and learn what they tell."""
        while True:
            outcomes = _all(("", self.tell, False), self._group)
            self._refuse(outcomes)
            if not any(goes_on for _, _, goes_on in outcomes):
                self.told = [told for _, told, _ in outcomes]
                return

    def _refuse(self, outcomes: list[_Outcome]) -> None:
        failed = {rank: text for rank, (text, _, _) in enumerate(outcomes) if text}
        if failed:
            ranks = [world_rank(rank, self._group) for rank in failed]
            refused = RefusedError(f"{self._what}: rank {ranks[0]}: {next(iter(failed.values()))}")
            refused.ranks = tuple(ranks)[:32]
            self._over = True
            raise refused


@contextmanager
def together(what: str, group: ProcessGroup | None = None) -> Iterator[Step]:
    """End with success only if the block succeeds on all ranks of the group.

    Exceptions that end the process, such as KeyboardInterrupt, are not told, because the ranks must
    not wait for each other then.

    Args:
        what: the beginning of the text of the RefusedError.
        group: the ranks; None: the world.

    Raises:
        RefusedError: ``ranks`` raise an error of their own.
    """
    step = Step(what, group)
    try:
        yield step
    except Exception as error:
        if not step._over:
            # If the group is broken, the others have an error of their own.
            with suppress(Error):
                _all((f"{type(error).__name__}: {error}", None, False), group)
        raise
    step._end()


def _all(mine: _Outcome, group: ProcessGroup | None) -> list[_Outcome]:
    if not is_initialized():
        return [mine]
    outcomes: list[_Outcome] = [("", None, False)] * size_of(group)
    all_gather_object(outcomes, mine, group)
    return outcomes


def leads(group: ProcessGroup | None = None) -> bool:
    """Whether this rank does what one rank does for all: rank 0 of the group."""
    return rank_in(group) == 0


def rank_in(group: ProcessGroup | None = None) -> int:
    """This process's rank in the group; 0 if it is alone."""
    return get_rank(group) if is_initialized() else 0


def size_of(group: ProcessGroup | None = None) -> int:
    """The number of members; 1 if the process is alone."""
    return get_world_size(group) if is_initialized() else 1


def world_rank(rank: int, group: ProcessGroup | None = None) -> int:
    """The global rank of a rank of the group."""
    return members(group)._ranks[rank] if is_initialized() else rank


def flush(path: str | os.PathLike[str]) -> None:
    """Write a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
