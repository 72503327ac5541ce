"""Messages from one rank to another.

A message has a source, a destination and a tag. Messages with the same source, destination,
tag and group arrive in the order in which they were sent. Messages do not wait for the
group's collectives, and collectives do not wait for messages. A message and the tensor that
receives it must have the same number of bytes, else the receiver raises ``TruncateError``.
A tag is an integer of at least 0. MPI sets the greatest tag, which is at least 32767; without MPI
it is 2^31 - 1.

A message may be a list or a tuple of tensors instead of one tensor: it is the bytes of their
elements, one tensor after the other. Only the bytes of the whole count, as in MPI's struct types:
the sender and the receiver may have other numbers of tensors, other dtypes and other shapes. The
tensors that receive must not overlap each other. Tensors that are not contiguous, lists, and
tensors in CUDA memory are copied on the way. A message of more than 16 MiB takes 16 MiB besides its
tensors within a node, and as much as it is long between nodes.

``src`` and ``dst`` are global ranks. ``group_src`` and ``group_dst`` are ranks of the group. A
call gives at most one of the two. Tensors, dtypes and threads are described in
:mod:`paddlempi.collectives`. Errors differ:

* A wrong argument raises ``ArgumentError`` or ``DtypeError`` on this rank only.
* If the group's deadline runs out, the call raises ``TimeoutError``. A receive or a probe is
  cancelled then and the group stays usable. A send cannot be cancelled and breaks the group.
* If the other rank has ended, the call raises ``PeerLeftError``.

The types are those of a member of the group. A rank that is no member gets a warning, and None for
a Work or a ProbeResult.

Source: :mod:`torch.distributed`; ``sendrecv`` and ``probe`` are MPI's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from . import _native
from ._ops import ASYNC, Op
from .arguments import MAX_TAG, is_nonmember, message_tag, root_of
from .errors import ArgumentError, DtypeError
from .group import ProcessGroup, _state, members
from .tensor_types import Tensor
from .work import Work

__all__ = [
    "P2POp",
    "ProbeResult",
    "batch_isend_irecv",
    "irecv",
    "isend",
    "probe",
    "recv",
    "send",
    "sendrecv",
]

_Group = ProcessGroup | None
_Tensors = Tensor | Sequence[Tensor]

# To look a member of an enumeration up takes longer than all else that send does in Python.
_SEND: Final = Op.SEND
_RECV: Final = Op.RECV

_ANY_TAG = -1


class ProbeResult(NamedTuple):
    """A message that has arrived and was not received yet."""

    source: int
    """The global rank of the sender."""
    nbytes: int
    """The length of the message in bytes."""
    tag: int
    """The tag of the message."""


def send(
    tensor: _Tensors,
    dst: int | None = None,
    group: _Group = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send a tensor. Return when the tensor may be written to again.

    Args:
        tensor: any shape, strides and dtype; or a list of such tensors.
        dst: the global rank of the receiver; or give ``group_dst``, its rank in the group.
        group: the group of both ranks; None is the world.
        tag: the receiver has to ask for this tag, or for any tag.
    """
    plain = group is None and group_dst is None and type(dst) is type(tag) is int  # as mostly
    if plain and dst in _state.ranks and 0 <= tag <= MAX_TAG:
        _native.submit(_SEND, 0, tensor, None, peer=dst, tag=tag)  # type: ignore[arg-type]
        return
    if is_nonmember(group, Op.SEND):
        return
    peer, tag = _peer(Op.SEND, group, "dst", dst, group_dst), _tag(Op.SEND, tag)
    gid = 0 if group is None else group._id
    _native.submit(Op.SEND, gid, tensor, None, peer=peer, tag=tag)


def recv(
    tensor: _Tensors,
    src: int | None = None,
    group: _Group = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receive a message into a tensor.

    Args:
        tensor: output, with as many bytes as the message; or a list of such tensors, which
            together have as many.
        src: the global rank of the sender; or give ``group_src``, its rank in the group. If
            both are None, a message from any rank is received.
        group: the group of both ranks; None is the world.
        tag: the tag of the message; -1: any tag.

    Returns:
        The global rank of the sender; -1 if this rank is no member of ``group``.

    Raises:
        TruncateError: the message is longer or shorter than ``tensor``. The message is lost.
    """
    plain = group is None and group_src is None and type(src) is type(tag) is int
    if plain and src in _state.ranks and 0 <= tag <= MAX_TAG:
        answer = _native.submit(_RECV, 0, None, tensor, peer=src, tag=tag)  # type: ignore[arg-type]
        return answer[0]  # type: ignore[no-any-return]
    if is_nonmember(group, Op.RECV):
        return -1
    peer, tag = _source(Op.RECV, group, src, group_src), _tag(Op.RECV, tag, _ANY_TAG)
    gid = 0 if group is None else group._id
    source, _, _ = _native.submit(Op.RECV, gid, None, tensor, peer=peer, tag=tag)
    return _global(source, group)


def isend(
    tensor: _Tensors,
    dst: int | None = None,
    group: _Group = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work:
    """Begin to send a tensor and return a Work at once.

    The arguments are those of :func:`send`. ``tensor`` must not be written to until the Work has
    ended.
    """
    plain = group is None and group_dst is None and type(dst) is type(tag) is int
    if plain and dst in _state.ranks and 0 <= tag <= MAX_TAG:
        operation = _native.submit(_SEND, 0, tensor, None, 0, ASYNC, peer=dst, tag=tag)  # type: ignore[arg-type]
        return Work(operation, "isend", None, None)
    if is_nonmember(group, Op.SEND):
        return None  # type: ignore[return-value]
    peer, tag = _peer(Op.SEND, group, "dst", dst, group_dst), _tag(Op.SEND, tag)
    gid = 0 if group is None else group._id
    operation = _native.submit(Op.SEND, gid, tensor, None, 0, ASYNC, peer=peer, tag=tag)
    return Work(operation, "isend", None, group)


def irecv(
    tensor: _Tensors,
    src: int | None = None,
    group: _Group = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work:
    """Begin to receive a message into a tensor and return a Work at once.

    The arguments are those of :func:`recv`. ``Work.source_rank()`` returns the sender.
    """
    plain = group is None and group_src is None and type(src) is type(tag) is int
    if plain and src in _state.ranks and 0 <= tag <= MAX_TAG:
        operation = _native.submit(_RECV, 0, None, tensor, 0, ASYNC, peer=src, tag=tag)  # type: ignore[arg-type]
        return Work(operation, "irecv", tensor, None)
    if is_nonmember(group, Op.RECV):
        return None  # type: ignore[return-value]
    peer, tag = _source(Op.RECV, group, src, group_src), _tag(Op.RECV, tag, _ANY_TAG)
    gid = 0 if group is None else group._id
    operation = _native.submit(Op.RECV, gid, None, tensor, 0, ASYNC, peer=peer, tag=tag)
    return Work(operation, "irecv", tensor, group)


def sendrecv(
    send_tensor: _Tensors,
    dst: int,
    recv_tensor: _Tensors,
    src: int | None = None,
    group: _Group = None,
    send_tag: int = 0,
    recv_tag: int = 0,
) -> int:
    """Send one tensor and receive another at the same time.

    Ranks that call it in a ring do not deadlock.

    Args:
        send_tensor: input; a tensor, or a list of tensors.
        dst: the global rank that ``send_tensor`` goes to.
        recv_tensor: output, with as many bytes as the message; may be ``send_tensor``. If the
            two share memory, the whole of ``send_tensor`` is copied first.
        src: the global rank that ``recv_tensor`` comes from; None: any rank.
        group: the group of all three ranks; None is the world.
        send_tag: the tag of the message that is sent.
        recv_tag: the tag of the message that is received; -1: any tag.

    Returns:
        The global rank of the sender; -1 if this rank is no member of ``group``.

    Raises:
        TruncateError: the message is longer or shorter than ``recv_tensor``.

    Source: ``MPI_Sendrecv``.
    """
    if is_nonmember(group, Op.SENDRECV):
        return -1
    peer = _peer(Op.SENDRECV, group, "dst", dst, None)
    peer2 = _source(Op.SENDRECV, group, src, None)
    send_tag, recv_tag = _tag(Op.SENDRECV, send_tag), _tag(Op.SENDRECV, recv_tag, _ANY_TAG)
    gid = 0 if group is None else group._id
    source, _, _ = _native.submit(
        Op.SENDRECV,
        gid,
        send_tensor,
        recv_tensor,
        peer=peer,
        tag=send_tag,
        peer2=peer2,
        tag2=recv_tag,
    )
    return _global(source, group)


def probe(
    src: int | None = None,
    group: _Group = None,
    tag: int = 0,
    group_src: int | None = None,
) -> ProbeResult:
    """Wait for a message without receiving it.

    Args:
        src: the global rank of the sender; or give ``group_src``, its rank in the group. If
            both are None, the call waits for a message from any rank.
        group: the group of both ranks; None is the world.
        tag: the tag of the message; -1: any tag.

    Returns:
        The source, length and tag of the message; None if this rank is no member of ``group``.

    Source: ``MPI_Probe``.
    """
    if is_nonmember(group, Op.PROBE):
        return None  # type: ignore[return-value]
    peer, tag = _source(Op.PROBE, group, src, group_src), _tag(Op.PROBE, tag, _ANY_TAG)
    gid = 0 if group is None else group._id
    source, nbytes, tag = _native.submit(Op.PROBE, gid, None, None, peer=peer, tag=tag)
    return ProbeResult(_global(source, group), nbytes, tag)


class P2POp:
    """One send or receive of the list that :func:`batch_isend_irecv` takes.

    Args:
        op: :func:`isend` or :func:`irecv`.
        tensor: the tensor, or the list of tensors, to send or to receive into.
        peer: the global rank of the other side; or give ``group_peer``, its rank in the group.
        group: the group of both ranks; None is the world.
        tag: as for :func:`send` or :func:`recv`.

    Raises:
        DtypeError: ``op`` is another function.
    """

    __slots__ = ("group", "group_peer", "op", "peer", "tag", "tensor")

    def __init__(
        self,
        op: Callable[..., Work],
        tensor: _Tensors,
        peer: int | None = None,
        group: _Group = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op is not isend and op is not irecv:
            raise DtypeError(f"P2POp: op is {op!r}, it must be paddlempi.isend or paddlempi.irecv")
        self.op = op
        self.tensor = tensor
        self.peer = peer
        self.group = group
        self.tag = tag
        self.group_peer = group_peer


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[Work]:
    """Begin several sends and receives, in the order of the list.

    Args:
        p2p_op_list: the sends and receives; they may belong to different groups.

    Returns:
        One Work for each element. An element has none if this rank is no member of its group.

    Raises:
        DtypeError: an element is no :class:`P2POp`. Nothing was begun.
    """
    for number, p2p_op in enumerate(p2p_op_list):
        if not isinstance(p2p_op, P2POp):
            raise DtypeError(
                f"batch_isend_irecv: p2p_op_list[{number}] is a {type(p2p_op).__name__}, "
                "it must be a P2POp"
            )
    works = [
        p2p_op.op(p2p_op.tensor, p2p_op.peer, p2p_op.group, p2p_op.tag, p2p_op.group_peer)
        for p2p_op in p2p_op_list
    ]
    return [work for work in works if work is not None]


def _tag(code: Op, tag: Any, least: int = 0) -> int:
    return message_tag(code.label, "tag", tag, least)


def _peer(code: Op, group: _Group, name: str, rank: int | None, group_rank: int | None) -> int:
    if rank is None and group_rank is None:
        raise ArgumentError(f"{code.label}: {name} or group_{name} must be given")
    return root_of(code.label, members(group), name, rank, group_rank)


def _source(code: Op, group: _Group, rank: int | None, group_rank: int | None) -> int:
    if rank is None and group_rank is None:
        return -1
    return root_of(code.label, members(group), "src", rank, group_rank)


def _global(source: int, group: _Group) -> int:
    return source if group is None else group._ranks[source]
