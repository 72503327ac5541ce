"""The parameter server of a world: its roles, its beginning and its end."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

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
from .agreement import Mode, agree, files
from .config import rate_of
from .role_map import RolesArgument, deals, serves, trains
from .sender import Sender
from .table_owners import Owners

__all__ = [
    "barrier",
    "complete",
    "flush",
    "init",
    "is_trainer",
    "master",
    "pservers",
    "role",
    "roles",
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
        mode: "sync", "async", "ssp", "half_async", "geo" or "dc_asgd".
        trainer_group: the group of the trainers.
        completed: this trainer has said that it asks nothing more.
        empty: the number and the dim of a table; a step without gradients names it.
        dealt: dense parameters that are dealt to the servers in turn, by the names of their tables:
            how many blocks were dealt before theirs.
        names: those of the optimizers whose dense parameters are on the servers.
        owners: which optimizer pushes what layers have noted.
        restores: how often ``ps.restore`` has been called.
        sender: the queue of this trainer's pushes in mode "half_async"; else None.
        geo_step: that of mode "geo"; else None.
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
        self.owners = Owners()
        self.restores = 0
        self.sender: Sender | None = None
        self.geo_step: int | None = None
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

    def follow(self, mode: Mode) -> None:
        """Have this trainer do what a mode asks of trainers."""
        if self.sender is not None:
            self.sender.end()
            self.sender = None
        if mode.name == "half_async":
            self.sender = Sender(int(mode.send_queue), int(mode.merge), mode.merge_by)
        self.mode = mode.name
        self.geo_step = int(mode.geo_step) if mode.name == "geo" else None


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
    send_queue: int = 20,
    merge: int = 20,
    merge_by: str = "sum",
    geo_step: int = 100,
    compensation: float = 0.04,
    mean_square: float | None = None,
    backup_rows: int = 1 << 20,
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
            before it pulls (stale synchronous parallel: Ho et al., NIPS 2013). "half_async": a push
            is queued, and a thread merges what has come and sends it, so a trainer waits for no
            server either, unless its queue is full (Fluid's AsyncCommunicator). "geo": a push
            updates a copy of this trainer, and every ``geo_step`` pushes the trainer sends what the
            rows of the copy have gained since they came, divided by the number of trainers, which
            the servers add; then it pulls the servers' rows again (GeoSGD, of Paddle's
            GeoCommunicator; the paper nearest to it is Stich, "Local SGD Converges Fast and
            Communicates Little", ICLR 2019). "dc_asgd": as "async", but a server updates a row *w*
            with *g + compensation g g (w - b)* in the place of a trainer's gradient *g*, where *b*
            is the row as that trainer has pulled it last, and products are by element (Zheng et
            al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML 2017,
            DC-ASGD-c). :func:`set_mode` changes the mode later.
        staleness: the bound of mode "ssp", in steps, from 0. Other modes do not read it.
        send_queue: of mode "half_async": how many pushes wait in a trainer at most, from 1.
        merge: of mode "half_async": how many of them are sent as one at most, from 1. The gradients
            of a row are added up.
        merge_by: of mode "half_async": "sum": the servers get the sum of what is merged. "mean":
            divided by the number of merged pushes that have rows of the table (Fluid's
            ``MergeAverage``), so that an Adam or Adagrad sees gradients as large as one push's.
        geo_step: of mode "geo": how many pushes a trainer makes between two exchanges, from 1.
        compensation: of mode "dc_asgd": the factor of its formula, above 0.
        mean_square: of mode "dc_asgd": None: ``compensation`` is constant. A number between 0 and
            1, such as 0.95: DC-ASGD-a. For each element *m = mean_square m + (1 - mean_square) g²*
            over all gradients, and the factor is *compensation / sqrt(m + 1e-7)*.
        backup_rows: of mode "dc_asgd": how many rows of each sparse table a server keeps for each
            trainer as *b* at most, from 1. A gradient of a row without one is taken as it is.
        timeout: how long a request to a server may take, in sync mode with the wait for the other
            trainers: a timedelta or seconds.
        tls: files in PEM that encrypt the administration (``docs/ps-reference.md``): ``cert`` and
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
        how = Mode(
            mode,
            staleness,
            send_queue,
            merge,
            merge_by,
            geo_step,
            compensation,
            mean_square,
            backup_rows,
        )
        _begin(roles, how, timeout, tls)
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
    mode: Mode,
    timeout: timedelta | float,
    tls: Mapping[str, str | os.PathLike[str]] | None,
) -> None:
    """Make the session, together with all other ranks."""
    if not is_initialized():
        init_process_group()
    world = members(None)
    found = agree(roles, mode, timeout, tls, world)
    session = Session(found, world._rank, mode.name)
    if session.trainers == list(world._ranks):
        session.trainer_group = world
    elif world._rank in session.trainers:
        session.trainer_group = new_group(session.trainers)
    _native.control(
        "ps_init",
        group=world._id,
        roles=[role.split("+") for role in found],
        timeout=to_seconds(timeout, "ps.init"),
        functions=functions.names(),
        **mode.for_core(),
        **files(tls),
    )
    if world._rank in session.trainers:
        session.follow(mode)
    _state.session = session


def flush() -> None:
    """Wait until the servers have what this trainer has pushed.

    In mode "half_async" the queue is sent; in mode "geo" the copy is exchanged, however few pushes
    it has. :func:`barrier`, :func:`save`, :func:`restore`, :func:`complete`,
    :func:`set_learning_rate` and ``write`` of a table do so. In other modes a push has been applied
    when it returns.

    Raises:
        NotInitializedError: before :func:`init`.
        ArgumentError: this rank does not train.
        Error: in mode "half_async", what a push has failed with since the last call that said so.
            It is lost. In mode "geo", as :meth:`paddlempi.ps.RemoteTable.push`: what was not sent
            to any server is sent by the next exchange, the rest may be lost.
    """
    found = as_trainer("ps.flush")
    if found.sender is not None:
        found.sender.flush()
    elif found.mode == "geo":
        _native.control("ps_flush")


def sender() -> Sender | None:
    """The queue of this trainer's pushes; None in other modes, or without a session."""
    return None if _state.session is None else _state.session.sender


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
    flush()
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


def set_learning_rate(name: str, rate: float) -> None:
    """Set the learning rate of a table on all servers, for all pushes that name none.

    Raises:
        NotInitializedError: before :func:`init`.
        ArgumentError: this rank does not train, there is no table of the name, or ``rate`` is
            negative or not finite.
        DtypeError: ``name`` is no text, or ``rate`` no number.
        UnsupportedError: in mode "geo", where the trainers update rows: set ``learning_rate`` of
            the table on each of them.
    """
    as_trainer("ps.set_learning_rate")
    flush()
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
        Error: what :func:`flush` raises: a queued push has failed, or an exchange. The trainer has
            completed.
    """
    session = as_trainer("ps.complete")
    with session.lock:
        if session.completed:
            return
        session.completed = True
    lost: Error | None = None  # what a queued push has failed with
    try:
        try:
            flush()
        except Error as told:
            lost = told
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
    if lost is not None:
        raise lost


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
        if session.sender is not None:
            session.sender.end()
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
