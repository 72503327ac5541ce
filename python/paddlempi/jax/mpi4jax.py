"""The functions of mpi4jax 0.9: ``import paddlempi.jax.mpi4jax as mpi4jax``.

They have its names, arguments and results. docs/jax.md lists what differs. In short:

* ``comm`` is a communicator of mpi4py, a group of paddlempi, or None, which is the world. The first
  call with a communicator makes a group of its members, so that it is collective over them.
* ``op`` is an op of mpi4py, or what :func:`paddlempi.jax.all_reduce` takes. Ops of users are none.
* ``status`` is not filled in: it is an error, as ``token`` is, which mpi4jax does not take any more
  either.
* allgather, alltoall, bcast and sendrecv have derivatives, sendrecv also forward ones. float16 and
  bfloat16 are added in float32.
* Errors are those of :mod:`paddlempi.jax.functions`, not MPI's abort.

``source``, ``dest`` and ``root`` are ranks of ``comm``.

Source: https://github.com/mpi4jax/mpi4jax
"""

from __future__ import annotations

import sys
from operator import index
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._ops import Op, ReduceCode
from ..arguments import message_tag
from ..errors import ArgumentError, DtypeError, UnsupportedError
from ..group import ProcessGroup, get_world_size, members, new_group
from . import functions
from ._private import Tracer
from .calls import Call, apply
from .functions import array_of, reduction, shape_of

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "bcast",
    "gather",
    "has_cuda_support",
    "has_sycl_support",
    "recv",
    "reduce",
    "scan",
    "scatter",
    "send",
    "sendrecv",
]

_NOT_GIVEN = object()


def allreduce(x: Any, op: Any, *, comm: Any = None, token: Any = _NOT_GIVEN) -> jax.Array:
    """Return the reduction of ``x`` over all ranks. Sums have derivatives."""
    _check_token(token)
    return _reduced(Op.ALL_REDUCE, x, op, comm)


def reduce(x: Any, op: Any, root: int, *, comm: Any = None, token: Any = _NOT_GIVEN) -> jax.Array:
    """Return the reduction of ``x`` over all ranks on ``root``; ``x`` on the others."""
    _check_token(token)
    group = _group(comm)
    root = _rank("reduce", "root", root, group)
    result = _reduced(Op.REDUCE, x, op, group, root)
    return result if root == members(group)._rank else jnp.asarray(x)


def scan(x: Any, op: Any, *, comm: Any = None, token: Any = _NOT_GIVEN) -> jax.Array:
    """Return the reduction of ``x`` over the ranks up to this one."""
    _check_token(token)
    return _reduced(Op.SCAN, x, op, comm)


def allgather(x: Any, *, comm: Any = None, token: Any = _NOT_GIVEN) -> jax.Array:
    """Return the arrays of all ranks, of shape (size, \\*x.shape)."""
    _check_token(token)
    return functions.all_gather(x, _group(comm))


def gather(x: Any, root: int, *, comm: Any = None, token: Any = _NOT_GIVEN) -> jax.Array:
    """Return the arrays of all ranks, (size, \\*x.shape), on ``root``; ``x`` on the others."""
    _check_token(token)
    x, group = array_of("gather", x), _group(comm)
    call = Call(Op.GATHER, group, root=_rank("gather", "root", root, group))
    if call.is_root:
        return _array(apply(call, [x], (call.size, *x.shape), x.dtype))
    apply(call, [x], (0,), x.dtype)
    return x


def scatter(x: Any, root: int, *, comm: Any = None, token: Any = _NOT_GIVEN) -> jax.Array:
    """Return part i of ``root``'s array on rank i.

    Args:
        x: on ``root`` the parts, of shape (size, \\*S); on the others an array of shape S, which is
            not read.
    """
    _check_token(token)
    x, group = array_of("scatter", x), _group(comm)
    call = Call(Op.SCATTER, group, root=_rank("scatter", "root", root, group))
    if not call.is_root:
        return _array(apply(call, [lax.stop_gradient(x)], x.shape, x.dtype))
    if not x.ndim or x.shape[0] != call.size:
        raise ArgumentError(
            f"scatter: x has shape {x.shape} on the root: its first dimension must be {call.size}, "
            "the number of ranks"
        )
    return _array(apply(call, [x], x.shape[1:], x.dtype))


def alltoall(x: Any, *, comm: Any = None, token: Any = _NOT_GIVEN) -> jax.Array:
    """Send part i of ``x``, of shape (size, ...), to rank i; return what all ranks have sent."""
    _check_token(token)
    return functions.all_to_all(x, _group(comm))


def bcast(x: Any, root: int, *, comm: Any = None, token: Any = _NOT_GIVEN) -> jax.Array:
    """Return the array of ``root``. The others give one of its shape and dtype."""
    _check_token(token)
    group = _group(comm)
    return functions.broadcast(x, group=group, group_src=_rank("bcast", "root", root, group))


def barrier(*, comm: Any = None, token: Any = _NOT_GIVEN) -> None:
    """Wait for all ranks."""
    _check_token(token)
    functions.barrier(_group(comm))


def send(x: Any, dest: int, *, tag: int = 0, comm: Any = None, token: Any = _NOT_GIVEN) -> None:
    """Send ``x`` to ``dest``."""
    _check_token(token)
    x, group = array_of("send", x), _group(comm)
    if not _is(dest, "PROC_NULL"):
        peer = _rank("send", "dest", dest, group)
        apply(Call(Op.SEND, group, peer=peer, tag=message_tag("send", "tag", tag)), [x], None)


def recv(
    x: Any,
    source: int | None = None,
    *,
    tag: int | None = None,
    comm: Any = None,
    status: None = None,
    token: Any = _NOT_GIVEN,
) -> jax.Array:
    """Return what ``source`` has sent (None: any rank), of the shape and dtype of ``x``."""
    _check_token(token)
    _check_status(status)
    group = _group(comm)
    shape, dtype = shape_of("recv", x)
    if _is(source, "PROC_NULL"):
        return jnp.asarray(x)
    peer, tag = _source("recv", source, group), _tag("recv", "tag", tag)
    # vmap must see x, so that a batch is received where a batch is sent.
    operands = [lax.stop_gradient(x)] if isinstance(x, Tracer) else []
    return _array(apply(Call(Op.RECV, group, peer=peer, tag=tag), operands, shape, dtype))


def sendrecv(
    sendbuf: Any,
    recvbuf: Any,
    source: int,
    dest: int,
    *,
    sendtag: int = 0,
    recvtag: int | None = None,
    comm: Any = None,
    status: None = None,
    token: Any = _NOT_GIVEN,
) -> jax.Array:
    """Send ``sendbuf`` to ``dest``; return what ``source`` has sent, of ``recvbuf``'s shape."""
    _check_token(token)
    _check_status(status)
    if _is(dest, "PROC_NULL"):
        return recv(recvbuf, source, tag=recvtag, comm=comm)
    if _is(source, "PROC_NULL"):
        send(sendbuf, dest, tag=sendtag, comm=comm)
        return jnp.asarray(recvbuf)
    x, group = array_of("sendrecv", sendbuf), _group(comm)
    shape, dtype = shape_of("sendrecv", recvbuf)
    call = Call(
        Op.SENDRECV,
        group,
        peer=_rank("sendrecv", "dest", dest, group),
        tag=message_tag("sendrecv", "sendtag", sendtag),
        peer2=_source("sendrecv", source, group),
        tag2=_tag("sendrecv", "recvtag", recvtag),
    )
    return _array(apply(call, [x], shape, dtype))


def has_cuda_support() -> bool:
    """False: arrays are in host memory."""
    return False


def has_sycl_support() -> bool:
    """False: arrays are in host memory."""
    return False


# Arguments


def _array(result: Any) -> jax.Array:
    array: jax.Array = result
    return array


def _mpi() -> Any:
    """The module mpi4py.MPI, or None if it is not imported: then no argument is of it."""
    return sys.modules.get("mpi4py.MPI")


def _is(rank: Any, name: str) -> bool:
    """Whether a rank or a tag is a constant of mpi4py, whose numbers depend on the MPI."""
    return _mpi() is not None and rank == getattr(_mpi(), name)


_OPS = {"SUM": "sum", "PROD": "product", "MIN": "min", "MAX": "max"} | {
    name: name.lower() for name in ("BAND", "BOR", "BXOR")
}
_LOGICAL = {"LAND": ReduceCode.MIN, "LOR": ReduceCode.MAX, "LXOR": ReduceCode.BXOR}


def _reduced(code: Op, x: Any, op: Any, comm: Any, root: int = -1) -> jax.Array:
    x, group = array_of(code.label, x), _group(comm)
    if _mpi() is not None and isinstance(op, _mpi().Op):
        for name, reduce_op in _LOGICAL.items():
            if op == getattr(_mpi(), name):
                # An MPI's LXOR is that of truth values, whatever the dtype is.
                call = Call(code, group, int(reduce_op), root=root)
                truth = (x != 0).astype("uint8")
                return _array(apply(call, [truth], x.shape, truth.dtype).astype(x.dtype))
        names = [name for name in _OPS if op == getattr(_mpi(), name)]
        if not names:
            raise UnsupportedError(
                f"{code.label}: op is none of MPI's {', '.join((*_OPS, *_LOGICAL))}: an op of a "
                "user has no counterpart here"
            )
        op = _OPS[names[0]]
    call = reduction(code, op, group)._replace(root=root)
    return _array(apply(call, [x], x.shape, x.dtype))


_keyval: int | None = None


def _group(comm: Any) -> ProcessGroup | None:
    """Return the group of a communicator's members; it is made once for each communicator."""
    global _keyval
    if comm is None or isinstance(comm, ProcessGroup):
        return comm
    mpi = _mpi()
    if mpi is None or not isinstance(comm, mpi.Intracomm):
        raise DtypeError(
            f"comm is a {type(comm).__name__}, it must be an mpi4py.MPI.Intracomm, a group of "
            "paddlempi, or None"
        )
    if _keyval is None:
        _keyval = mpi.Comm.Create_keyval()
    known: tuple[ProcessGroup | None] | None = comm.Get_attr(_keyval)
    if known is None:
        known = (_new_group(mpi, comm),)
        comm.Set_attr(_keyval, known)
    return known[0]


def _new_group(mpi: Any, comm: Any) -> ProcessGroup | None:
    size = get_world_size()
    if mpi.COMM_WORLD.size != size:
        raise UnsupportedError(
            f"comm: the world of paddlempi has {size} ranks and MPI.COMM_WORLD has "
            f"{mpi.COMM_WORLD.size}: give a group of paddlempi"
        )
    theirs, world = comm.Get_group(), mpi.COMM_WORLD.Get_group()
    ranks = list(mpi.Group.Translate_ranks(theirs, list(range(theirs.size)), world))
    theirs.Free()
    world.Free()
    return None if ranks == list(range(size)) else new_group(ranks)


def _rank(what: str, name: str, rank: Any, group: ProcessGroup | None) -> int:
    try:
        number = index(rank)
    except TypeError:
        raise DtypeError(
            f"{what}: {name} is a {type(rank).__name__}, it must be a rank of comm"
        ) from None
    size = len(members(group)._ranks)
    if not 0 <= number < size:
        raise ArgumentError(f"{what}: {name}={number} is not among the {size} ranks of comm")
    return number


def _source(what: str, rank: Any, group: ProcessGroup | None) -> int:
    if rank is None or _is(rank, "ANY_SOURCE"):
        return -1
    return _rank(what, "source", rank, group)


def _tag(what: str, name: str, tag: Any) -> int:
    if tag is None or _is(tag, "ANY_TAG"):
        return -1
    return message_tag(what, name, tag)


def _check_token(token: Any) -> None:
    if token is not _NOT_GIVEN:
        raise UnsupportedError(
            "token: calls are in order without tokens, as in mpi4jax since 0.8: leave it out, and "
            "take the array alone as the result"
        )


def _check_status(status: Any) -> None:
    if status is not None:
        raise UnsupportedError("status: it is not filled in: leave it out")
