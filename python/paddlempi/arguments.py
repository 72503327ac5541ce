"""What collectives check of their arguments before the core sees them.

What is wrong here is told to the other members, so that they raise instead of waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, NoReturn

from . import _native
from ._ops import Op
from .errors import ArgumentError, DtypeError, Error
from .group import ProcessGroup, is_foreign, members

__all__ = ["Many", "chosen_root", "on_root", "outside", "refuse", "root_of", "splits_of"]

_Group = ProcessGroup | None


class Many:
    """An argument that must be a list of tensors, checked once the group is known."""

    __slots__ = ("each", "name", "tensors")

    def __init__(self, tensors: Sequence[Any], name: str, each: bool = False) -> None:
        self.tensors = tensors
        self.name = name
        self.each = each  # one for each member

    def checked(self, code: Op, group: _Group) -> Sequence[Any]:
        """The list, or the group is told that this rank refuses."""
        if not isinstance(self.tensors, (list, tuple)):
            refuse(
                code,
                group,
                DtypeError(
                    f"{code.label}: {self.name} is a {type(self.tensors).__name__}, "
                    "it must be a list or a tuple of tensors"
                ),
            )
        count = len(self.tensors)
        size = members(group).size() if self.each else max(count, 1)
        if count != size:
            refuse(
                code,
                group,
                ArgumentError(
                    f"{code.label}: {self.name} has {count} tensors, it needs {size}"
                    + (", one for each rank of the group" if self.each else "")
                ),
            )
        return self.tensors


def outside(group: _Group, code: Op) -> bool:
    """Whether this rank is not in ``group``; warns."""
    return (
        group is not None and group.__class__ is not ProcessGroup and is_foreign(group, code.label)
    )


def refuse(code: Op, group: _Group, error: BaseException) -> NoReturn:
    """Tell the other members that this rank refuses its part, and raise."""
    _native.core().refuse(code, members(group)._id, str(error))
    raise error


def chosen_root(
    code: Op,
    group: _Group,
    name: str,
    rank: int | None,
    group_rank: int | None,
    absent: int | None = None,
) -> tuple[int, bool]:
    """The root as a rank of the group, and whether it is this process.

    ``absent`` is the global rank that stands for no root given; None: one must be.
    """
    if rank is None and group_rank is None:
        rank = absent
    try:
        root = root_of(code.label, members(group), name, rank, group_rank)
    except Error as error:
        refuse(code, group, error)
    return root, root == members(group)._rank


def root_of(
    what: str, group: ProcessGroup, name: str, rank: int | None, group_rank: int | None
) -> int:
    """The group rank that ``src`` or ``dst``, or its group_ variant, means.

    Raises:
        ArgumentError: out of range, not in the group, or both given.
        DtypeError: no integer.
    """
    if rank is not None and group_rank is not None:
        raise ArgumentError(f"{what}: {name} and group_{name} are both given, give one of them")
    if rank is None and group_rank is None:
        raise ArgumentError(f"{what}: {name} or group_{name} must be given")
    value: Any
    value, name = (rank, name) if group_rank is None else (group_rank, "group_" + name)
    try:
        if group_rank is None:
            return group._ranks.index(index(value))
        return range(len(group._ranks)).index(index(value))
    except TypeError:
        raise DtypeError(f"{what}: {name} is a {type(value).__name__}, it must be a rank") from None
    except ValueError:
        among = range(len(group._ranks)) if group_rank is not None else group._ranks
        raise ArgumentError(
            f"{what}: {name}={value} is not among the ranks {list(among)}"
        ) from None


def on_root(
    code: Op, group: _Group, mine: bool, name: str, tensors: Sequence[Any] | None
) -> Many | None:
    """The list of tensors that the root alone gives."""
    if mine:
        return Many(() if tensors is None else tensors, name, each=True)
    if tensors is not None and len(tensors):
        refuse(code, group, ArgumentError(f"{code.label}: {name} must be None but on the root"))
    return None


def splits_of(group: _Group, name: str, splits: Sequence[int] | None) -> list[int] | None:
    """The rows of each part, checked; None where the parts are equal."""
    if splits is None or len(splits) == 0:
        return None
    try:
        sizes = [index(rows) for rows in splits]
    except TypeError as error:
        refuse(Op.ALL_TO_ALL, group, DtypeError(f"all_to_all_single: {name}={splits!r}: {error}"))
    size = members(group).size()
    if len(sizes) != size or min(sizes) < 0:
        refuse(
            Op.ALL_TO_ALL,
            group,
            ArgumentError(
                f"all_to_all_single: {name}={sizes} must be {size} numbers of rows, one a rank"
            ),
        )
    return sizes
