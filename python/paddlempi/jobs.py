"""Jobs that grow and meet: processes that a job starts, and two jobs that are joined for a while.

::

    # server.py, started by an mpirun
    dist.init_process_group("mpi")
    while True:
        with dist.accept(":5555", secret=Path("secret")) as job:
            ...  # job.recv(question, 0), job.send(answer, 0)

    # client.py, started by another mpirun of the same MPI
    dist.init_process_group("mpi")
    with dist.connect("node1:5555", secret=Path("secret")) as server:
        server.send(question, 0)
        server.recv(answer, 0)

:func:`spawn`, :func:`accept` and :func:`connect` are called by all members of a group, and the
processes that :func:`spawn` starts call :func:`get_parent`. Each returns an
:class:`Intercommunicator`: this party of two that exchange messages, and that :meth:`merge
<Intercommunicator.merge>` makes one group, with all collectives. It ends by
:meth:`~Intercommunicator.disconnect`.

Both parties are a world of their own, apart from that of :func:`~paddlempi.init_process_group`.
Errors name ranks of it: those of the party that accepts, or spawns, come first. A process that dies
is reported as in any world; a party never ends because the other one does.

Source: the dynamic processes of MPI, and mpi4py's ``Intercomm``.
"""

from __future__ import annotations

import base64
import importlib
import os
from array import array
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from operator import index
from types import TracebackType
from typing import Any

from . import _native, objects, p2p
from ._ops import Op
from .errors import ArgumentError, DtypeError, GroupDestroyedError
from .group import ProcessGroup, members
from .group_arguments import to_seconds
from .p2p import ProbeResult
from .tensor_types import Tensor
from .work import Work

__all__ = ["Intercommunicator", "accept", "connect", "get_parent", "spawn"]

_Timeout = timedelta | float | None
_Secret = str | bytes | os.PathLike[str]


class Intercommunicator:
    """Two parties that are joined, as a process of one of them sees it.

    ``src`` and ``dst`` are ranks of the other party. Messages, tensors, tags, deadlines and errors
    are those of :mod:`paddlempi.p2p`; the deadline is that of the group that was joined. After
    ``with`` the parties are disconnected.

    Thread-safety: all methods may be called from any thread. :meth:`merge` and :meth:`disconnect`
    are called by all processes of both parties, in the same order.
    """

    __slots__ = ("_both", "_first", "_peers", "_remote_size", "_size")

    def __init__(self, id: int, rank: int, size: int, remote_size: int, first: bool) -> None:
        total = size + remote_size
        # _ranks of both groups map a rank of the world of both parties: _both to itself, and _peers
        # to the rank on the other party. Processes of this party have negative numbers there, or
        # numbers from remote_size on, which _peer refuses.
        self._both = ProcessGroup(id, rank, range(total))
        begin = -size if first else 0
        self._peers = ProcessGroup(id, rank, range(begin, begin + total))
        self._size, self._remote_size, self._first = size, remote_size, first

    def rank(self) -> int:
        """This process's rank on its party."""
        return self._both._rank - (0 if self._first else self._remote_size)

    def size(self) -> int:
        """The number of processes of this party."""
        return self._size

    def remote_size(self) -> int:
        """The number of processes of the other party."""
        return self._remote_size

    def send(self, tensor: Tensor, dst: int, tag: int = 0) -> None:
        """Send a tensor to rank ``dst`` of the other party, as :func:`paddlempi.send` does."""
        p2p.send(tensor, self._peer(Op.SEND, "dst", dst), self._peers, tag)

    def recv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> int:
        """Receive a tensor from rank ``src`` of the other party, or from any of its ranks.

        Returns:
            The sender's rank on the other party.
        """
        return p2p.recv(tensor, self._source(Op.RECV, src), self._peers, tag)

    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Work:
        """Begin to send a tensor, as :func:`paddlempi.isend` does."""
        return p2p.isend(tensor, self._peer(Op.SEND, "dst", dst), self._peers, tag)

    def irecv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Work:
        """Begin to receive a tensor. ``Work.source_rank()`` is a rank of the other party."""
        return p2p.irecv(tensor, self._source(Op.RECV, src), self._peers, tag)

    def probe(self, src: int | None = None, tag: int = 0) -> ProbeResult:
        """Wait for a message without receiving it, as :func:`paddlempi.probe` does."""
        return p2p.probe(self._source(Op.PROBE, src), self._peers, tag)

    def send_object_list(self, object_list: Sequence[Any], dst: int) -> None:
        """Send objects to rank ``dst``, as :func:`paddlempi.send_object_list` does."""
        objects.send_object_list(object_list, self._peer(Op.SEND, "dst", dst), self._peers)

    def recv_object_list(self, object_list: list[Any], src: int | None = None) -> int:
        """Receive objects, as :func:`paddlempi.recv_object_list` does.

        Unpickling runs code that the other party chose.

        Returns:
            The sender's rank on the other party.
        """
        return objects.recv_object_list(object_list, self._source(Op.RECV, src), self._peers)

    def merge(self, high: bool | None = None, timeout: _Timeout = None) -> ProcessGroup:
        """Make one group of both parties, for all collectives.

        Args:
            high: whether the ranks of this party come behind those of the other one. It is the same
                on all ranks of a party. If both parties say the same, or None, the party that
                accepts or spawns comes first.
            timeout: how long the group's operations wait, a timedelta or seconds. None: as long as
                the messages of this object.

        Raises:
            ArgumentError: the ranks of a party gave different ``high``.
            TimeoutError: some processes did not call it in time.

        Source: ``MPI_Intercomm_merge``.
        """
        seconds = None if timeout is None else to_seconds(timeout, "merge")
        both, total = self._both, self._size + self._remote_size
        said = array("b", bytes(total))
        mine = array("b", [-1 if high is None else int(bool(high))])
        _native.submit(
            Op.ALL_GATHER, both._id, mine, said, timeout=-1.0 if seconds is None else seconds
        )
        split = self._size if self._first else self._remote_size
        parties = [said[:split], said[split:]]
        for party in parties:
            if len(set(party)) > 1:
                raise ArgumentError(
                    f"merge: high must be the same on all ranks of a party, and is {list(party)} "
                    "(-1: None)"
                )
        behind, before = parties[0][0] == 1, parties[1][0] == 0
        swapped = (behind and parties[1][0] != 1) or (before and parties[0][0] != 0)
        ranks = [*range(split, total), *range(split)] if swapped else list(range(total))
        answer = _native.control("new_group", group=both._id, ranks=ranks, timeout=seconds)
        return ProcessGroup(answer["group"], answer["rank"], tuple(ranks))

    def disconnect(self, timeout: _Timeout = None) -> None:
        """End the connection, and the groups that were merged of it.

        The other party gets ``PeerLeftError`` in what it waits for, and disconnects, too. This
        waits until it has. If a process of it has died, this does not wait.

        Args:
            timeout: how long to wait, a timedelta or seconds. None: as long as messages do.

        Raises:
            TimeoutError: the other party has not disconnected in time. Call it again to wait
                longer.
            GroupDestroyedError: it was disconnected before.
        """
        seconds = None if timeout is None else to_seconds(timeout, "disconnect")
        _native.control("disconnect", group=self._both._id, timeout=seconds)

    def __enter__(self) -> Intercommunicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(GroupDestroyedError):  # the program has disconnected, or destroyed everything
            self.disconnect()

    def __repr__(self) -> str:
        return (
            f"Intercommunicator(rank={self.rank()}, size={self._size}, "
            f"remote_size={self._remote_size})"
        )

    def _peer(self, code: Op, name: str, rank: Any) -> int:
        try:
            number = index(rank)
        except TypeError:
            raise DtypeError(
                f"{code.label}: {name} is a {type(rank).__name__}, it must be a rank of the other "
                "party"
            ) from None
        if not 0 <= number < self._remote_size:
            raise ArgumentError(
                f"{code.label}: {name}={number} is out of range, the other party has "
                f"{self._remote_size} ranks"
            )
        return number

    def _source(self, code: Op, rank: Any) -> int | None:
        return None if rank is None else self._peer(code, "src", rank)


def spawn(
    command: str | Sequence[str | os.PathLike[str]],
    n: int = 1,
    *,
    timeout: _Timeout = None,
    group: ProcessGroup | None = None,
) -> Intercommunicator:
    """Start ``n`` processes, which become a job of their own, and return the connection to them.

    All members of ``group`` call it. Each new process calls ``init_process_group`` and then
    :func:`get_parent`, which this waits for. The processes start in the working directory of rank
    0, on hosts that the launcher of this job chooses.

    Args:
        command: the program and its arguments, as a sequence; a program without arguments may be a
            string. Rank 0's counts. ``[sys.executable, "analyse.py"]`` runs a Python program.
        n: the number of processes.
        timeout: how long to wait for the processes, a timedelta or seconds. None: the deadline of
            ``group``.
        group: the party of this job; None is the world.

    Raises:
        ArgumentError: there is no such program, or ``n`` is below 1.
        UnsupportedError: Intel MPI was initialised without ``I_MPI_SPAWN=1``.
        TimeoutError: the processes did not call :func:`get_parent` in time.

    Source: ``MPI_Comm_spawn``.
    """
    words = [command] if isinstance(command, (str, os.PathLike)) else list(command)
    try:
        argv = [os.fspath(word) for word in words]
        number = index(n)
    except TypeError as error:
        raise DtypeError(f"spawn: command={command!r}, n={n!r}: {error}") from None
    return _joined("spawn", group, timeout, command=argv, n=number)


_parent: Intercommunicator | None = None


def get_parent(timeout: _Timeout = None) -> Intercommunicator | None:
    """The connection to the ranks that have spawned this process; None if none did.

    All processes that were spawned together call it, after ``init_process_group``. Later calls
    return the same object.

    Args:
        timeout: how long to wait for the others, a timedelta or seconds. None: the world's.

    Source: ``MPI_Comm_get_parent``.
    """
    global _parent
    if _parent is None:
        members(None)
        seconds = None if timeout is None else to_seconds(timeout, "get_parent")
        answer = _native.control("get_parent", timeout=seconds)
        if not answer:
            return None
        _parent = _of(answer)
    return _parent


def accept(
    address: str | tuple[str, int],
    *,
    secret: _Secret,
    timeout: _Timeout = None,
    group: ProcessGroup | None = None,
) -> Intercommunicator:
    """Wait for a job that calls :func:`connect`, and return the connection to it.

    All members of ``group`` call it, and rank 0 listens. A process that does not show that it knows
    the secret is turned away, and this goes on waiting. The port is closed when a job has come:
    call it again for the next one, which tries until then.

    Args:
        address: ``"host:port"`` or ``(host, port)`` where rank 0 listens. ``":5555"`` stands for
            all interfaces.
        secret: what both jobs know; text, bytes, or a path (:class:`pathlib.Path`) of a file of
            mode 0600 that has it. It does not travel: both jobs prove that they know it. Rank 0's
            counts.
        timeout: how long to wait, a timedelta or seconds. None: the deadline of ``group``.
        group: the party of this job; None is the world.

    Raises:
        ArgumentError: rank 0 cannot listen at ``address``, or the file of the secret is not this
            user's alone.
        UnsupportedError: this is Open MPI, or Intel MPI that was initialised without
            ``I_MPI_SPAWN=1``.
        TimeoutError: no job came in time.

    Source: ``MPI_Comm_accept``.
    """
    return _joined("accept", group, timeout, **_where("accept", address, secret))


def connect(
    address: str | tuple[str, int],
    *,
    secret: _Secret,
    timeout: _Timeout = None,
    group: ProcessGroup | None = None,
) -> Intercommunicator:
    """Connect to a job that calls :func:`accept`, and return the connection to it.

    All members of ``group`` call it. Rank 0 tries until a job accepts it. Both jobs have to have
    the same MPI and the same version of paddlempi.

    Args:
        address: ``"host:port"`` or ``(host, port)`` where the other job accepts.
        secret: as for :func:`accept`.
        timeout: how long to try, a timedelta or seconds. None: the deadline of ``group``.
        group: the party of this job; None is the world.

    Raises:
        ArgumentError: the other job has another secret, another MPI or another version of
            paddlempi; or what listens there is no such job.
        UnsupportedError: as for :func:`accept`.
        TimeoutError: no job accepted this one in time.

    Source: ``MPI_Comm_connect``.
    """
    return _joined("connect", group, timeout, **_where("connect", address, secret))


def _where(what: str, address: Any, secret: Any) -> dict[str, Any]:
    """Return the arguments ``address`` and ``secret`` as the core takes them."""
    if isinstance(address, tuple) and len(address) == 2 and isinstance(address[0], str):
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        address = f"{host}:{address[1]}"
    if not isinstance(address, str):
        raise DtypeError(f"{what}: address is a {type(address).__name__}, it must be 'host:port'")
    version = importlib.import_module(__package__ or "").__version__
    told: dict[str, Any] = {"address": address, "version": version}
    if isinstance(secret, (bytes, bytearray, str)):
        data = secret.encode() if isinstance(secret, str) else bytes(secret)
        if not data:
            raise ArgumentError(f"{what}: secret is empty")
        told["secret"] = base64.b64encode(data).decode()
    elif isinstance(secret, os.PathLike):
        told["secret_file"] = os.path.abspath(os.fspath(secret))
    else:
        raise DtypeError(
            f"{what}: secret is a {type(secret).__name__}, it must be text, bytes or a path"
        )
    return told


def _joined(
    what: str, group: ProcessGroup | None, timeout: _Timeout, **arguments: Any
) -> Intercommunicator:
    party = members(group)
    if not isinstance(party, ProcessGroup) or party._rank < 0:
        raise DtypeError(f"{what}: group is {group!r}, it must be a group that has this rank")
    seconds = None if timeout is None else to_seconds(timeout, what)
    return _of(_native.control(what, group=party._id, timeout=seconds, **arguments))


def _of(answer: dict[str, Any]) -> Intercommunicator:
    return Intercommunicator(
        answer["group"],
        answer["rank"],
        answer["size"],
        answer["remote_size"],
        answer["first"],
    )
