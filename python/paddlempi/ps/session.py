"""The parameter server of a world: its roles, its beginning and its end."""

from __future__ import annotations

import atexit
import base64
import hashlib
import os
import sys
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from .. import _exit, _native
from .._ops import Op
from ..arguments import refuse
from ..errors import (
    AlreadyInitializedError,
    ArgumentError,
    DtypeError,
    Error,
    MismatchError,
    NotInitializedError,
)
from ..group import (
    DEFAULT_TIMEOUT,
    GroupMember,
    ProcessGroup,
    at_destroy,
    before_destroy,
    get_local_rank,
    get_local_size,
    init_process_group,
    is_initialized,
    members,
    new_group,
)
from ..group_arguments import to_seconds
from . import functions
from .config import rate_of, whole
from .cuts import warn_of_skipped
from .role_map import (
    BOTH,
    PSERVER,
    TRAINER,
    RolesArgument,
    checked,
    of_node,
    resolved,
    serves,
    trains,
)

__all__ = [
    "barrier",
    "complete",
    "init",
    "is_trainer",
    "pservers",
    "restore",
    "role",
    "roles",
    "save",
    "serve",
    "set_learning_rate",
    "shutdown",
    "stats",
    "trainer_group",
    "trainers",
]

_ROLES = "PADDLEMPI_ROLES"
_TLS = {"cert": "Cert", "key": "Key", "ca": "CA"}
_CODES = (TRAINER, PSERVER, BOTH)
_WORDS = 5  # 64-bit words of what a rank tells in init: a digest, and its role


class Session:
    """What :func:`init` has made.

    Attributes:
        roles: the roles of all ranks, by rank.
        mode: "sync" or "async".
        trainer_group: the group of the trainers.
        completed: this trainer has said that it asks nothing more.
        empty: the number and the dim of a table; a step without gradients names it.
        dealt: dense parameters that are dealt to the servers in turn, by the names of their tables:
            how many blocks were dealt before theirs.
        names: those of the optimizers whose dense parameters are on the servers.
    """

    def __init__(self, roles: tuple[str, ...], rank: int, mode: str) -> None:
        self.roles = roles
        self.rank = rank
        self.mode = mode
        self.trainers = [rank for rank, role in enumerate(roles) if trains(role)]
        self.trainer_group: ProcessGroup = GroupMember.NON_GROUP_MEMBER
        self.completed = False
        self.empty: tuple[int, int] | None = None
        self.dealt: dict[str, int] = {}
        self.names: set[str] = set()
        self._blocks = 0
        self.lock = threading.Lock()

    def deal(self, name: str, blocks: int) -> int:
        """Return the turn of the first block of a table, which has so many.

        A table that is made again keeps its turns.
        """
        with self.lock:
            if name not in self.dealt:
                self.dealt[name] = self._blocks
                self._blocks += blocks
            return self.dealt[name]


class _State:
    """The session of this process, and how its servers end."""

    def __init__(self) -> None:
        self.session: Session | None = None
        # A process that only serves does so in init, and then ends: run --roles.
        self.servers_end_in_init = False
        self.at_exit = False  # the callback for the end of the process is registered
        self.before_complete: list[Callable[[], None]] = []


_state = _State()


# Beginning


def init(
    roles: RolesArgument = None,
    *,
    mode: str = "sync",
    timeout: timedelta | float = DEFAULT_TIMEOUT,
    tls: Mapping[str, str | os.PathLike[str]] | None = None,
) -> None:
    """Give the ranks their roles, and start the servers. Every rank of the world calls it.

    It calls :func:`paddlempi.init_process_group` if the process is not initialised. Under
    ``python -m paddlempi run --roles`` it does not return in a process that only serves: it serves,
    and then ends the process with status 0.

    Args:
        roles: the roles of the ranks, the same on all of them:

            * ``"trainer:3,pserver:2"``: the first three ranks train, the next two have the tables.
              ``*`` stands for all ranks that are left. ``trainer+pserver`` is a role too.
            * ``"node:trainer:*,pserver:1"``: the same for the ranks of every node; here the last
              rank of every node has a part of the tables.
            * a map of ranks to roles, or a function of a rank.
            * None: the value of ``PADDLEMPI_ROLES``; if it is not set, every rank has both roles.
        mode: "sync": a step is applied when the pushes of all trainers are there, so all trainers
            see the same rows. "async": a push is applied at once, and nobody waits.
        timeout: how long a request to a server may take, in sync mode with the wait for the other
            trainers: a timedelta or seconds.
        tls: files in PEM that encrypt the administration (``docs/ps-admin.md``): ``cert`` and
            ``key`` of this rank, ``ca`` for those of the others. The files may have other names on
            other ranks. None: no TLS.

    Raises:
        AlreadyInitializedError: it was called before, and :func:`shutdown` was not.
        ArgumentError: a role or the mode is wrong, or there are no trainers or no servers.
        DtypeError: an argument is of a wrong type.
        MismatchError: ranks have other arguments; ``ranks`` has those ranks.
        RefusedError: the arguments of other ranks are wrong.
        Error: what :func:`paddlempi.init_process_group` raises.
    """
    if _state.session is not None:
        raise AlreadyInitializedError("ps.init: it was called before; call ps.shutdown() first")
    if not is_initialized():
        init_process_group()
    world = members(None)
    found = _agree(roles, mode, timeout, tls, world)
    session = Session(found, world._rank, mode)
    if session.trainers == list(world._ranks):
        session.trainer_group = world
    elif world._rank in session.trainers:
        session.trainer_group = new_group(session.trainers)
    _native.control(
        "ps_init",
        group=world._id,
        roles=[role.split("+") for role in found],
        mode=mode,
        timeout=to_seconds(timeout, "ps.init"),
        functions=functions.names(),
        **_files(tls),
    )
    _state.session = session
    if functions.names() and serves(role()):
        functions.answer_calls()
    if not _state.at_exit:
        _state.at_exit = True
        atexit.register(_end_at_exit)
    if _state.servers_end_in_init and role() == PSERVER:
        serve()
        shutdown()
        sys.exit(0)


def servers_end_in_init() -> None:
    """Have :func:`init` serve and end the process, in every process that only serves."""
    _state.servers_end_in_init = True


def _files(tls: Mapping[str, str | os.PathLike[str]] | None) -> dict[str, Any]:
    """Return what the core takes of ``tls``.

    Raises:
        ArgumentError: it has another key, or none.
        DtypeError: it is no map of texts to paths.
    """
    if tls is None:
        return {}
    if not isinstance(tls, Mapping) or not all(
        isinstance(v, (str, os.PathLike)) for v in tls.values()
    ):
        raise DtypeError(f"ps.init: tls={tls!r} is no map of names to paths")
    if not tls or not set(tls) <= set(_TLS):
        raise ArgumentError(f"ps.init: tls has {sorted(tls)}; it takes {', '.join(_TLS)}")
    return {"tls": {_TLS[name]: os.fspath(path) for name, path in tls.items()}}


def _agree(
    given: RolesArgument, mode: str, timeout: Any, tls: Any, world: ProcessGroup
) -> tuple[str, ...]:
    """Return the roles of all ranks, if all ranks have given the same arguments."""
    if given is None:
        given = os.environ.get(_ROLES) or None
    size = len(world._ranks)
    try:
        if mode not in ("sync", "async"):
            raise ArgumentError(f"ps.init: mode={mode!r} is neither 'sync' nor 'async'")
        seconds = to_seconds(timeout, "ps.init")
        encrypted = ", with tls" if _files(tls) else ""
        all_roles = resolved(given, size)
        if all_roles is None:
            mine = of_node(str(given), get_local_rank(), get_local_size())
        else:
            mine = all_roles[world._rank]
    except Error as error:
        refuse(Op.ALL_GATHER, None, error)
    arguments = f"roles={given if all_roles is None else list(all_roles)}, mode={mode!r}, "
    arguments += f"timeout={seconds:g} s{encrypted}"
    digest = hashlib.blake2b(arguments.encode(), digest_size=8 * (_WORDS - 1)).digest()
    told = array("q", digest)
    told.append(_CODES.index(mine))
    everyone = array("q", bytes(8 * _WORDS * size))
    _native.submit(Op.ALL_GATHER, world._id, told, everyone)
    lines = [tuple(everyone[i * _WORDS : (i + 1) * _WORDS]) for i in range(size)]
    (usual, _), *others = Counter(line[:-1] for line in lines).most_common()
    if others:
        ranks = tuple(rank for rank, line in enumerate(lines) if line[:-1] != usual)
        differ = MismatchError(
            f"ps.init: rank(s) {', '.join(map(str, ranks))} gave other arguments than the others; "
            f"rank {world._rank} gave {arguments}: give the same on every rank"
        )
        differ.ranks = ranks[:32]
        raise differ
    if all_roles is None:
        return checked([_CODES[line[-1]] for line in lines], given)
    return all_roles


# Queries


def current(what: str) -> Session:
    """Return the session.

    Raises:
        NotInitializedError: there is none.
    """
    if _state.session is None:
        raise NotInitializedError(f"{what}: call ps.init() first")
    return _state.session


def is_begun() -> bool:
    """Whether there is a session."""
    return _state.session is not None


def as_trainer(what: str) -> Session:
    """Return the session of a rank that trains.

    Raises:
        NotInitializedError: there is no session.
        ArgumentError: this rank only serves.
    """
    session = current(what)
    if not trains(session.roles[session.rank]):
        raise ArgumentError(
            f"{what}: rank {session.rank} is a {PSERVER}; only trainers do this: call it behind "
            "`if ps.is_trainer():`, or start the program with `python -m paddlempi run --roles`"
        )
    return session


def is_trainer() -> bool:
    """Whether this rank trains."""
    return trains(role())


def role() -> str:
    """Return this rank's role: "trainer", "pserver" or "trainer+pserver".

    Raises:
        NotInitializedError: before :func:`init`.
    """
    session = current("ps.role")
    return session.roles[session.rank]


def roles() -> tuple[str, ...]:
    """Return the roles of all ranks, by rank.

    Raises:
        NotInitializedError: before :func:`init`.
    """
    return current("ps.roles").roles


def trainers() -> list[int]:
    """Return the ranks that train, in ascending order.

    Raises:
        NotInitializedError: before :func:`init`.
    """
    return list(current("ps.trainers").trainers)


def pservers() -> list[int]:
    """Return the ranks that have parts of the tables, in ascending order.

    Raises:
        NotInitializedError: before :func:`init`.
    """
    return [rank for rank, role in enumerate(current("ps.pservers").roles) if serves(role)]


def trainer_group() -> ProcessGroup:
    """Return the group of the trainers; ``GroupMember.NON_GROUP_MEMBER`` on other ranks.

    Raises:
        NotInitializedError: before :func:`init`.
    """
    return current("ps.trainer_group").trainer_group


# What trainers and servers do


def serve() -> None:
    """Wait until all trainers have completed. Servers answer meanwhile, and until shutdown.

    A rank that only serves calls this after :func:`init`. A rank with both roles answers requests
    all the time, and need not call it.

    Raises:
        NotInitializedError: before :func:`init`.
        ArgumentError: this rank is no server.
        PeerLeftError, PeerDiedError: a trainer has ended without :func:`complete`; in async mode,
            all of them have.
        PeerDiedError: another server has died before all trainers completed.
    """
    session = current("ps.serve")
    if not serves(session.roles[session.rank]):
        raise ArgumentError(f"ps.serve: rank {session.rank} is a {TRAINER}; only servers serve")
    _native.control("ps_serve")


def barrier(name: str = "barrier") -> None:
    """Wait until all trainers that have not completed are here, with the same name.

    Raises:
        NotInitializedError: before :func:`init`.
        ArgumentError: this rank does not train.
        DtypeError: ``name`` is no text.
        TimeoutError: a trainer did not come.
    """
    as_trainer("ps.barrier")
    _text("ps.barrier", name)
    _native.control("ps_barrier", name=name)


def stats() -> dict[str, Any]:
    """Return what the servers count: tables and their rows, memory, trainers and their lag.

    ``bytes`` and ``rpcs`` count what this rank has moved, and its calls over gRPC. On a rank that
    only serves it is of this server alone.

    Raises:
        NotInitializedError: before :func:`init`.
    """
    current("ps.stats")
    return _native.control("ps_stats")


def save(folder: str | os.PathLike[str], step: int, *, keep: int = 2, extra: bytes = b"") -> None:
    """Have the servers write all tables into a folder that they see.

    All trainers that have not completed call it, with the same arguments but ``extra``. Other
    threads may push meanwhile: each push is in the cut with all its tables or not at all, and with
    it all that its trainer pushed before. Such a push waits while the servers copy their rows. The
    cut is complete when this returns; until then :func:`restore` finds an earlier one. After Ctrl-C
    or the timeout the servers stop, and the earlier one stays.

    Args:
        folder: the folder, which is made if need be.
        step: the number of the step, which names the cut.
        keep: how many whole cuts stay, this one among them; 0: all. Before one is removed, the
            servers read those that stay and compare their checksums.
        extra: what :func:`restore` gives back, such as a pickle of the dense parameters. That of
            the first trainer counts.

    Raises:
        NotInitializedError: before :func:`init`.
        ArgumentError: this rank does not train, there is a complete cut of this step, a server
            cannot write there, or what it has written cannot be read again: then no older cut was
            removed.
        MismatchError: trainers give other arguments. Nothing was written.
        DtypeError: ``step`` or ``keep`` is no integer, or ``extra`` has no bytes.
        TimeoutError: it took longer than the timeout of :func:`init`.
    """
    as_trainer("ps.save")
    number, kept = whole("ps.save", "step", step), whole("ps.save", "keep", keep)
    try:
        text = base64.b64encode(extra).decode()
    except TypeError as error:
        raise DtypeError(f"ps.save: extra: {error}") from None
    _native.control("ps_save", dir=os.fspath(folder), step=number, keep=kept, extra=text)


def restore(folder: str | os.PathLike[str], step: int | None = None) -> dict[str, Any]:
    """Have the servers read a complete cut of a folder into the tables that were made.

    All trainers that have not completed call it, with the same arguments, after they have made
    their tables. The cut may be of another number of servers. The servers read it whole and compare
    its checksums before they change a row. A learning rate that was set is that of the cut.

    Args:
        folder: the folder.
        step: which cut. None: the newest that is whole. A warning says which newer ones are not.

    Returns:
        ``step``; ``extra``, the bytes that :func:`save` was given; ``rows``, how many all servers
        have now; ``skipped``, a list of the newer cuts that are not whole, the newest first: of
        each a dict of its ``step`` and ``why``.

    Raises:
        NotInitializedError: before :func:`init`.
        ArgumentError: this rank does not train, there is no complete cut or none that is whole, or
            a table of it has another configuration.
        MismatchError: trainers give other arguments. Nothing was restored.
        DtypeError: ``step`` is no integer.
        TimeoutError: it took longer than the timeout of :func:`init`. Then, and after Ctrl-C, the
            tables have some rows of the cut: restore again.
    """
    as_trainer("ps.restore")
    if step is not None:
        step = whole("ps.restore", "step", step)
    told = _native.control("ps_restore", dir=os.fspath(folder), step=step)
    skipped = told.get("skipped") or []
    warn_of_skipped("ps.restore", told["step"], [one["why"] for one in skipped], above=2)
    return {**told, "extra": base64.b64decode(told.get("extra") or ""), "skipped": skipped}


def set_learning_rate(name: str, rate: float) -> None:
    """Set the learning rate of a table on all servers, for all pushes that name none.

    Raises:
        NotInitializedError: before :func:`init`.
        ArgumentError: this rank does not train, there is no table of the name, or ``rate`` is
            negative or not finite.
        DtypeError: ``name`` is no text, or ``rate`` no number.
    """
    as_trainer("ps.set_learning_rate")
    _text("ps.set_learning_rate", name)
    number = rate_of("ps.set_learning_rate", rate)
    if number is None:
        raise DtypeError("ps.set_learning_rate: rate=None is no number")
    _native.control("ps_learning_rate", name=name, rate=number)


def _text(what: str, name: Any) -> None:
    if not isinstance(name, str):
        raise DtypeError(f"{what}: name={name!r} is no text")


# End


def before_complete(end: Callable[[], None]) -> None:
    """Have ``end()`` called before a trainer completes."""
    _state.before_complete.append(end)


def complete() -> None:
    """Say that this trainer asks nothing more. Others no longer wait for it. Once is enough.

    The end of a program that raised no exception does this too, and so do :func:`shutdown` and
    ``destroy_process_group``.

    Raises:
        NotInitializedError: before :func:`init`.
        ArgumentError: this rank does not train.
        PeerDiedError: a server has died. The others do not count this trainer as completed.
    """
    session = as_trainer("ps.complete")
    with session.lock:
        if session.completed:
            return
        session.completed = True
    try:
        for end in _state.before_complete:
            end()
        _native.control("ps_complete")
    except KeyboardInterrupt:
        session.completed = False  # the next call tells the servers
        raise


def shutdown() -> None:
    """End the parameter server of the world. Every rank calls it; without one it does nothing.

    A trainer completes. A server waits for all trainers first, because others may still need its
    rows. The tables are gone afterwards, and :func:`init` may be called again.
    """
    session = _state.session
    if session is None:
        return
    role = session.roles[session.rank]
    try:
        if trains(role):
            complete()
        if serves(role):
            serve()
    finally:
        _state.session = None
        _native.control("ps_close")


def _end_at_exit() -> None:
    # A rank that fails aborts the job, and must not wait for the others before. A fork has no part.
    if _state.session is not None and not _exit.failing() and not _native.core().forked():
        shutdown()


def _forget() -> None:
    _state.session = None


before_destroy(shutdown)
at_destroy(_forget)
