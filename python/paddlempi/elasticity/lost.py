"""Which errors say that a step was lost with a rank, and not that the program has failed."""

from __future__ import annotations

from .. import _native, errors
from ..errors import Error, PeerDiedError, RefusedError, TimeoutError

__all__ = ["StateLost", "is_lost"]


_LOST = (*errors.LOST, RefusedError)
"""A rank that has refused a collective raises an error of its own, and ends by it."""


class StateLost(PeerDiedError):
    """No rank has the state any more."""


def is_lost(error: BaseException) -> bool:
    """Whether an error comes from a rank that has died, left or given up.

    Frameworks wrap errors, or make a RuntimeError of them that has their name in its text.
    """
    seen: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and all(link is not one for one in seen):  # a program may make a cycle
        seen.append(link)
        link = link.__cause__ or link.__context__
    return any(isinstance(one, _LOST) or _tells(one) or _late(one) for one in seen)


def _tells(error: BaseException) -> bool:
    if not isinstance(error, RuntimeError) or isinstance(error, Error):
        return False
    text = str(error)
    return any(f"{kind.__name__}: " in text for kind in _all(_LOST))


def _all(kinds: tuple[type[BaseException], ...]) -> set[type[BaseException]]:
    found = set(kinds)
    for kind in kinds:
        found |= _all(tuple(kind.__subclasses__()))
    return found


def _late(error: BaseException) -> bool:
    """Whether a deadline ran out because a rank has died. A rank may be slow as well."""
    if not isinstance(error, TimeoutError):
        return False
    try:
        seen = _native.control("info")["liveness"]
    except Error:
        return False
    return bool(seen and seen["dead"])
