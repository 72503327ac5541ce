"""What the ranks of a group do in steps, each of which succeeds on all of them or on none.

::

    with together("save_file") as step:
        step.tell = write_part()      # may raise
    step.told                         # what every rank told, in the order of the group

If the block raises on some ranks, these raise their own error, and the others ``RefusedError``.
Before init and after destroy the process is alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .errors import Error, RefusedError
from .group import ProcessGroup, get_rank, get_world_size, is_initialized, members
from .objects import all_gather_object

__all__ = ["Step", "flush", "leads", "rank_in", "size_of", "together", "world_rank"]


class Step:
    """One step: what this rank tells, and after the step what all have told."""

    __slots__ = ("tell", "told")

    def __init__(self) -> None:
        self.tell: Any = None
        self.told: list[Any] = []


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
    step = Step()
    try:
        yield step
    except Exception as error:
        # If the group is broken, the others have an error of their own.
        with suppress(Error):
            _all((f"{type(error).__name__}: {error}", None), group)
        raise
    outcomes = _all(("", step.tell), group)
    failed = {rank: text for rank, (text, _) in enumerate(outcomes) if text}
    if failed:
        ranks = [world_rank(rank, group) for rank in failed]
        refused = RefusedError(f"{what}: rank {ranks[0]}: {next(iter(failed.values()))}")
        refused.ranks = tuple(ranks)[:32]
        raise refused
    step.told = [told for _, told in outcomes]


def _all(mine: tuple[str, Any], group: ProcessGroup | None) -> list[tuple[str, Any]]:
    if not is_initialized():
        return [mine]
    outcomes: list[tuple[str, Any]] = [("", None)] * size_of(group)
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
