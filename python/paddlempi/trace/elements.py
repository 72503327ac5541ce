"""How many elements a rank sends and receives in a call, for programs that analyse traces."""

from __future__ import annotations

__all__ = ["elements"]


def elements(name: str, count: int, size: int) -> tuple[int, int]:
    """Return the elements that a rank sends and receives; 0 where the ranks' shares may differ.

    Args:
        name: of the operation.
        count: as the operation's signature has it: of a share, where there are shares.
        size: of the group.
    """
    match name:
        case "all_to_all":
            return 0, 0
        case "all_gather" | "gather":
            return count, count * size
        case "reduce_scatter" | "scatter":
            return count * size, count
        case "barrier":
            return 1, 1
        case "send":
            return count, 0
        case "recv":
            return 0, count
    return count, count
