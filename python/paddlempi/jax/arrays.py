"""JAX arrays in the functions of the package, as ``paddlempi.all_reduce(x)``.

An array of JAX cannot be written to. Functions that work in place give a new array instead, by the
primitives of :mod:`.calls`, so that they stay in order with compiled functions and may be in one.
"""

from __future__ import annotations

from typing import Any, NoReturn

import jax

from .._ops import Op
from ..arguments import refuse
from ..errors import ArgumentError
from ..group import ProcessGroup, group_of_id
from .calls import ELEMENTWISE, Call, apply
from .functions import check_array

__all__ = ["carry_out"]

_OTHERS = {
    Op.ALL_GATHER: "all_gather(x)",
    Op.REDUCE_SCATTER: "reduce_scatter(x)",
    Op.ALL_TO_ALL: "all_to_all(x)",
    Op.RECV: "recv(like, src)",
    Op.SENDRECV: "sendrecv(x, dst, src)",
    Op.ALL_REDUCE_COALESCED: "all_reduce(x)",
}


def carry_out(
    recv: Any,
    send: Any,
    code: int,
    group_id: int,
    root: int,
    reduce_op: int,
    scale: float,
    is_async: bool,
) -> jax.Array:
    """Carry out a call into an array of JAX.

    Args:
        recv: what it would write to.
        send: what it reads besides, or None.
        code: the operation.
        group_id: the id of the group; 0: the world.
        root, reduce_op, scale: as in :class:`Call`.
        is_async: whether it was called with ``async_op``.

    Returns:
        A new array.

    Raises:
        ArgumentError: the function can only write into its argument, or the array was deleted. The
            other ranks are told.
    """
    op = Op(code)  # type: ignore[call-arg]
    group = None if group_id == 0 else group_of_id(group_id)
    if op not in ELEMENTWISE or send is not None or not isinstance(recv, jax.Array):
        instead = _OTHERS.get(op)
        _refuse(
            op,
            group,
            "an array of JAX cannot be written to: "
            + (
                f"call paddlempi.jax.{instead}, which returns a new array"
                if instead
                else "give an array of NumPy, and make one of JAX from it"
            ),
        )
    if is_async:
        _refuse(op, group, "async_op: an array of JAX is asynchronous by itself; leave it out")
    if not isinstance(recv, jax.core.Tracer) and recv.is_deleted():
        why = "the array was deleted: delete() or a function that it was donated to took its memory"
        _refuse(op, group, why)
    check_array(op.label, recv)
    call = Call(op, group, reduce_op, scale, root)
    result: jax.Array = apply(call, [recv], recv.shape, recv.dtype)
    return result


def _refuse(op: Op, group: ProcessGroup | None, why: str) -> NoReturn:
    error = ArgumentError(f"{op.label}: {why}")
    if op.trait.collective:
        refuse(op, group, error)
    raise error
