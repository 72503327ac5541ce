"""Groups named where they are used: ``rank_list=[[0, 1], [2, 3]]``, as in RAF."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from .errors import ArgumentError, DtypeError
from .group import ProcessGroup, at_destroy, get_rank, get_world_size, new_group

__all__ = ["group_of", "parse"]

_made: dict[tuple[int, ...], ProcessGroup] = {}


def parse(rank_list: Sequence[Sequence[int]], what: str) -> list[tuple[int, ...]]:
    """The subsets of a ``rank_list``, checked.

    Raises:
        ArgumentError: a rank is out of range or stands there twice.
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
        raise ArgumentError(f"{what}: rank_list={rank_list!r}: a rank stands there twice")
    return subsets


def group_of(
    rank_list: Sequence[Sequence[int]], what: str, group: ProcessGroup | None = None
) -> ProcessGroup:
    """The group of this rank's subset; of this rank alone where no subset has it.

    It is made at the first use of the subset, collectively over its ranks, and kept until the
    world is destroyed.

    Raises:
        ArgumentError, DtypeError: as :func:`parse`; ``group`` is given as well.
        TimeoutError: a rank of the subset never came.
    """
    if group is not None:
        raise ArgumentError(f"{what}: group and rank_list are both given, give one of them")
    mine = get_rank()
    subset = next((one for one in parse(rank_list, what) if mine in one), (mine,))
    made = _made.get(subset)
    if made is None:
        made = _made[subset] = new_group(subset)
    return made


at_destroy(_made.clear)
