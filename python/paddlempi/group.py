"""Process groups: who takes part. The names are ``torch.distributed``'s.

Ranks in this module's arguments and results are *global* ranks (of the world)
unless a name says ``group_rank``. Making and destroying groups is collective
over their members; everything else is local. All of it may be called from any
thread.
"""

from __future__ import annotations

import importlib
import operator
import os
import sys
import threading
import warnings
from array import array
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from . import _exit, _native
from ._ops import Op
from .errors import (
    AlreadyInitializedError,
    ArgumentError,
    DtypeError,
    Error,
    NotInitializedError,
    NotMemberError,
    UnsupportedError,
)

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

FOREVER = 100 * 365 * 86400.0
"""The longest deadline, in seconds: clocks overflow beyond it, and JSON knows no infinity."""

WORLD: ProcessGroup | None
"""The group of all ranks, None while there is none (``paddlempi.group.WORLD``)."""


class ProcessGroup:
    """An ordered set of ranks that communicate. Made by :func:`new_group` and its like.

    Invariant: ``_ranks[_rank]`` is this process's global rank, where it is a member.
    """

    __slots__ = ("__weakref__", "_id", "_rank", "_ranks")

    def __init__(self, id: int, rank: int, ranks: Sequence[int]) -> None:
        self._id = id
        self._rank = rank
        self._ranks = ranks

    def rank(self) -> int:
        """This process's rank in the group, -1 where it is no member."""
        return self._rank

    def size(self) -> int:
        """The number of members, -1 where this process is none."""
        return len(self._ranks) if self._rank >= 0 else -1

    def __repr__(self) -> str:
        return f"ProcessGroup(id={self._id}, rank={self._rank}, ranks={list(self._ranks)})"


class _NonMember(ProcessGroup):
    __slots__ = ()

    def __repr__(self) -> str:
        return "GroupMember.NON_GROUP_MEMBER"


class GroupMember:
    """What :func:`new_group` returns to ranks that the group leaves out."""

    NON_GROUP_MEMBER = _NonMember(-1, -1, ())


class _State:
    """The world of this process. Written under ``lock`` only."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.world: ProcessGroup | None = None
        self.local_rank = 0
        self.local_size = 1
        self.before_destroy: list[Callable[[], None]] = []
        self.at_destroy: list[Callable[[], None]] = []


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
) -> None:
    """Start MPI, or join the MPI that runs, and make the group of all ranks.

    Every rank of the job calls it. After :func:`destroy_process_group` it may be
    called again.

    Args:
        backend: ``"mpi"``, the only one there is.
        timeout: how long a collective waits for its members before it raises
            ``TimeoutError``; a timedelta or seconds. Also the default of new groups.
        mpi: the path of the libmpi to load, before ``PADDLEMPI_MPI`` and before any search.
        comm: an mpi4py intracommunicator that becomes the world, instead of
            ``MPI.COMM_WORLD``. It is not freed.
        framework: ``"paddle"`` or ``"torch"``: make that framework's default group too, so
            that ``paddle.distributed`` or ``torch.distributed`` goes over MPI.

    Raises:
        AlreadyInitializedError: the process is initialised.
        MPINotFoundError: no MPI library; the message says where it was looked for.
        LauncherError: the launcher belongs to another MPI than the library.
        ThreadLevelError: MPI already runs, below ``MPI_THREAD_MULTIPLE``.
        ArgumentError: a wrong ``backend``, ``timeout``, ``comm`` or ``framework``.

    Source: :func:`torch.distributed.init_process_group`.
    """
    _check_backend(backend)
    front = None if framework is None else _front(framework)
    seconds = to_seconds(timeout, "init_process_group")
    path = None if mpi is None else os.fspath(mpi)
    handle = None if comm is None else _comm_handle(comm)
    with _state.lock:
        if _state.world is not None:
            raise AlreadyInitializedError(
                "init_process_group: the process is initialised; call destroy_process_group() first"
            )
        _native.load()
        foreign = _exit.mpi_is_foreign()
        answer = _native.control(
            "init",
            mpi=path,
            comm=handle,
            timeout=seconds,
            sys_prefix=sys.prefix,
            trial=_trial() if sys.executable else [],
        )
        _state.local_rank = answer["local_rank"]
        _state.local_size = answer["local_size"]
        _state.world = ProcessGroup(answer["group"], answer["rank"], range(answer["size"]))
        _exit.install(foreign)
    if front is not None:
        front.init(timeout)


def _trial() -> list[str]:
    """The command that tries whether MPI moves GPU memory; the core adds the request."""
    program = "import sys; sys.path.append(sys.argv[1]); from paddlempi.cli import trial; "
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return [sys.executable, "-c", program + "sys.exit(trial.main(sys.argv[2]))", package]


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Free a group, or all of them and end the use of MPI by this library.

    Collective over the members. MPI itself is finalized at exit only, so that
    :func:`init_process_group` may be called again.

    Args:
        group: the group; None and ``group.WORLD`` mean all groups.

    Raises:
        NotInitializedError: there is nothing to destroy.
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
            _state.world = None
            try:
                _native.control("destroy")
            finally:
                for leave in _state.at_destroy:
                    leave()
        elif not is_foreign(group, "destroy_process_group"):
            _native.control("destroy_group", group=group._id)
    if failure is not None:
        raise failure


def is_available() -> bool:
    """Whether an MPI library is to be found and the core runs on this Python. Starts nothing."""
    try:
        return _native.control("info", sys_prefix=sys.prefix, mpi=None)["mpi"] is not None
    except Error:
        return False


def is_initialized() -> bool:
    """Whether :func:`init_process_group` was called, and :func:`destroy_process_group` was not."""
    return _state.world is not None


# Who am I


def get_rank(group: ProcessGroup | None = None) -> int:
    """This process's rank in ``group`` (None: the world), -1 where it is no member.

    Raises:
        NotInitializedError: before init or after destroy.
    """
    world = _world("get_rank")
    return (world if group is None else _group(group, "get_rank"))._rank


def get_world_size(group: ProcessGroup | None = None) -> int:
    """The number of ranks of ``group`` (None: the world), -1 where this is no member.

    Raises:
        NotInitializedError: before init or after destroy.
    """
    world = _world("get_world_size")
    return (world if group is None else _group(group, "get_world_size")).size()


def get_local_rank() -> int:
    """This process's rank among those of its node: the number of the GPU to take.

    Asked of MPI (``MPI_Comm_split_type``), never of a launcher's variables.
    """
    _world("get_local_rank")
    return _state.local_rank


def get_local_size() -> int:
    """The number of ranks on this node."""
    _world("get_local_size")
    return _state.local_size


def get_backend(group: ProcessGroup | None = None) -> str:
    """``"mpi"``.

    Raises:
        NotInitializedError: before init or after destroy.
        ArgumentError: this process is no member of ``group``.
    """
    _world("get_backend")
    if group is not None and _group(group, "get_backend")._rank < 0:
        raise ArgumentError("get_backend: this rank is no member of the group")
    return "mpi"


def get_process_group_ranks(group: ProcessGroup | None = None) -> list[int]:
    """The global ranks of ``group`` (None: the world), in the order of their group ranks."""
    world = _world("get_process_group_ranks")
    return list((world if group is None else _group(group, "get_process_group_ranks"))._ranks)


def get_group_rank(group: ProcessGroup, global_rank: int) -> int:
    """The rank in ``group`` of a global rank.

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
    """The global rank of a rank of ``group``.

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

    Collective over the members; other ranks may call it, as in torch, and get
    ``GroupMember.NON_GROUP_MEMBER``.

    Args:
        ranks: distinct global ranks; the order gives the group ranks. None: all ranks.
        timeout: of the group's collectives, a timedelta or seconds. None: the world's.
        backend: None or ``"mpi"``.

    Raises:
        ArgumentError: a rank is out of range or stands there twice, or there is none.
        TimeoutError: a member never called it.

    Source: :func:`torch.distributed.new_group`, which sorts the ranks.
    """
    world = _world("new_group")
    if backend is not None:
        _check_backend(backend)
    members = list(world._ranks) if ranks is None else _check_ranks(ranks, len(world._ranks))
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
    """Divide a group into subgroups of ``group_size`` neighbours.

    Collective over ``group``.

    Args:
        group_size: members of each subgroup; must divide the group. None: the number of
            ranks on this node.
        group: what is divided; None: the world.
        timeout: of the subgroups' collectives.
        backend: None or ``"mpi"``.

    Returns:
        This rank's subgroup and the list of all of them, in which those of others
        are ``GroupMember.NON_GROUP_MEMBER``.

    Raises:
        ArgumentError: ``group_size`` does not divide the group.

    Source: :func:`torch.distributed.new_subgroups`.
    """
    world = _world("new_subgroups")
    parent = world if group is None else _member(group, "new_subgroups")
    size = _state.local_size if group_size is None else group_size
    ranks = parent._ranks
    if size < 1 or len(ranks) % size:
        raise ArgumentError(
            f"new_subgroups: group_size={size} does not divide the {len(ranks)} ranks of the group"
        )
    parts = [ranks[first : first + size] for first in range(0, len(ranks), size)]
    groups = [new_group(part, timeout, backend) for part in parts]
    return groups[parent._rank // size], groups


def split_group(
    color: int | None,
    key: int = 0,
    group: ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
) -> ProcessGroup:
    """Divide a group by colour, as ``MPI_Comm_split`` does.

    Collective over ``group``: ranks of one colour become a group, ordered by
    ``key`` and, where that is equal, by their rank in ``group``.

    Args:
        color: this rank's colour; None: this rank goes into no group.
        key: where this rank stands in its new group. Both are 64-bit integers.
        group: what is divided; None: the world.
        timeout: of the new group's collectives.

    Returns:
        This rank's new group, ``GroupMember.NON_GROUP_MEMBER`` for ``color=None``.

    Raises:
        ArgumentError: ``color`` or ``key`` is no 64-bit integer.
    """
    world = _world("split_group")
    parent = world if group is None else _member(group, "split_group")
    try:
        mine = array("q", [color is not None, color or 0, key])
    except (TypeError, OverflowError) as error:
        message = f"split_group: color={color!r}, key={key!r}: {error}"
        _native.core().refuse(Op.ALL_GATHER, parent._id, message)
        raise ArgumentError(message) from None
    everyone = array("q", bytes(mine.itemsize * 3 * len(parent._ranks)))
    _native.submit(Op.ALL_GATHER, parent._id, mine, everyone)
    if color is None:
        return GroupMember.NON_GROUP_MEMBER
    chosen = sorted(
        (everyone[3 * i + 2], i)
        for i in range(len(parent._ranks))
        if everyone[3 * i] and everyone[3 * i + 1] == color
    )
    return new_group([parent._ranks[i] for _, i in chosen], timeout)


# For the other modules


def to_seconds(timeout: timedelta | float, what: str) -> float:
    """The seconds of a ``timeout`` argument of the function ``what``, cut at :data:`FOREVER`."""
    if isinstance(timeout, timedelta):
        seconds = timeout.total_seconds()
    elif isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        seconds = float(timeout)
    else:
        raise DtypeError(
            f"{what}: timeout is a {type(timeout).__name__}, it must be a timedelta or seconds"
        )
    if not seconds > 0:
        raise ArgumentError(f"{what}: timeout={seconds} s must be above 0")
    return min(seconds, FOREVER)


def before_destroy(end: Callable[[], None]) -> None:
    """Call ``end()`` whenever the world is about to be destroyed, while it can still be waited for.

    What it raises, ``destroy_process_group`` raises after the world has gone.
    """
    _state.before_destroy.append(end)


def at_destroy(leave: Callable[[], None]) -> None:
    """Call ``leave()`` whenever the world has been destroyed."""
    _state.at_destroy.append(leave)


def is_foreign(group: Any, what: str) -> bool:
    """Whether this rank is no member of ``group``: then warn, as torch does.

    Raises:
        DtypeError: ``group`` is no group.
    """
    if _group(group, what)._rank >= 0:
        return False
    rank = _state.world._rank if _state.world is not None else -1
    warnings.warn(
        f"Running {what} on global rank {rank} which does not belong to the given group.",
        stacklevel=4,
    )
    return True


def members(group: ProcessGroup | None) -> ProcessGroup:
    """``group``, or the world for None.

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


_FRONTS = ("paddle", "torch")


def _front(framework: str) -> Any:
    """The front of a framework, a module with ``init(timeout)``; imported here and no sooner."""
    if framework not in _FRONTS:
        raise ArgumentError(
            f"init_process_group: framework={framework!r}: it must be one of {', '.join(_FRONTS)}, "
            "or None"
        )
    try:
        return importlib.import_module(f"{__package__}.{framework}")
    except ModuleNotFoundError as error:
        if error.name != framework:
            raise
        raise ArgumentError(
            f"init_process_group: framework={framework!r} is not installed in {sys.prefix}"
        ) from error


def _check_backend(backend: object) -> None:
    if not isinstance(backend, str) or backend.lower() != "mpi":
        raise ArgumentError(f"backend={backend!r}: the only one is 'mpi'")


def _check_ranks(ranks: Sequence[int], size: int) -> list[int]:
    try:
        chosen = [operator.index(rank) for rank in ranks]
    except TypeError as error:
        raise DtypeError(
            f"new_group: ranks={ranks!r} must be a sequence of ranks: {error}"
        ) from None
    if not chosen:
        raise ArgumentError("new_group: ranks is empty, a group has at least one member")
    for rank in chosen:
        if not 0 <= rank < size:
            raise ArgumentError(
                f"new_group: ranks={chosen}: {rank} is out of range, the world has {size}"
            )
    if len(set(chosen)) != len(chosen):
        raise ArgumentError(f"new_group: ranks={chosen}: a rank stands there twice")
    return chosen


def _comm_handle(comm: Any) -> int:
    """MPI's own handle of an mpi4py communicator."""
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py is None or not isinstance(comm, mpi4py.Comm):
        raise DtypeError(
            f"init_process_group: comm is a {type(comm).__name__}, it must be mpi4py's communicator"
        )
    if not isinstance(comm, mpi4py.Intracomm) or comm == mpi4py.COMM_NULL:
        raise ArgumentError(
            "init_process_group: comm must be an intracommunicator and not COMM_NULL"
        )
    if not hasattr(mpi4py, "_handleof"):
        raise UnsupportedError("init_process_group: comm needs mpi4py 3.0 or newer")
    return int(mpi4py._handleof(comm)) & 0xFFFF_FFFF_FFFF_FFFF  # an int of MPICH may be negative
