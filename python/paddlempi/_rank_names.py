"""Names of ranks and groups for people."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["name_group", "name_ranks"]


def name_group(ranks: Sequence[int], size: int) -> str:
    """Name a group in a world of some size: "the group of all 4 ranks"."""
    if tuple(ranks) == tuple(range(size)) and size > 1:
        return f"the group of all {size} ranks"
    return f"the group of {name_ranks(ranks)}"


def name_ranks(ranks: Sequence[int]) -> str:
    """Name ranks: "rank 2", "ranks 0 to 3 and 7"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = []
    for run in runs:
        words += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(rank) for rank in run]
    if len(words) > 16:
        words = [*words[:16], f"{len(words) - 16} more"]
    text = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"
