"""The parameter server of a world: its roles, its beginning and its end."""

from __future__ import annotations

import atexit
import base64
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from .. import _exit, _native
from ..errors import (
    BY_CODE,
    AlreadyInitializedError,
    ArgumentError,
    DtypeError,
    Error,
    NotInitializedError,
    PeerDiedError,
    ReentrantError,
)
from ..group import (
    DEFAULT_TIMEOUT,
    GroupMember,
    ProcessGroup,
    at_destroy,
    before_destroy,
    init_process_group,
    is_initialized,
    members,
    new_group,
)
from ..group_arguments import to_seconds
from . import functions
from .agreement import agree, files
from .config import from_zero, rate_of
from .cuts import newest, warn_of_skipped
from .role_map import RolesArgument, deals, serves, trains

__all__ = [
    "barrier",
    "complete",
    "init",
    "is_trainer",
    "latest",
    "master",
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


class Session:
    """What :func:`init` has made.

    Attributes:
        roles: the roles of all ranks, by rank.
        mode: "sync", "async" or "ssp".
        trainer_group: the group of the trainers.
        completed: this trainer has said that it asks nothing more.
        empty: the number and the dim of a table; a step without gradients names it.
        dealt: dense parameters that are dealt to the servers in turn, by the names of their tables:
            how many blocks were dealt before theirs.
        names: those of the optimizers whose dense parameters are on the servers.
        restores: how often :func:`restore` has been called.
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
        self.restores = 0
        self._blocks = 0
        self.lock = threading.RLock()  # a signal handler may interrupt who holds it

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
        self.beginning = 0  # the thread that is in init
        # A process that only serves does so in init, and then ends: run --roles.
        self.servers_end_in_init = False
        self.at_exit = False  # the callback for the end of the process is registered
        self.deaths = 0  # errors of deaths that the program has got in the last session
        self.before_complete: list[Callable[[], None]] = []


_state = _State()


# Beginning


def init(
    roles: RolesArgument = None,
    *,
    mode: str = "sync",
    staleness: int = 3,
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
              ``*`` stands for all ranks that are left. ``trainer+pserver`` is a role too, and one
              rank may be the ``master`` (:func:`tasks`).
            * ``"node:trainer:*,pserver:1"``: the same for the ranks of every node; here the last
              rank of every node has a part of the tables.
            * a map of ranks to roles, or a function of a rank.
            * None: the value of ``PADDLEMPI_ROLES``; if it is not set, every rank has both roles.
        mode: "sync": a step is applied when the pushes of all trainers are there, so all trainers
            see the same rows. "async": a push is applied at once, and nobody waits. "ssp": the
            same, but a trainer that is more than ``staleness`` steps ahead of another one waits
            before it pulls (stale synchronous parallel: Ho et al., NIPS 2013).
        staleness: the bound of mode "ssp", in steps, from 0. Other modes do not read it.
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
        ReentrantError: a signal handler calls it that has interrupted it.
        Error: what :func:`paddlempi.init_process_group` raises.
    """
    if _state.session is not None:
        raise AlreadyInitializedError("ps.init: it was called before; call ps.shutdown() first")
    if _state.beginning == threading.get_ident():
        raise ReentrantError(
            "ps.init: called by a signal handler that interrupted ps.init, which cannot end before "
            "the handler does"
        )
    if _state.beginning:
        raise AlreadyInitializedError("ps.init: another thread is in it")
    _state.beginning = threading.get_ident()
    try:
        _begin(roles, mode, staleness, timeout, tls)
    finally:
        _state.beginning = 0
    if functions.names() and serves(role()):
        functions.answer_calls()
    if not _state.at_exit:
        _state.at_exit = True
        atexit.register(_end_at_exit)
    if _state.servers_end_in_init and not is_trainer():
        serve()
        shutdown()
        sys.exit(0)


def _begin(
    roles: RolesArgument,
    mode: str,
    staleness: int,
    timeout: timedelta | float,
    tls: Mapping[str, str | os.PathLike[str]] | None,
) -> None:
    """Make the session, together with all other ranks."""
    if not is_initialized():
        init_process_group()
    world = members(None)
    found = agree(roles, mode, staleness, timeout, tls, world)
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
        **({"staleness": int(staleness)} if mode == "ssp" else {}),
        **files(tls),
    )
    _state.session = session


def servers_end_in_init() -> None:
    """Have :func:`init` serve and end the process, in every process that only serves."""
    _state.servers_end_in_init = True


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
            f"{what}: rank {session.rank} is a {session.roles[session.rank]}; only trainers do "
            "this: call it behind `if ps.is_trainer():`, or start the program with "
            "`python -m paddlempi run --roles`"
        )
    return session


def is_trainer() -> bool:
    """Whether this rank trains."""
    return trains(role())


def role() -> str:
    """Return this rank's role: "trainer", "pserver", "master", or several, as "trainer+pserver".

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


def master() -> int | None:
    """Return the rank that deals out the shards of data sets; None if there is none.

    Raises:
        NotInitializedError: before :func:`init`.
    """
    ranks = [rank for rank, role in enumerate(current("ps.master").roles) if deals(role)]
    return ranks[0] if ranks else None


def _answers(role: str) -> bool:
    """Whether a rank of this role answers trainers."""
    return serves(role) or deals(role)


def trainer_group() -> ProcessGroup:
    """Return the group of the trainers; ``GroupMember.NON_GROUP_MEMBER`` on other ranks.

    Raises:
        NotInitializedError: before :func:`init`.
    """
    return current("ps.trainer_group").trainer_group


# What trainers and servers do


def serve() -> None:
    """Wait until all trainers have completed. Servers answer meanwhile, and until shutdown.

    A rank that does not train calls this after :func:`init`. A rank with several roles answers
    requests all the time, and need not call it.

    Raises:
        NotInitializedError: before :func:`init`.
        ArgumentError: this rank is neither a server nor the master.
        PeerLeftError, PeerDiedError: a trainer has ended without :func:`complete`; in async mode,
            all of them have.
        PeerDiedError: another server has died before all trainers completed.
    """
    session = current("ps.serve")
    if not _answers(session.roles[session.rank]):
        raise ArgumentError(
            f"ps.serve: rank {session.rank} is a trainer; only servers and the master serve"
        )
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

    All trainers that have not completed call it, with the same arguments but ``extra``, between the
    same two steps. One thread of each trainer calls it; others may pull and push meanwhile: each
    push is in the cut with all its tables or not at all, and with it all that its trainer pushed
    before. Such a push waits while the servers copy their rows. The cut is complete when this
    returns; until then :func:`restore` finds an earlier one. After Ctrl-C or the timeout the
    servers stop, and the earlier one stays.

    Args:
        folder: the folder, which is made if need be.
        step: the number of the step, which names the cut.
        keep: how many whole cuts stay, this one among them; 0: all. Before one is removed, the
            servers read those that stay and compare their checksums.
        extra: what :func:`restore` gives back, such as a pickle of the dense parameters: 8 MiB at
            most. That of the first trainer counts.

    Raises:
        NotInitializedError: before :func:`init`.
        ArgumentError: this rank does not train, ``step`` or ``keep`` is below 0, there is a
            complete cut of this step, a server cannot write there, or what it has written cannot be
            read again: then no older cut was removed.
        MismatchError: trainers give other arguments. Nothing was written.
        DtypeError: ``step`` or ``keep`` is no integer, or ``extra`` has no bytes.
        TimeoutError: it took longer than the timeout of :func:`init`.
    """
    as_trainer("ps.save")
    number, kept = from_zero("ps.save", "step", step), from_zero("ps.save", "keep", keep)
    try:
        text = base64.b64encode(extra).decode()
    except TypeError as error:
        raise DtypeError(f"ps.save: extra: {error}") from None
    _native.control("ps_save", dir=os.fspath(folder), step=number, keep=kept, extra=text)


class Saved(NamedTuple):
    """The newest cut of a folder."""

    step: int
    path: Path


def latest(folder: str | os.PathLike[str]) -> Saved | None:
    """Return the newest cut of a folder, or None if nothing has been saved there.

    With it a program begins anew, or goes on::

        if ps.latest(folder):
            told = ps.restore(folder)

    After :func:`init` the first server looks, because trainers need not see the folder. Before, and
    in a process without servers, this process does. It waits for no other trainer.

    Args:
        folder: what :func:`save` was given.

    Returns:
        The step and the folder of the newest cut whose files are there with their sizes.

    Raises:
        ArgumentError: this rank only serves; or there are cuts, and all of them are damaged: to
            begin anew would hide the loss.
        TimeoutError: the server did not answer in time.
    """
    where = os.fspath(folder)
    if is_begun():
        as_trainer("ps.latest")
        step = _native.control("ps_latest", dir=where).get("step")
    else:
        step = newest(where)
    return None if step is None else Saved(step, Path(where, f"cut-{step:08d}"))


def restore(
    folder: str | os.PathLike[str],
    step: int | None = None,
    *,
    tables: Iterable[str] | None = None,
    strict: bool = True,
) -> dict[str, Any]:
    """Have the servers read a complete cut of a folder into the tables that were made.

    All trainers that have not completed call it, with the same arguments, after they have made
    their tables. The cut may be of another number of servers. The servers read it whole and compare
    its checksums before they change a row. A learning rate that was set is that of the cut. Where
    nothing may be saved yet, ask :func:`latest` first.

    Args:
        folder: the folder.
        step: which cut. None: the newest that is whole. A warning says which newer ones are not.
        tables: the names of the tables to read. The others stay as they are. None: all.
        strict: whether the tables must be those of the cut. If not, a table that only the cut has
            is left out, and one that the cut does not have stays as it is. Tables of both must have
            the same configuration in either case.

    Returns:
        ``step``; ``extra``, the bytes that :func:`save` was given; ``rows``, how many all servers
        have now; ``tables``, the names of those that were read; ``tasks``, the names of the data
        sets whose queues the master has read, none if ``tables`` were given; ``skipped``, a list of
        the newer cuts that are not whole, the newest first: of each a dict of its ``step`` and
        ``why``.

    Raises:
        NotInitializedError: before :func:`init`.
        ArgumentError: this rank does not train, there is no complete cut or none that is whole, or
            a table of it has another configuration; with ``strict`` also, if a table is only in the
            cut, or not in it.
        MismatchError: trainers give other arguments. Nothing was restored.
        DtypeError: ``step`` is no integer, or ``tables`` are no texts.
        TimeoutError: it took longer than the timeout of :func:`init`. Then, and after Ctrl-C, the
            tables have some rows of the cut: restore again.
    """
    as_trainer("ps.restore")
    if step is not None:
        step = from_zero("ps.restore", "step", step)
    taking: dict[str, Any] = {} if strict else {"strict": False}
    if tables is not None:
        taking["tables"] = _names("ps.restore", tables)
    current("ps.restore").restores += 1
    told = _native.control("ps_restore", dir=os.fspath(folder), step=step, **taking)
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


def _names(what: str, tables: Any) -> list[str]:
    names = [] if isinstance(tables, str) else list(tables)
    if isinstance(tables, str) or not all(isinstance(name, str) for name in names):
        raise DtypeError(f"{what}: tables={tables!r} are no list of names")
    return names


def _text(what: str, name: Any) -> None:
    if not isinstance(name, str):
        raise DtypeError(f"{what}: name={name!r} is no text")


# End


def before_complete(end: Callable[[], None]) -> None:
    """Have ``end()`` called before a trainer completes."""
    _state.before_complete.append(end)


def complete() -> None:
    """Say that this trainer asks nothing more. Others no longer wait for it. Once is enough.

    A push of it that was given up (by a timeout, or Ctrl-C) and still waits for other trainers
    stays a part of its step. The end of a program that raised no exception does this too, and so do
    :func:`shutdown` and ``destroy_process_group``. After an error call it again.

    Raises:
        NotInitializedError: before :func:`init`.
        ArgumentError: this rank does not train.
        RefusedError: a function of :class:`KV` has raised an exception in a call for which this
            trainer has not waited. The trainer has completed, and its servers are told.
        TimeoutError: a server did not answer in time.
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
        answer = _native.control("ps_complete")
    except BaseException:
        session.completed = False  # the next call tells the servers
        raise
    failed = answer.get("failed")
    if failed is not None:
        error = BY_CODE.get(failed["code"], Error)(failed["message"])
        error.ranks = tuple(failed["ranks"] or ())
        raise error


def shutdown() -> None:
    """End the parameter server of the world. Every rank calls it; without one it does nothing.

    A trainer completes. A server waits for all trainers first, because others may still need its
    rows. The tables are gone afterwards, and :func:`init` may be called again.

    Raises:
        Error: as :func:`complete` and :func:`serve`. This rank has no part in the parameter server
            any more all the same.
    """
    session = _state.session
    if session is None:
        return
    role = session.roles[session.rank]
    failed = None
    try:
        if trains(role):
            try:
                complete()
            except Error as error:
                if not session.completed:
                    raise
                failed = error
        if _answers(role):
            serve()
    finally:
        _state.session = None
        _state.deaths = _native.control("ps_close").get("deaths", 0)
    if failed is not None:
        raise failed


def _end_at_exit() -> None:
    # A rank that fails aborts the job, and must not wait for the others before. A fork has no part.
    if _state.session is None or _exit.failing() or _native.core().forked():
        return
    try:
        shutdown()
    except PeerDiedError as error:
        if _state.deaths < 2:  # the program has caught no error of a death before this one
            _exit.fail(error)
    except BaseException as error:
        _exit.fail(error)


def _forget() -> None:
    _state.session = None


before_destroy(shutdown)
at_destroy(_forget)
