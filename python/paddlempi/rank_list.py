"""The argument ``rank_list=[[0, 1], [2, 3]]``, RAF's way to name a group in a call."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from .errors import ArgumentError, DtypeError
from .group import ProcessGroup, at_destroy, get_rank, get_world_size, new_group

__all__ = ["group_of", "parse"]

_groups: dict[tuple[int, ...], ProcessGroup] = {}
"""The groups that were made for a ``rank_list``, by their global ranks."""


def parse(rank_list: Sequence[Sequence[int]], what: str) -> list[tuple[int, ...]]:
    """Return the checked subsets of a ``rank_list``.

    Args:
        rank_list: the argument.
        what: the name of the function that took it, for error messages.

    Raises:
        ArgumentError: a rank is out of range or given twice.
        DtypeError: it is no sequence of sequences of integers.
    """
    try:
        subsets = [tuple(operator.index(rank) for rank in subset) for subset in rank_list]
    except TypeError as error:
        raise DtypeError(
            f"{what}: rank_list={rank_list!r} must be a list of lists of ranks, such as "
            f"[[0, 1], [2, 3]]: {error}"
        ) from None
    ranks = [rank for subset in subsets for rank in subset]
    size = get_world_size()
    for rank in ranks:
        if not 0 <= rank < size:
            raise ArgumentError(
                f"{what}: rank_list={rank_list!r}: {rank} is out of range, the world has {size}"
            )
    if len(set(ranks)) != len(ranks):
        raise ArgumentError(f"{what}: rank_list={rank_list!r}: a rank is given twice")
    return subsets


def group_of(
    rank_list: Sequence[Sequence[int]], what: str, group: ProcessGroup | None = None
) -> ProcessGroup:
    """Return the group of the subset that has this rank; of this rank alone if no subset has it.

    The group is made at the first use of the subset, collectively over its ranks, and kept until
    the world is destroyed.

    Raises:
        ArgumentError: as :func:`parse`; or ``group`` is given as well.
        DtypeError: as :func:`parse`.
        TimeoutError: a rank of the subset never came.
    """
    if group is not None:
        raise ArgumentError(f"{what}: group and rank_list are both given, give one of them")
    rank = get_rank()
    subset = next((ranks for ranks in parse(rank_list, what) if rank in ranks), (rank,))
    found = _groups.get(subset)
    if found is None:
        found = _groups[subset] = new_group(subset)
    return found


at_destroy(_groups.clear)
