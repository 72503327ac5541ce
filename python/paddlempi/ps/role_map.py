"""Roles: which ranks train, which have parts of the tables, and which deals out the data."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError, DtypeError

__all__ = ["ROLES", "checked", "deals", "of_node", "resolved", "serves", "trains"]

TRAINER, PSERVER, MASTER = "trainer", "pserver", "master"
BOTH = f"{TRAINER}+{PSERVER}"
ROLES: tuple[str, ...] = (TRAINER, PSERVER, BOTH, MASTER)
ROLES += (f"{TRAINER}+{MASTER}", f"{PSERVER}+{MASTER}", f"{BOTH}+{MASTER}")
"""The roles. A rank with several trains, has a part of the tables, or deals out shards at once."""

_PER_NODE = "node:"
"""A text that begins so gives roles to the ranks of every node, by their local ranks."""

RolesArgument = str | Mapping[int, str] | Callable[[int], str] | None


def trains(role: str) -> bool:
    """Whether a rank of this role trains."""
    return TRAINER in role


def serves(role: str) -> bool:
    """Whether a rank of this role has a part of the tables."""
    return PSERVER in role


def deals(role: str) -> bool:
    """Whether a rank of this role is the master, which deals out the shards of data sets."""
    return MASTER in role


def resolved(given: RolesArgument, size: int) -> tuple[str, ...] | None:
    """Return the roles of all ranks by rank; None if they depend on the nodes.

    Args:
        given: see :func:`paddlempi.ps.init`. None: every rank has both roles.
        size: the number of ranks.

    Raises:
        ArgumentError: a role has another name; there are roles for more or fewer ranks than the
            world has; no rank trains, or none serves; or several are masters.
        DtypeError: ``given`` is neither a text nor a map nor a function.
    """
    if given is None:
        return (BOTH,) * size
    if isinstance(given, str):
        if given.strip().lower().startswith(_PER_NODE):
            _parts(given)  # a wrong text is an error before ranks talk to each other
            return None
        return checked(_spread(given, size, f"the world has {size}"), given)
    if isinstance(given, Mapping):
        return checked(_of_map(given, size), given)
    if callable(given):
        return checked(tuple(_role(given(rank), given) for rank in range(size)), given)
    raise DtypeError(
        f"ps.init: roles is a {type(given).__name__}; it must be a text such as "
        "'trainer:3,pserver:2', a map of ranks to roles, or a function of a rank"
    )


def of_node(given: str, local_rank: int, local_size: int) -> str:
    """Return the role of a rank of a node, for a text that begins with ``node:``.

    Raises:
        ArgumentError: there are roles for more or fewer ranks than the node has.
    """
    return _spread(given, local_size, f"this node has {local_size}")[local_rank]


def checked(roles: Sequence[str], given: Any) -> tuple[str, ...]:
    """Return the roles as they are, if they can work together.

    Raises:
        ArgumentError: no rank trains, none serves, or several are masters.
    """
    for role, has in ((TRAINER, trains), (PSERVER, serves)):
        if not any(has(name) for name in roles):
            raise ArgumentError(f"ps.init: roles={given!r}: no rank is a {role}")
    masters = [rank for rank, name in enumerate(roles) if deals(name)]
    if len(masters) > 1:
        raise ArgumentError(f"ps.init: roles={given!r}: ranks {masters} are masters; one may be")
    return tuple(roles)


def _of_map(given: Mapping[int, str], size: int) -> tuple[str, ...]:
    try:
        by_rank = {operator.index(rank): role for rank, role in given.items()}
    except TypeError as error:
        raise DtypeError(f"ps.init: roles={dict(given)!r}: a key is no rank: {error}") from None
    if sorted(by_rank) != list(range(size)):
        raise ArgumentError(
            f"ps.init: roles has the ranks {sorted(by_rank)}; it must have every rank from 0 to "
            f"{size - 1}"
        )
    return tuple(_role(by_rank[rank], given) for rank in range(size))


def _spread(given: str, size: int, there: str) -> tuple[str, ...]:
    """Return the roles of ``size`` ranks in order, such as of ``trainer:*,pserver:1``."""
    parts = _parts(given)
    counted = sum(count for _, count in parts if count is not None)
    open_parts = sum(count is None for _, count in parts)
    rest = size - counted
    if rest < open_parts or (rest and not open_parts):
        least = " or more" if open_parts else ""
        raise ArgumentError(
            f"ps.init: roles={given!r} is for {counted + open_parts} ranks{least}; {there}"
        )
    return tuple(role for role, count in parts for _ in range(rest if count is None else count))


def _parts(given: str) -> list[tuple[str, int | None]]:
    """Return the roles of a text with their numbers of ranks; None: all that are left."""
    text = given.strip().lower().removeprefix(_PER_NODE)
    parts: list[tuple[str, int | None]] = []
    for word in text.split(","):
        name, colon, number = word.strip().partition(":")
        role = _role(name, given)
        if number.strip() == "*":
            parts.append((role, None))
        elif not colon:
            parts.append((role, 1))
        elif number.strip().isdecimal() and int(number) > 0:
            parts.append((role, int(number)))
        else:
            raise ArgumentError(
                f"ps.init: roles={given!r}: {number!r} is no number of ranks above 0, nor *"
            )
    if sum(count is None for _, count in parts) > 1:
        raise ArgumentError(f"ps.init: roles={given!r}: only one role can have *")
    return parts


def _role(name: Any, given: Any) -> str:
    words = name.strip().lower().split("+") if isinstance(name, str) else ()
    found = {word.strip() for word in words}
    if not found or not found <= {TRAINER, PSERVER, MASTER}:
        raise ArgumentError(
            f"ps.init: roles={given!r}: {name!r} is none of {TRAINER!r}, {PSERVER!r}, {MASTER!r}, "
            f"nor several of them, such as {BOTH!r}"
        )
    return "+".join(role for role in (TRAINER, PSERVER, MASTER) if role in found)
