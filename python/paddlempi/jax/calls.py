"""The primitives of JAX that are operations of the core.

Each operation is a primitive, whose call in a compiled program is a custom call of XLA: XLA calls
the core in C (capi/xla.c), with the array of numbers that :meth:`Call.attribute` makes. No Python
runs.

An operation has one result at most. What a call of it is apart from its operands is a
:class:`Call`.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import _native
from .._ops import Arity, Op, ReduceCode, Shares, Who
from ..group import ProcessGroup, members
from . import _private
from ._private import ORDER, Zero

__all__ = ["ELEMENTWISE", "Call", "apply"]

_TARGET = "paddlempi_call"


class Call(NamedTuple):
    """An operation, and all its arguments but tensors. Ranks are those of the group."""

    code: Op
    group: ProcessGroup | None = None
    reduce_op: int = 0
    scale: float = 1.0
    root: int = -1
    peer: int = -1
    tag: int = 0
    peer2: int = -1
    tag2: int = 0

    def attribute(self) -> np.ndarray[Any, Any]:
        """Return what the custom call carries; capi/xla.c has the same order.

        The ranks of the group stand behind it, because JAX keeps compiled programs on disk, and
        another job may give the same number to another group.
        """
        (scale,) = struct.unpack("q", struct.pack("d", self.scale))
        group, ranks = (0, ()) if self.group is None else (self.group._id, self.group._ranks)
        numbers = (int(self.code), self.reduce_op, scale, group, self.root, self.peer, self.tag)
        return np.array([*numbers, self.peer2, self.tag2, *ranks], np.int64)

    @property
    def size(self) -> int:
        """The number of members of the group."""
        return len(members(self.group)._ranks)

    @property
    def is_root(self) -> bool:
        """Whether this rank is the root."""
        return self.root == members(self.group)._rank


_register_once = threading.Lock()
_registered = False


def _register() -> None:
    """Tell XLA where the handler is. It loads the core."""
    global _registered
    with _register_once:
        if not _registered:
            handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
                _native.load().xla_handler()
            )
            jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(handler), platform="cpu")
            _registered = True


def apply(
    call: Call,
    operands: Sequence[Any],
    shape: tuple[int, ...] | None,
    dtype: Any = None,
    ordered: bool = True,
    varying: frozenset[Any] | None = None,
) -> Any:
    """Carry out an operation, or add it to the program that is traced.

    Args:
        call: the operation.
        operands: the array that this rank gives, or nothing. Of a receive it is an array of the
            same shape as the message, which is not read: vmap tells by it that there is a batch.
        shape, dtype: those of the result; None: there is none.
        ordered: whether it stays in order with the other calls that do.
        varying: the axes of shard_map's mesh along which the result may differ; None: those of the
            operand, unless all ranks have the same result.

    Returns:
        The result, a new array; None if there is none.
    """
    primitive = _primitives[call.code]
    if shape is None:
        primitive.bind(*operands, call=call, ordered=ordered)
        return None
    return primitive.bind(
        *operands, call=call, ordered=ordered, shape=shape, dtype=np.dtype(dtype), varying=varying
    )


# Types, and the custom call

_SAME_EVERYWHERE = (Op.ALL_REDUCE, Op.ALL_GATHER, Op.BROADCAST)
_WITHOUT_RESULT = (Op.BARRIER, Op.SEND)


def _types(*operands: Any, call: Call, ordered: bool, **result: Any) -> Any:
    effects = {ORDER} if ordered else set()
    if not result:
        return [], effects
    varying = result["varying"]
    if varying is None:
        varying = _private.varying_axes(*operands)
        if call.group is None and call.code in _SAME_EVERYWHERE:
            varying = frozenset()
    return _private.result(result["shape"], result["dtype"], varying), effects


def _lower(ctx: Any, *operands: Any, call: Call, ordered: bool, **_: Any) -> Any:
    _register()
    gives = call.code is not Op.RECV and (call.code is not Op.SCATTER or call.is_root)
    sent = operands if gives else ()
    # Where a rank gets nothing it keeps what it has. All-reduce may work in place, which saves a
    # loop a copy.
    keeps = call.code.trait.gets in (Who.EXCEPT_ROOT, Who.EXCEPT_FIRST)
    aliased = keeps or call.code is Op.ALL_REDUCE
    return _private.emit(ctx, _TARGET, sent, call.attribute(), ordered=ordered, aliased=aliased)


# vmap: one call has the whole batch, because all ranks batch the same function

ELEMENTWISE = tuple(
    code
    for code in Op
    if (code.trait.reduces or code.trait.rooted)
    and code.trait.shares is Shares.NO_SHARES
    and code.trait.recv is not Arity.MANY
)
"""Operations whose result is as long as what each rank gives."""
_PARTS_GIVEN = (Op.REDUCE_SCATTER, Op.SCATTER, Op.ALL_TO_ALL)
_PARTS_GOT = (Op.ALL_GATHER, Op.GATHER, Op.ALL_TO_ALL)


def _batch(
    primitive: Any,
    operands: Sequence[Any],
    dims: Sequence[Any],
    *,
    call: Call,
    ordered: bool,
    **result: Any,
) -> Any:
    """Put the dimension of the batch before those of a part, so that all ranks have it there.

    In an operation with parts the first dimension counts the ranks. Of a scatter only the root
    gives parts: the others give an array of the shape of one, as a receive does.
    """
    (array,), (dim,) = operands, dims
    length = array.shape[dim]
    to = 0
    if call.code in ELEMENTWISE:
        to = dim
    else:
        gives_parts = call.code in _PARTS_GIVEN and (call.code is not Op.SCATTER or call.is_root)
        array = jnp.moveaxis(array, dim, int(gives_parts))
        to = int(call.code in _PARTS_GOT)
    if not result:
        return primitive.bind(array, call=call, ordered=ordered), []
    shape = result.pop("shape")
    shape = (*shape[:to], length, *shape[to:])
    return primitive.bind(array, call=call, ordered=ordered, shape=shape, **result), to


# Derivatives

_LINEAR = (
    Op.ALL_REDUCE,
    Op.ALL_GATHER,
    Op.ALL_TO_ALL,
    Op.BROADCAST,
    Op.REDUCE,
    Op.REDUCE_SCATTER,
    Op.SENDRECV,
)
_SUMS = (0, ReduceCode.SUM, ReduceCode.AVG, ReduceCode.PREMUL_SUM)


def _forward(
    primitive: Any, primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[Any, Any]:
    call: Call = params["call"]
    if _private.is_zero(tangents):
        value = primitive.bind(*primals, **params)
        return value, [] if call.code in _WITHOUT_RESULT else _private.zero_of(value)
    if call.code not in _LINEAR or call.reduce_op not in _SUMS:
        raise NotImplementedError(f"{_named(call)} has no derivative: {_advice(call)}")
    return _private.linear_jvp(primitive, primals, tangents, **params)


def _named(call: Call) -> str:
    op = f" with op={ReduceCode(call.reduce_op).name.lower()!r}" if call.reduce_op else ""
    return f"paddlempi.jax: {call.code.label}{op}"


def _advice(call: Call) -> str:
    if call.code in (Op.SEND, Op.RECV):
        return "use sendrecv, which has one, or jax.lax.stop_gradient on what is sent"
    if call.code in _LINEAR:
        return "only sums and averages have one"
    return "use jax.lax.stop_gradient on its argument if it needs none"


def _transpose(
    cotangent: Any, operand: Any, *, call: Call, ordered: bool, varying: Any, **_: Any
) -> Any:
    """The transpose of a linear operation: another operation, on the cotangents of all ranks.

    That of all_reduce(SUM) is the identity, as in mpi4jax: what is computed from a sum that all
    ranks have counts once, and not once for each rank.
    """
    if type(cotangent) is Zero:
        return [Zero(operand.aval.to_ct_aval())]
    factor = _factor(call)
    if factor != 1:
        cotangent = cotangent * jnp.asarray(factor, cotangent.dtype)
    shape, dtype = operand.aval.shape, cotangent.dtype
    axes = _private.varying_axes(operand.aval)
    group, summed = call.group, int(ReduceCode.SUM)
    if call.code is Op.ALL_REDUCE:
        return [_identity_p.bind(cotangent, group=group, ordered=ordered, varying=axes)]
    back = call  # of all_to_all
    if call.code is Op.ALL_GATHER:
        back = Call(Op.REDUCE_SCATTER, group, summed)
    elif call.code is Op.REDUCE_SCATTER:
        back = Call(Op.ALL_GATHER, group)
    elif call.code is Op.BROADCAST:
        back = Call(Op.REDUCE, group, summed, root=call.root)
    elif call.code is Op.REDUCE:
        back = Call(Op.BROADCAST, group, root=call.root)
    elif call.code is Op.SENDRECV:
        back = _reversed(call)
    result = apply(back, [cotangent], shape, dtype, ordered, axes)
    if back.code is Op.REDUCE and not back.is_root:
        result = jnp.zeros_like(result)  # what another rank gave to the broadcast is not used
    return [result]


def _factor(call: Call) -> float:
    if call.reduce_op == ReduceCode.AVG:
        return 1 / call.size
    return call.scale


def _reversed(call: Call) -> Call:
    if call.peer2 < 0 or call.tag2 < 0:
        raise NotImplementedError(
            f"{_named(call)} has no derivative if it receives from any rank, or any tag: give src "
            "and recv_tag"
        )
    return call._replace(peer=call.peer2, tag=call.tag2, peer2=call.peer, tag2=call.tag)


# The transpose of a sum. It is a primitive, because its own transpose is the sum.

_identity_p = _private.Primitive("paddlempi_all_reduce_transpose")


def _identity_transpose(
    cotangent: Any, operand: Any, *, group: Any, ordered: bool, **_: Any
) -> Any:
    if type(cotangent) is Zero:
        return [Zero(operand.aval.to_ct_aval())]
    call = Call(Op.ALL_REDUCE, group, int(ReduceCode.SUM))
    axes = _private.varying_axes(operand.aval)
    return [apply(call, [cotangent], cotangent.shape, cotangent.dtype, ordered, axes)]


def _identity_batch(operands: Any, dims: Any, **params: Any) -> Any:
    return _identity_p.bind(*operands, **params), dims[0]


_private.define(
    _identity_p,
    abstract=lambda x, varying, **_: (_private.result(x.shape, x.dtype, varying), set()),
    lower=lambda ctx, x, **_: [x],
    batch=_identity_batch,
    jvp=partial(_private.linear_jvp, _identity_p),
    transpose=_identity_transpose,
)


def _primitive(code: Op) -> Any:
    primitive = _private.Primitive(f"paddlempi_{code.label}")
    primitive.multiple_results = code in _WITHOUT_RESULT
    _private.define(
        primitive,
        abstract=_types,
        lower=_lower,
        batch=partial(_batch, primitive),
        jvp=partial(_forward, primitive),
        transpose=_transpose,
    )
    return primitive


_primitives = {
    code: _primitive(code)
    for code in Op
    if code in (*ELEMENTWISE, *_LINEAR, *_WITHOUT_RESULT, Op.RECV, Op.GATHER, Op.SCATTER)
}
