"""A world with other members in the place of the first one: :func:`revoke` and :func:`reform`.

A member that sees that another one has died, or is told so, *revokes* the world: every wait of
every member ends with ``RevokedError``. Those that go on meet over a store, with newcomers, and
become a new world in the processes in which they are: memory, models and the heap stay. The core
has the rest (gocore/world/revocation.go, docs/adr/0067-a-world-with-other-members.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _exit, _native, group
from ..errors import ArgumentError, RevokedError
from .worlds import World

__all__ = ["generation", "reform", "revoke"]


class _Reform:
    """The reform of this process that is under way."""

    def __init__(self) -> None:
        self.meeting = False
        self.given_up: str | None = None  # why the one under way ends


_state = _Reform()


def generation() -> int:
    """How often the world was reformed: 0 for the first one. All ranks of a world agree.

    Raises:
        NotInitializedError: this process has no world.
    """
    group.get_rank()
    return group._state.generation


def revoke(why: str) -> None:
    """End every wait of the world, on this rank and on the others, with ``RevokedError``.

    When it returns, no thread of this process writes into another rank's memory any more. Without
    a world it does nothing, and for one that this rank has revoked already. It also ends a
    :func:`reform` that another thread of this process is in, which then raises ``RevokedError``.

    Thread-safety: may be called from any thread.

    Args:
        why: with what the text of the errors ends, in printable ASCII, 500 characters at most.

    Raises:
        UnsupportedError: a thread is inside a call of MPI that does not return.
    """
    if _state.meeting:
        _state.given_up = why
    if _native.loaded():
        _native.control("revoke", why=why)


def reform(
    rank: int, size: int, store: Any, *, timeout: float, members: Sequence[int] | None = None
) -> None:
    """Become rank ``rank`` of a world of ``size`` processes, instead of the world so far.

    All of them call it: survivors of a world, which this revokes if it was not, and newcomers.
    Groups, windows, prepared calls and works of the old world raise ``GroupDestroyedError`` from
    then on. After an error this process has no world, and may call it again.

    Args:
        rank, size: this process's place, and how many come.
        store: where they meet: a store of ``startup.rendezvous`` or of torch. It is closed.
        timeout: how long it waits for the others, in seconds.
        members: if they are on several nodes, and MPI's launcher has started them: their ranks in
            MPI's world. The new world is over MPI then.

    Raises:
        ArgumentError: a wrong rank or size, or two processes have one rank.
        TimeoutError: some did not come; ``ranks`` are those.
        RevokedError: :func:`revoke` was called meanwhile.
        UnsupportedError: the processes are on several hosts, without ``members``; or a thread of
            this one is inside a call of MPI that does not return.
    """
    if not 0 <= rank < size:
        raise ArgumentError(f"reform: rank={rank} of size={size}: it is from 0 to size - 1")
    with group._state.lock:
        _state.given_up, _state.meeting = None, True
        try:
            _native.load()
            _end()
            answer = _begin(rank, size, store, timeout, members)
        finally:
            _state.meeting = False
        group.begun(answer, _exit.mpi_is_foreign())


def _end() -> None:
    """Leave the world so far, if there is one."""
    if group._state.world is None:
        return
    _native.control("revoke", why="this rank goes on in another world")
    group._state.world, group._state.ranks = None, range(0)
    for leave in group._state.at_destroy:
        leave()


def _begin(
    rank: int, size: int, store: Any, timeout: float, members: Sequence[int] | None
) -> dict[str, Any]:
    from . import core_init

    world = World("reform", "a reform", rank, size)
    settings = group._state.settings
    if settings is None:  # a newcomer
        seconds = group.DEFAULT_TIMEOUT.total_seconds()
        settings = group._state.settings = core_init.settings(seconds, None)
    arguments = {**settings, "mpi": None, "comm": None, "within": timeout}
    instead = core_init.Reform(group._state.generation, _look, members)
    return core_init.begin(world, store, arguments, instead)


def _look() -> None:
    """Raise an error if the reform under way has to end."""
    if _state.given_up is not None:
        raise RevokedError(f"reform: given up: {_state.given_up}")
