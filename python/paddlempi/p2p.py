"""Point to point: from one rank to another.

A message has a source, a destination and a tag; messages of one source, tag and
group arrive in the order in which they were sent. They do not wait for the
group's collectives, nor these for them. A message and the buffer that takes it
have the same number of bytes, else the receiver raises ``TruncateError``. Tags are
at least 0; how far they go is MPI's affair (32767 at the least).

``src`` and ``dst`` are global ranks; ``group_src`` and ``group_dst`` ranks of the
group. Tensors, errors, deadlines and threads are as :mod:`paddlempi.collectives`
says; a wrong argument raises here only.

Source: :mod:`torch.distributed`; ``sendrecv`` and ``probe`` are MPI's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any, NamedTuple

from . import _native
from ._ops import ASYNC, Op
from .arguments import outside, root_of
from .errors import ArgumentError, DtypeError
from .group import ProcessGroup, members
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

_MOST = 2**31 - 1
_ANY = -1


class ProbeResult(NamedTuple):
    """A message that has arrived and was not received yet."""

    source: int
    """Global rank."""
    nbytes: int
    """Its length in bytes."""
    tag: int


def send(
    tensor: Any,
    dst: int | None = None,
    group: _Group = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> None:
    """Send a tensor; returns when it may be written to again.

    Args:
        tensor: any shape.
        dst: global rank, or ``group_dst``.
        group: None is the world.
        tag: the receiver names the same.
    """
    if outside(group, Op.SEND):
        return
    peer, tag = _peer(Op.SEND, group, "dst", dst, group_dst), _tag(Op.SEND, tag)
    gid = 0 if group is None else group._id
    _native.submit(Op.SEND, gid, tensor, None, peer=peer, tag=tag)


def recv(
    tensor: Any,
    src: int | None = None,
    group: _Group = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Receive into a tensor, from one rank or from any.

    Args:
        tensor: of exactly the message's size; output.
        src: global rank, or ``group_src``; both None: from any rank.
        tag: of the message; -1: any.

    Returns:
        The global rank of the sender, -1 where this rank is not in ``group``.
    """
    if outside(group, Op.RECV):
        return -1
    peer, tag = _source(Op.RECV, group, src, group_src), _tag(Op.RECV, tag, _ANY)
    gid = 0 if group is None else group._id
    source, _, _ = _native.submit(Op.RECV, gid, None, tensor, peer=peer, tag=tag)
    return _global(source, group)


def isend(
    tensor: Any,
    dst: int | None = None,
    group: _Group = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> Work | None:
    """Begin to send a tensor, as :func:`send`; it must stay unchanged until the Work has ended."""
    if outside(group, Op.SEND):
        return None
    peer, tag = _peer(Op.SEND, group, "dst", dst, group_dst), _tag(Op.SEND, tag)
    gid = 0 if group is None else group._id
    operation = _native.submit(Op.SEND, gid, tensor, None, 0, ASYNC, peer=peer, tag=tag)
    return Work(operation, "isend", None, group)


def irecv(
    tensor: Any,
    src: int | None = None,
    group: _Group = None,
    tag: int = 0,
    group_src: int | None = None,
) -> Work | None:
    """Begin to receive into a tensor, as :func:`recv`; ``Work.source_rank()`` tells from whom."""
    if outside(group, Op.RECV):
        return None
    peer, tag = _source(Op.RECV, group, src, group_src), _tag(Op.RECV, tag, _ANY)
    gid = 0 if group is None else group._id
    operation = _native.submit(Op.RECV, gid, None, tensor, 0, ASYNC, peer=peer, tag=tag)
    return Work(operation, "irecv", tensor, group)


def sendrecv(
    send_tensor: Any,
    dst: int,
    recv_tensor: Any,
    src: int | None = None,
    group: _Group = None,
    send_tag: int = 0,
    recv_tag: int = 0,
) -> int:
    """Send one tensor and receive another at the same time; rings of these never deadlock.

    Args:
        send_tensor: input.
        dst: global rank it goes to.
        recv_tensor: output, of exactly the message's size; may be ``send_tensor``.
        src: global rank it comes from; None: from any rank.
        send_tag, recv_tag: tags of the two messages.

    Returns:
        The global rank of the sender, -1 where this rank is not in ``group``.

    Source: ``MPI_Sendrecv``.
    """
    if outside(group, Op.SENDRECV):
        return -1
    peer = _peer(Op.SENDRECV, group, "dst", dst, None)
    peer2 = _source(Op.SENDRECV, group, src, None)
    send_tag, recv_tag = _tag(Op.SENDRECV, send_tag), _tag(Op.SENDRECV, recv_tag, _ANY)
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
) -> ProbeResult | None:
    """Wait for a message without receiving it.

    Args:
        src: global rank, or ``group_src``; both None: from any rank.
        tag: of the message; -1: any.

    Returns:
        Source, length in bytes and tag; None where this rank is not in ``group``.

    Source: ``MPI_Probe``.
    """
    if outside(group, Op.PROBE):
        return None
    peer, tag = _source(Op.PROBE, group, src, group_src), _tag(Op.PROBE, tag, _ANY)
    gid = 0 if group is None else group._id
    source, nbytes, tag = _native.submit(Op.PROBE, gid, None, None, peer=peer, tag=tag)
    return ProbeResult(_global(source, group), nbytes, tag)


class P2POp:
    """One element of the list that :func:`batch_isend_irecv` takes.

    Args:
        op: :func:`isend` or :func:`irecv`.
        tensor: to send or to receive into.
        peer: global rank, or ``group_peer``.
        group: None is the world.
        tag: as for :func:`send`.
    """

    __slots__ = ("group", "group_peer", "op", "peer", "tag", "tensor")

    def __init__(
        self,
        op: Callable[..., Work | None],
        tensor: Any,
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

    Returns:
        One Work for each, without those of groups this rank is not in.

    Raises:
        DtypeError: an element is no :class:`P2POp`; then none was begun.
    """
    for number, wanted in enumerate(p2p_op_list):
        if not isinstance(wanted, P2POp):
            raise DtypeError(
                f"batch_isend_irecv: p2p_op_list[{number}] is a {type(wanted).__name__}, "
                "it must be a P2POp"
            )
    begun = [
        wanted.op(wanted.tensor, wanted.peer, wanted.group, wanted.tag, wanted.group_peer)
        for wanted in p2p_op_list
    ]
    return [one for one in begun if one is not None]


def _tag(code: Op, tag: Any, least: int = 0) -> int:
    """A tag that fits the descriptor; the core knows how far those of this MPI go."""
    try:
        number = index(tag)
    except TypeError:
        raise DtypeError(
            f"{code.label}: tag is a {type(tag).__name__}, it must be an integer"
        ) from None
    if not least <= number <= _MOST:
        raise ArgumentError(f"{code.label}: tag={number} is out of range {least} to {_MOST}")
    return number


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
