"""Checks of a collective's arguments that Python makes before the core sees them.

A rank whose arguments are wrong tells the other members, which then raise ``RefusedError``
instead of waiting for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, NoReturn

from . import _native
from ._ops import Op
from .errors import ArgumentError, DtypeError, Error
from .group import ProcessGroup, members, warn_nonmember

__all__ = [
    "MAX_TAG",
    "TensorList",
    "chosen_root",
    "is_nonmember",
    "message_tag",
    "on_root",
    "refuse",
    "root_of",
    "splits_of",
]

MAX_TAG = 2**31 - 1
"""The greatest tag that fits a descriptor."""


_Group = ProcessGroup | None


class TensorList:
    """An argument that must be a list of tensors.

    Args:
        tensors: the argument.
        name: its name, for error messages.
        per_rank: the list must have one tensor for each member.
    """

    __slots__ = ("name", "per_rank", "tensors")

    def __init__(self, tensors: Sequence[Any], name: str, per_rank: bool = False) -> None:
        self.tensors = tensors
        self.name = name
        self.per_rank = per_rank

    def checked(self, code: Op, group: _Group) -> Sequence[Any]:
        """Return the list. If it is wrong, refuse the operation and raise."""
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
        size = members(group).size() if self.per_rank else max(count, 1)
        if count != size:
            refuse(
                code,
                group,
                ArgumentError(
                    f"{code.label}: {self.name} has {count} tensors, it needs {size}"
                    + (", one for each rank of the group" if self.per_rank else "")
                ),
            )
        return self.tensors


def is_nonmember(group: _Group, code: Op) -> bool:
    """Whether this rank is no member of ``group``. Warns if so."""
    return (
        group is not None
        and group.__class__ is not ProcessGroup
        and warn_nonmember(group, code.label)
    )


def refuse(code: Op, group: _Group, error: BaseException) -> NoReturn:
    """Tell the other members that this rank refuses the operation, and raise ``error``."""
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
    """Return the root as a rank of the group, and whether this process is the root.

    Args:
        absent: the global rank that is the root if the caller gave none. None: the caller must
            give one.
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
    """Return the rank in the group that ``src`` or ``dst``, or its variant with group_, names.

    Args:
        what: the name of the operation, for error messages.
        group: the group.
        name: ``"src"`` or ``"dst"``, for error messages.
        rank: a global rank, or None.
        group_rank: a rank of the group, or None.

    Raises:
        ArgumentError: the rank is not in the group, or both or none are given.
        DtypeError: the rank is no integer.
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
    code: Op, group: _Group, is_root: bool, name: str, tensors: Sequence[Any] | None
) -> TensorList | None:
    """Return the list of tensors that only the root gives; None on the other members."""
    if is_root:
        return TensorList(() if tensors is None else tensors, name, per_rank=True)
    if tensors is not None and len(tensors):
        refuse(code, group, ArgumentError(f"{code.label}: {name} must be None but on the root"))
    return None


def splits_of(group: _Group, name: str, splits: Sequence[int] | None) -> list[int] | None:
    """Return the checked split sizes, in rows; None if all parts are equal."""
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


def message_tag(what: str, name: str, tag: Any, least: int = 0) -> int:
    """Return a tag that fits the core's int32. The core checks MPI's own limit."""
    try:
        number = index(tag)
    except TypeError:
        raise DtypeError(
            f"{what}: {name} is a {type(tag).__name__}, it must be an integer"
        ) from None
    if not least <= number <= MAX_TAG:
        raise ArgumentError(f"{what}: {name}={number} is out of range {least} to {MAX_TAG}")
    return number
