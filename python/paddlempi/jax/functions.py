"""Communication of arrays: in ``jit``, ``vmap``, ``grad`` and ``shard_map``, and outside of them.

For all functions here:

* **Arrays.** They take an array (or a number) in host memory, leave it as it is, and return a new
  array. In a compiled program a call goes from XLA to the core in C; no Python runs.
* **Members.** Every member of ``group`` (None: the world) calls the same function with the same
  shape, dtype, root and op. If these differ, all members raise an error that names the ranks.
* **Order.** Calls stay in the order of the program, within a compiled function and from one to the
  next, and none is removed because its result is not used. With ``ordered=False`` only data orders
  the call: if its operand does not depend on the call before, and other ranks might see the two in
  another order, keep the order. If nobody uses its result, JAX may leave it out.
* **vmap** makes one call of the whole batch. All members must batch the same function.
* **Derivatives.** Each function says its own. Where it has none, ``jax.grad`` raises
  ``NotImplementedError``.
* **Errors.** Wrong arguments raise ``ArgumentError`` or ``DtypeError`` while a function is traced.
  An error of the call itself has our text: a mismatch, the group's deadline, a rank that has died.
  JAX raises it as ``jax.errors.JaxRuntimeError``, or as ``ValueError`` where its fast path calls a
  compiled function, in the call or where the result is waited for.
* **Ranks** are ranks of the world, in a group too, as for :func:`paddlempi.send`.
* **Threads.** Every function may be called from any thread. Two threads that call collectives of
  one group must agree on the order with each other, as in MPI.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._ops import DTYPE_BY_NAME, Op
from ..arguments import message_tag, root_of
from ..errors import ArgumentError, DtypeError, NotMemberError
from ..group import ProcessGroup, members
from ..reduce_op import SUM, PremulSum, ReduceOp
from ..tensors.kind import KNOWN_DTYPES
from ._private import Tracer
from .calls import Call, apply

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "array_of",
    "barrier",
    "broadcast",
    "check_array",
    "recv",
    "reduce_scatter",
    "reduction",
    "send",
    "sendrecv",
    "shape_of",
]

_Group = ProcessGroup | None


def all_reduce(
    x: Any, op: str | ReduceOp = SUM, group: _Group = None, *, ordered: bool = True
) -> jax.Array:
    """Reduce the arrays of all members; every member gets the same bits.

    Its transpose for sums is the identity, as in mpi4jax: a function of the sum, which all members
    compute alike, counts once. For an average it divides by the number of members. MIN, MAX and the
    others have no derivative.

    Args:
        x: an array of any shape, the same on every member.
        op: ``"sum"``, ``"avg"``, ``"product"``, ``"min"``, ``"max"``, ``"band"``, ``"bor"``,
            ``"bxor"``, or a :class:`paddlempi.ReduceOp`. 16-bit floats are summed in float32.
        group: the members; None is the world.
        ordered: False: only data orders the call, see :mod:`paddlempi.jax.functions`.

    Returns:
        An array of the shape and dtype of ``x``.

    Source: ``MPI_Allreduce``.
    """
    x = array_of("all_reduce", x)
    call = reduction(Op.ALL_REDUCE, op, group)
    return apply(call, [x], x.shape, x.dtype, ordered)


def all_gather(
    x: Any, group: _Group = None, *, tiled: bool = False, ordered: bool = True
) -> jax.Array:
    """Give every member the arrays of all members.

    Its transpose is :func:`reduce_scatter` with a sum.

    Args:
        x: an array of shape S, the same on every member.
        group: the members, n of them; None is the world.
        tiled: put the arrays after each other along the first dimension, instead of stacking them.
        ordered: as for :func:`all_reduce`.

    Returns:
        An array of shape (n, \\*S), in rank order; tiled: (n * S[0], \\*S[1:]).

    Source: ``MPI_Allgather``; ``tiled`` is that of ``jax.lax.all_gather``.
    """
    x = array_of("all_gather", x)
    if tiled and not x.ndim:
        raise ArgumentError("all_gather: x is a scalar, which cannot be tiled: leave out tiled")
    call = Call(Op.ALL_GATHER, _member("all_gather", group))
    gathered = apply(call, [x], (call.size, *x.shape), x.dtype, ordered)
    return _tiled(gathered) if tiled else gathered


def reduce_scatter(
    x: Any,
    op: str | ReduceOp = SUM,
    group: _Group = None,
    *,
    tiled: bool = False,
    ordered: bool = True,
) -> jax.Array:
    """Reduce the arrays of all members, and give member i part i of the result.

    Its transpose for sums is :func:`all_gather`.

    Args:
        x: an array of shape (n, \\*S) for n members; tiled: of shape (n * m, \\*S).
        op, group: as for :func:`all_reduce`.
        tiled: the parts are slices of the first dimension, instead of its elements.
        ordered: as for :func:`all_reduce`.

    Returns:
        An array of shape S; tiled: (m, \\*S).

    Source: ``MPI_Reduce_scatter_block``; ``tiled`` is that of ``jax.lax.psum_scatter``.
    """
    x = array_of("reduce_scatter", x)
    call = reduction(Op.REDUCE_SCATTER, op, group)
    x = _parts("reduce_scatter", x, call.size, tiled)
    return apply(call, [x], x.shape[1:], x.dtype, ordered)


def all_to_all(
    x: Any, group: _Group = None, *, tiled: bool = False, ordered: bool = True
) -> jax.Array:
    """Send part i to member i, and receive one part from every member.

    Its transpose is itself.

    Args:
        x: an array of shape (n, \\*S) for n members; tiled: of shape (n * m, \\*S), whose parts are
            slices of the first dimension.
        group: the members; None is the world.
        tiled: see ``x``.
        ordered: as for :func:`all_reduce`.

    Returns:
        An array of the shape of ``x``, whose part i is from member i.

    Source: ``MPI_Alltoall``.
    """
    x = array_of("all_to_all", x)
    call = Call(Op.ALL_TO_ALL, _member("all_to_all", group))
    x = _parts("all_to_all", x, call.size, tiled)
    received = apply(call, [x], x.shape, x.dtype, ordered)
    return _tiled(received) if tiled else received


def broadcast(
    x: Any,
    src: int | None = None,
    group: _Group = None,
    *,
    group_src: int | None = None,
    ordered: bool = True,
) -> jax.Array:
    """Give every member the array of ``src``.

    Its transpose is the sum of the cotangents on ``src``, and zero on the other members.

    Args:
        x: an array, of the same shape and dtype on every member; its values count on ``src``.
        src: the global rank of the root; or give ``group_src``, its rank in the group.
        group: the members; None is the world.
        ordered: as for :func:`all_reduce`.

    Returns:
        An array of the shape and dtype of ``x``.

    Source: ``MPI_Bcast``.
    """
    x = array_of("broadcast", x)
    group = _member("broadcast", group)
    root = root_of("broadcast", members(group), "src", src, group_src)
    return apply(Call(Op.BROADCAST, group, root=root), [x], x.shape, x.dtype, ordered)


def send(x: Any, dst: int, group: _Group = None, tag: int = 0) -> None:
    """Send an array. It has no derivative.

    Args:
        x: an array of any shape.
        dst: the global rank of the receiver.
        group: the group of both ranks; None is the world.
        tag: the receiver has to ask for this tag.

    Source: ``MPI_Send``.
    """
    x = array_of("send", x)
    group = _member("send", group)
    peer = root_of("send", members(group), "dst", dst, None)
    apply(Call(Op.SEND, group, peer=peer, tag=message_tag("send", "tag", tag)), [x], None)


def recv(like: Any, src: int | None = None, group: _Group = None, tag: int = 0) -> jax.Array:
    """Receive an array. It has no derivative.

    Args:
        like: an array, or a ``jax.ShapeDtypeStruct``, of the shape and dtype of the message. Its
            values are not read. Under ``vmap``, a batch of arrays stands for a batch that was sent.
        src: the global rank of the sender; None: any rank.
        group: the group of both ranks; None is the world.
        tag: the tag of the message; -1: any tag.

    Returns:
        The array, of the shape and dtype of ``like``.

    Source: ``MPI_Recv``.
    """
    group = _member("recv", group)
    peer = -1 if src is None else root_of("recv", members(group), "src", src, None)
    call = Call(Op.RECV, group, peer=peer, tag=message_tag("recv", "tag", tag, -1))
    shape, dtype = shape_of("recv", like)
    operands = [lax.stop_gradient(like)] if isinstance(like, Tracer) else []
    return apply(call, operands, shape, dtype)


def sendrecv(
    x: Any,
    dst: int,
    src: int,
    like: Any = None,
    group: _Group = None,
    send_tag: int = 0,
    recv_tag: int = 0,
) -> jax.Array:
    """Send one array and receive another at the same time.

    Its transpose sends the cotangent back, from ``src`` the other way round.

    Args:
        x: the array to send.
        dst: the global rank of the receiver.
        src: the global rank of the sender of what is received.
        like: an array or a ``jax.ShapeDtypeStruct`` of the shape and dtype that are received; None:
            those of ``x``. Its values are not read.
        group: the group of all three ranks; None is the world.
        send_tag, recv_tag: the tags of the two messages.

    Returns:
        The array that was received.

    Source: ``MPI_Sendrecv``.
    """
    x = array_of("sendrecv", x)
    shape, dtype = shape_of("sendrecv", x if like is None else like)
    group = _member("sendrecv", group)
    call = Call(
        Op.SENDRECV,
        group,
        peer=root_of("sendrecv", members(group), "dst", dst, None),
        tag=message_tag("sendrecv", "send_tag", send_tag),
        peer2=root_of("sendrecv", members(group), "src", src, None),
        tag2=message_tag("sendrecv", "recv_tag", recv_tag),
    )
    return apply(call, [x], shape, dtype)


def barrier(group: _Group = None) -> None:
    """Return when every member has called it; in a compiled program, wait there for the others.

    Args:
        group: the members; None is the world.

    Source: ``MPI_Barrier``.
    """
    apply(Call(Op.BARRIER, _member("barrier", group)), [], None)


# Arguments


def array_of(what: str, x: Any) -> jax.Array:
    """Return an argument as an array."""
    try:
        array = jnp.asarray(x)
    except TypeError as error:
        raise DtypeError(f"{what}: x is a {type(x).__name__}, it must be an array") from error
    check_array(what, array)
    return array


def check_array(what: str, array: Any) -> None:
    """Raise DtypeError if the dtype of an array is none that operations take."""
    if array.dtype.name not in DTYPE_BY_NAME:
        raise DtypeError(f"{what}: an array of dtype {array.dtype} cannot be sent: {KNOWN_DTYPES}")


def shape_of(what: str, like: Any) -> tuple[tuple[int, ...], Any]:
    """Return the shape and the dtype of what is received."""
    if not isinstance(like, jax.ShapeDtypeStruct):
        like = array_of(what, like)
    check_array(what, like)
    return tuple(like.shape), like.dtype


def _member(what: str, group: _Group) -> _Group:
    """Return the group, of which this rank must be a member."""
    if group is not None and not isinstance(group, ProcessGroup):
        raise DtypeError(
            f"{what}: group is a {type(group).__name__}, it must be a group of paddlempi or None"
        )
    if members(group)._rank < 0:
        raise NotMemberError(f"{what}: this rank is no member of the group")
    return group


def reduction(code: Op, op: str | ReduceOp, group: _Group) -> Call:
    """Return a reduction, whose arguments are checked."""
    group = _member(code.label, group)
    found = getattr(ReduceOp, op.upper(), None) if isinstance(op, str) else op
    if found is PremulSum or not isinstance(found, ReduceOp):
        raise DtypeError(
            f"{code.label}: op={op!r} is no reduce op: give 'sum', 'avg', 'product', 'min', 'max', "
            "'band', 'bor', 'bxor' or a paddlempi.ReduceOp"
        )
    return Call(code, group, int(found), found.scale)


def _parts(what: str, x: jax.Array, n: int, tiled: bool) -> jax.Array:
    """Return an array whose first dimension counts the members."""
    length = x.shape[0] if x.ndim else 0
    if not x.ndim or (length % n if tiled else length != n):
        raise ArgumentError(
            f"{what}: x has shape {tuple(x.shape)}: its first dimension must be "
            + (f"a multiple of {n}" if tiled else f"{n}")
            + ", the number of members"
        )
    return x.reshape(n, length // n, *x.shape[1:]) if tiled else x


def _tiled(x: jax.Array) -> jax.Array:
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
