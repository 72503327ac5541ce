"""Process groups: beginning and end of the world, groups of its ranks, and queries.

The names are ``torch.distributed``'s. Ranks in arguments and results are *global* ranks (of the
world) unless a name says ``group_rank``. Making or destroying a group is collective over its
members. All other functions are local.

Thread-safety: all functions and methods may be called from any thread.
"""

from __future__ import annotations

import os
import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from weakref import WeakValueDictionary

from . import _exit, _log, _marks, _native
from ._ops import Op
from .errors import (
    AlreadyInitializedError,
    ArgumentError,
    DtypeError,
    Error,
    NotInitializedError,
    NotMemberError,
)
from .group_arguments import check_backend, checked_ranks, comm_handle, front_of, to_seconds

__all__ = [
    "GroupMember",
    "ProcessGroup",
    "destroy_process_group",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_local_rank",
    "get_local_size",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_available",
    "is_initialized",
    "new_group",
    "new_subgroups",
    "split_group",
]

DEFAULT_TIMEOUT = timedelta(minutes=30)
"""The deadline of a group's operations if ``init_process_group`` is given none."""

WORLD: ProcessGroup | None
"""The group of all ranks; None before init and after destroy (``paddlempi.group.WORLD``)."""

_by_id: WeakValueDictionary[int, ProcessGroup] = WeakValueDictionary()


class ProcessGroup:
    """Some ranks of the world, in an order. Made by :func:`new_group` and the like.

    Invariant: if this process is a member, ``_ranks[_rank]`` is its global rank. Otherwise
    ``_rank`` is -1.
    """

    __slots__ = ("__weakref__", "_id", "_rank", "_ranks")

    def __init__(self, id: int, rank: int, ranks: Sequence[int]) -> None:
        self._id = id
        self._rank = rank
        self._ranks = ranks
        _by_id.setdefault(id, self)
        _log.info("group %d begins: rank %d of the ranks %s", id, rank, ranks)

    def rank(self) -> int:
        """This process's rank in the group; -1 if it is no member."""
        return self._rank

    def size(self) -> int:
        """The number of members; -1 if this process is no member."""
        return len(self._ranks) if self._rank >= 0 else -1

    def __repr__(self) -> str:
        return f"ProcessGroup(id={self._id}, rank={self._rank}, ranks={list(self._ranks)})"


class _NonMember(ProcessGroup):
    __slots__ = ()

    def __repr__(self) -> str:
        return "GroupMember.NON_GROUP_MEMBER"


class GroupMember:
    """Holds ``NON_GROUP_MEMBER``, which :func:`new_group` returns to a rank that is no member."""

    NON_GROUP_MEMBER = _NonMember(-1, -1, ())


class _State:
    """The world of this process. Only a thread that holds ``lock`` writes to it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.world: ProcessGroup | None = None
        self.ranks = range(0)  # of the world
        self.local_rank = 0
        self.local_size = 1
        self.before_destroy: list[Callable[[], None]] = []
        self.at_destroy: list[Callable[[], None]] = []
        self.settings: dict[str, Any] | None = None  # of the last init
        self.generation = -1  # of the last world; -1: there was none


_state = _State()


def __getattr__(name: str) -> Any:
    if name == "WORLD":
        return _state.world
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Beginning and end


def init_process_group(
    backend: str = "mpi",
    *,
    timeout: timedelta | float = DEFAULT_TIMEOUT,
    mpi: str | os.PathLike[str] | None = None,
    comm: Any = None,
    framework: str | None = None,
    abort_on_death: bool | None = None,
    init_method: str | None = None,
    rank: int = -1,
    world_size: int = -1,
    store: Any = None,
) -> None:
    """Join the other ranks of the job, and make the group of all ranks.

    Every rank of the job calls it. After :func:`destroy_process_group` it may be called again.
    Under an MPI's launcher it starts MPI, or joins the MPI that runs. Otherwise the ranks meet in a
    store, and need no MPI if all of them are on one node: under torchrun,
    ``python -m paddlempi run -np`` and ``paddle.distributed.launch`` without arguments, in
    processes that a program has started itself by ``init_method`` or ``store``
    (docs/install.md).

    Args:
        backend: ``"mpi"``, the only backend.
        timeout: how long an operation waits for the other ranks before it raises
            ``TimeoutError``; a timedelta or seconds. It also limits how long this call waits for
            the other ranks, and is the default of new groups. Where MPI itself waits for ranks of
            other nodes, which nothing can end, the process ends with status 1 then, after a line
            (docs/my-job-hangs.md).
        mpi: the path of the libmpi to load. It goes before ``PADDLEMPI_MPI`` and before any
            search.
        comm: an mpi4py intracommunicator whose ranks become the world, instead of those of
            ``MPI.COMM_WORLD``. It is duplicated, and the caller goes on owning it.
        framework: ``"paddle"`` or ``"torch"`` makes the default group of that framework too, so
            that ``paddle.distributed`` or ``torch.distributed`` goes over MPI.
        abort_on_death: what happens if another rank of a group dies while all its members are
            inside a collective that MPI carries out. True: the collective blocks in MPI, which is
            fastest, and the process ends after it has written a line. False: the caller gets a
            ``PeerDiedError``, as in all other waits. It is false for a group if it is false on one
            of its ranks. None: true unless ``PADDLEMPI_ABORT_ON_DEATH`` is 0.

    Raises:
        AlreadyInitializedError: the process is initialised.
        MPINotFoundError: there is no MPI library; the message lists where it was looked for.
        LauncherError: the launcher and the library belong to different MPIs.
        ThreadLevelError: MPI runs, or can run, below ``MPI_THREAD_MULTIPLE`` only.
        ArgumentError: a wrong ``backend``, ``timeout``, ``comm``, ``framework``, ``init_method``,
            ``rank`` or ``world_size``; or two processes have one rank.
        DtypeError: an argument is of a wrong type.
        TimeoutError: some ranks did not call it in time; ``ranks`` are those.

    Warns:
        RuntimeWarning: the ranks of this node cannot map each other's memory, so collectives use
            MPI. The first rank of the node warns, once. Rank 0 warns of a wrong table of ways.

    Source: :func:`torch.distributed.init_process_group`.
    """
    check_backend(backend)
    front = None if framework is None else front_of(framework)
    seconds = to_seconds(timeout, "init_process_group")
    path = None if mpi is None else os.fspath(mpi)
    handle = None if comm is None else comm_handle(comm)
    with _state.lock:
        if _state.world is not None:
            raise AlreadyInitializedError(
                "init_process_group: the process is initialised; call destroy_process_group() first"
            )
        _native.load()
        foreign = _exit.mpi_is_foreign()
        if comm is None:  # else MPI runs, and the caller says who is waited for
            _marks.comes()
        try:
            from .startup import core_init, worlds

            _state.settings = core_init.settings(seconds, abort_on_death, path, handle)
            if comm is None:
                world = worlds.find(rank, world_size, init_method, store)
            else:
                world = worlds.World("mpi", "comm was given")
            answer = core_init.begin(world, store, _state.settings)
            core_init.compare(answer, rank, world_size)
        except BaseException:
            _marks.left()
            raise
        begun(answer, foreign)
    core_init.warn(answer, stacklevel=2)
    if front is not None:
        front.init(timeout)


def begun(answer: dict[str, Any], foreign: bool) -> None:
    """Take in the world of an answer of the core. ``foreign``: mpi4py will finalize MPI."""
    _state.local_rank, _state.local_size = answer["local_rank"], answer["local_size"]
    _state.ranks = range(answer["size"])
    _state.world = ProcessGroup(answer["group"], answer["rank"], _state.ranks)
    _state.generation = answer["generation"]
    _exit.install(foreign)
    _marks.began(answer["rank"], answer["size"])


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Free one group, or end the world and free all its groups.

    The members of the group call it. MPI runs until the process ends, so that
    :func:`init_process_group` may be called again. Operations under way get a while to end (10 s
    for asynchronous ones). After that they are given up and raise ``GroupDestroyedError``.

    Args:
        group: the group to free. None and ``group.WORLD`` free all groups.

    Raises:
        NotInitializedError: before init or after destroy.
        GroupDestroyedError: the group was destroyed before.
    """
    failure: Exception | None = None
    if group is None or group is _state.world:
        for end in _state.before_destroy:
            try:
                end()
            except Exception as error:
                failure = failure or error
    with _state.lock:
        world = _world("destroy_process_group")
        if group is None or group is world:
            _exit.uninstall()
            _state.world, _state.ranks = None, range(0)
            try:
                _exit.tell_dead()
                _native.control("destroy")
                _log.info("the world has ended")
                _marks.left()
            finally:
                for leave in _state.at_destroy:
                    leave()
        elif not warn_nonmember(group, "destroy_process_group"):
            _native.control("destroy_group", group=group._id)
            _log.info("group %d has ended", group._id)
    if failure is not None:
        raise failure


def is_available() -> bool:
    """Whether :func:`init_process_group` may succeed here. Does not start MPI.

    The core can be loaded, and there is an MPI library, or no MPI's launcher has started this
    process and others: then the ranks of one node need no MPI.
    """
    from .startup import worlds

    try:
        if _native.control("info", sys_prefix=sys.prefix, mpi=None)["mpi"] is not None:
            return True
        world = worlds.find()
        return world.way != "mpi" or world.size == 1
    except Error:
        return False


def is_initialized() -> bool:
    """Whether there is a world: after init and before destroy."""
    return _state.world is not None


def group_of_id(id: int) -> ProcessGroup:
    """Return the group of this process with an id of the core."""
    return _by_id[id]


# Queries: none of them communicates


def get_rank(group: ProcessGroup | None = None) -> int:
    """This process's rank in ``group`` (None: the world); -1 if it is no member.

    Raises:
        NotInitializedError: before init or after destroy.
    """
    world = _world("get_rank")
    return (world if group is None else _group(group, "get_rank"))._rank


def get_world_size(group: ProcessGroup | None = None) -> int:
    """The number of members of ``group`` (None: the world); -1 if this process is no member.

    Raises:
        NotInitializedError: before init or after destroy.
    """
    world = _world("get_world_size")
    return (world if group is None else _group(group, "get_world_size")).size()


def get_local_rank() -> int:
    """This process's rank among the ranks of its node. Programs use it as the index of their GPU.

    It comes from MPI (``MPI_Comm_split_type``), never from a launcher's variables.

    Raises:
        NotInitializedError: before init or after destroy.
    """
    _world("get_local_rank")
    return _state.local_rank


def get_local_size() -> int:
    """The number of ranks on this node, as MPI says.

    Raises:
        NotInitializedError: before init or after destroy.
    """
    _world("get_local_size")
    return _state.local_size


def get_backend(group: ProcessGroup | None = None) -> str:
    """Return ``"mpi"``.

    Raises:
        NotInitializedError: before init or after destroy.
        ArgumentError: this process is no member of ``group``.
    """
    _world("get_backend")
    if group is not None and _group(group, "get_backend")._rank < 0:
        raise ArgumentError("get_backend: this rank is no member of the group")
    return "mpi"


def get_process_group_ranks(group: ProcessGroup | None = None) -> list[int]:
    """The global ranks of the members of ``group`` (None: the world), in the order of the group.

    Raises:
        NotInitializedError: before init or after destroy.
    """
    world = _world("get_process_group_ranks")
    return list((world if group is None else _group(group, "get_process_group_ranks"))._ranks)


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """Return the rank in ``group`` of a global rank.

    Raises:
        ArgumentError: ``global_rank`` is no member of ``group``.
    """
    _world("get_group_rank")
    try:
        return _group(group, "get_group_rank")._ranks.index(global_rank)
    except ValueError:
        raise ArgumentError(
            f"get_group_rank: global_rank={global_rank!r} is not among the group's ranks "
            f"{list(group._ranks)}"
        ) from None


def get_global_rank(group: ProcessGroup, group_rank: int) -> int:
    """Return the global rank of a rank of ``group``.

    Raises:
        ArgumentError: ``group_rank`` is out of range.
    """
    _world("get_global_rank")
    ranks = _group(group, "get_global_rank")._ranks
    if not 0 <= group_rank < len(ranks):
        raise ArgumentError(
            f"get_global_rank: group_rank={group_rank!r} is out of range, "
            f"the group has {len(ranks)} ranks"
        )
    return ranks[group_rank]


# Groups


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | float | None = None,
    backend: str | None = None,
) -> ProcessGroup:
    """Make a group of some ranks of the world.

    The members call it. Other ranks may call it too, as in torch, and get
    ``GroupMember.NON_GROUP_MEMBER``. Ranks that make several groups of the same members make them
    in the same order.

    Args:
        ranks: distinct global ranks, on every member in the same order: ``ranks[i]`` becomes rank
            i of the group. None: all ranks.
        timeout: how long the group's operations wait for other members, a timedelta or seconds.
            None: as long as the world's.
        backend: None or ``"mpi"``.

    Raises:
        ArgumentError: ``ranks`` is empty, or a rank is out of range or given twice.
        DtypeError: ``ranks`` is no sequence of integers.
        TimeoutError: a member did not call it in time, or stopped in it; ``ranks`` of the error
            are those members.
        PeerLeftError: the members ``ranks`` have ended, so that they will not call it.

    Source: :func:`torch.distributed.new_group`, which sorts the ranks.
    """
    world = _world("new_group")
    if backend is not None:
        check_backend(backend)
    members = list(world._ranks) if ranks is None else checked_ranks(ranks, len(world._ranks))
    seconds = None if timeout is None else to_seconds(timeout, "new_group")
    if world._rank not in members:
        return GroupMember.NON_GROUP_MEMBER
    answer = _native.control("new_group", ranks=members, timeout=seconds)
    return ProcessGroup(answer["group"], answer["rank"], tuple(members))


def new_subgroups(
    group_size: int | None = None,
    group: ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    backend: str | None = None,
) -> tuple[ProcessGroup, list[ProcessGroup]]:
    """Divide a group into subgroups of ``group_size`` consecutive ranks.

    All members of ``group`` call it.

    Args:
        group_size: the number of members of a subgroup; it must divide the size of the group.
            None: the number of ranks on this node.
        group: the group to divide; None: the world.
        timeout: how long the subgroups' operations wait, as for :func:`new_group`.
        backend: None or ``"mpi"``.

    Returns:
        This rank's subgroup, and a list with an item for every subgroup: this rank's, and
        ``GroupMember.NON_GROUP_MEMBER`` for the others.

    Raises:
        ArgumentError: ``group_size`` does not divide the size of the group.
        NotMemberError: this rank is no member of ``group``.

    Source: :func:`torch.distributed.new_subgroups`.
    """
    world = _world("new_subgroups")
    if backend is not None:
        check_backend(backend)
    parent = world if group is None else _member(group, "new_subgroups")
    size = _state.local_size if group_size is None else group_size
    ranks = parent._ranks
    if size < 1 or len(ranks) % size:
        raise ArgumentError(
            f"new_subgroups: group_size={size} does not divide the {len(ranks)} ranks of the group"
        )
    parts = [ranks[first : first + size] for first in range(0, len(ranks), size)]
    groups = [_subgroup(part, timeout, parent) for part in parts]
    return groups[parent._rank // size], groups


def split_group(
    color: int | None,
    key: int = 0,
    group: ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
) -> ProcessGroup:
    """Divide a group by colour, as ``MPI_Comm_split`` does.

    All members of ``group`` call it. The ranks of one colour become a group. They are ordered by
    ``key``, and ranks of equal keys by their rank in ``group``.

    Args:
        color: this rank's colour, a 64-bit integer. None: this rank joins no group.
        key: a 64-bit integer that orders the ranks of the new group.
        group: the group to divide; None: the world.
        timeout: how long the new group's operations wait, as for :func:`new_group`.

    Returns:
        This rank's new group; ``GroupMember.NON_GROUP_MEMBER`` for ``color=None``.

    Raises:
        ArgumentError: ``color`` or ``key`` is no 64-bit integer.
        NotMemberError: this rank is no member of ``group``.
    """
    world = _world("split_group")
    parent = world if group is None else _member(group, "split_group")
    try:
        this_rank = array("q", [color is not None, color or 0, key])
    except (TypeError, OverflowError) as error:
        message = f"split_group: color={color!r}, key={key!r}: {error}"
        _native.core().refuse(Op.ALL_GATHER, parent._id, message)
        raise ArgumentError(message) from None
    all_ranks = array("q", bytes(this_rank.itemsize * 3 * len(parent._ranks)))
    _native.submit(Op.ALL_GATHER, parent._id, this_rank, all_ranks)
    if color is None:
        return GroupMember.NON_GROUP_MEMBER
    chosen = sorted(
        (all_ranks[3 * i + 2], i)
        for i in range(len(parent._ranks))
        if all_ranks[3 * i] and all_ranks[3 * i + 1] == color
    )
    return _subgroup([parent._ranks[i] for _, i in chosen], timeout, parent)


def _subgroup(
    ranks: Sequence[int], timeout: timedelta | float | None, parent: ProcessGroup
) -> ProcessGroup:
    """Make a group of some members of ``parent``, which may be of another world than WORLD's."""
    seconds = None if timeout is None else to_seconds(timeout, "new_group")
    if parent._ranks[parent._rank] not in ranks:
        return GroupMember.NON_GROUP_MEMBER
    answer = _native.control("new_group", ranks=list(ranks), timeout=seconds, group=parent._id)
    return ProcessGroup(answer["group"], answer["rank"], tuple(ranks))


# For the other modules


def before_destroy(end: Callable[[], None]) -> None:
    """Have ``end()`` called before a world is destroyed, while its works can still be waited for.

    If ``end`` raises, the world is destroyed all the same, and ``destroy_process_group`` raises
    the first such error afterwards.
    """
    _state.before_destroy.append(end)


def at_destroy(leave: Callable[[], None]) -> None:
    """Have ``leave()`` called after a world was destroyed."""
    _state.at_destroy.append(leave)


def warn_nonmember(group: Any, what: str) -> bool:
    """Whether this rank is no member of ``group``. Warns if so, as torch does.

    Raises:
        DtypeError: ``group`` is no group.
    """
    if _group(group, what)._rank >= 0:
        return False
    rank = _state.world._rank if _state.world is not None else -1
    _log.warn(
        f"Running {what} on global rank {rank} which does not belong to the given group.",
        stacklevel=4,
    )
    return True


def members(group: ProcessGroup | None) -> ProcessGroup:
    """Return ``group``, or the world for None.

    Raises:
        NotInitializedError: before init or after destroy.
    """
    return _world("a collective") if group is None else group


def _group(group: Any, what: str) -> ProcessGroup:
    if isinstance(group, ProcessGroup):
        return group
    raise DtypeError(
        f"{what}: group is a {type(group).__name__}, it must be None or what new_group() returned"
    )


def _member(group: Any, what: str) -> ProcessGroup:
    if _group(group, what)._rank < 0:
        raise NotMemberError(f"{what}: this rank does not belong to the given group")
    return group  # type: ignore[no-any-return]


def _world(what: str) -> ProcessGroup:
    world = _state.world
    if world is None:
        raise NotInitializedError(
            f"{what}: no process group is initialised: call paddlempi.init_process_group() first"
        )
    return world
