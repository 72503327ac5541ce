"""Collectives over the tensors of all members of a group.

Names, argument order and meaning are ``torch.distributed``'s. For all of them:

* Every member of ``group`` (None: the world) calls the same function with the same
  dtype, number of elements, root and reduce op. What differs raises
  ``MismatchError`` on all of them. A wrong argument on one rank raises there what
  is wrong (``ArgumentError``, ``DtypeError``), with nothing sent, and
  ``RefusedError`` on the others; the group stays usable.
* A rank that does not belong to the group gets a warning and None.
* A tensor is NumPy, Paddle, PyTorch or any object with the buffer protocol or
  ``__dlpack__``, in host memory; any shape and strides, also zero-size and
  zero-dim. Contiguous tensors are not copied. dtypes: bool, (u)int8-64, float16,
  bfloat16, float32, float64, complex64, complex128; float8 where nothing is reduced.
* ``rank_list`` names the group where it is used: ``[[0, 1], [2, 3]]`` lets each rank talk to
  those of its own list; a rank in none of them is alone. It takes the place of ``group``.
* ``src``, ``dst`` are global ranks; ``group_src``, ``group_dst`` are ranks of the group.
* ``async_op=True`` returns a :class:`~paddlempi.work.Work` at once; otherwise the
  function returns None when the result is there.
* ``TimeoutError``: the group's deadline ran out; it names the ranks that never came.
  That, and Ctrl-C, break the group: later calls raise ``GroupBrokenError``.
* They may be called from any thread; those on one group run one after another.

Source: :mod:`torch.distributed`; ``scan`` and ``exscan`` are MPI's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from . import _native
from ._ops import ASYNC, Op
from .arguments import Many, chosen_root, on_root, outside, refuse, splits_of
from .errors import DtypeError
from .group import ProcessGroup, members, to_seconds
from .rank_list import group_of
from .reduce_op import SUM, PremulSum, ReduceOp
from .work import Work

__all__ = [
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "exscan",
    "gather",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scan",
    "scatter",
]

_Group = ProcessGroup | None
_RankList = Sequence[Sequence[int]] | None


def all_reduce(
    tensor: Any,
    op: ReduceOp = SUM,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Reduce the tensors of all members in place; every member gets the same bits.

    Args:
        tensor: any shape; input and output.
        op: a :class:`~paddlempi.reduce_op.ReduceOp` that is defined for the dtype.
        group: None is the world.
        async_op: return a Work.
    """
    if rank_list is not None:
        group = group_of(rank_list, "all_reduce", group)
    if (
        op.__class__ is not ReduceOp
        or async_op
        or (group is not None and group.__class__ is not ProcessGroup)
    ):
        return _reducing(Op.ALL_REDUCE, None, tensor, op, group, async_op)
    _native.submit(3, 0 if group is None else group._id, None, tensor, op)
    return None


def all_reduce_coalesced(
    tensors: Sequence[Any],
    op: ReduceOp = SUM,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Reduce several tensors of one dtype in place, as one operation.

    Args:
        tensors: one or more tensors, of any shapes, the same on every member.
        op, group, async_op: as for :func:`all_reduce`.
    """
    if rank_list is not None:
        group = group_of(rank_list, "all_reduce_coalesced", group)
    return _reducing(Op.ALL_REDUCE_COALESCED, None, Many(tensors, "tensors"), op, group, async_op)


def reduce(
    tensor: Any,
    dst: int | None = None,
    op: ReduceOp = SUM,
    group: _Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Reduce the tensors of all members into that of ``dst``; the others keep theirs.

    Args:
        tensor: any shape; input, on ``dst`` output too.
        dst: global rank, or ``group_dst``.
        op, group, async_op: as for :func:`all_reduce`.
    """
    if rank_list is not None:
        group = group_of(rank_list, "reduce", group)
    if outside(group, Op.REDUCE):
        return None
    root, mine = chosen_root(Op.REDUCE, group, "dst", dst, group_dst)
    send, recv = (None, tensor) if mine else (tensor, None)
    return _reducing(Op.REDUCE, send, recv, op, group, async_op, root)


def scan(
    tensor: Any,
    op: ReduceOp = SUM,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Give each member, in place, the reduction over the members up to itself.

    Args: as for :func:`all_reduce`, but for AVG, which is a DtypeError. Source: ``MPI_Scan``.
    """
    if rank_list is not None:
        group = group_of(rank_list, "scan", group)
    return _reducing(Op.SCAN, None, tensor, op, group, async_op)


def exscan(
    tensor: Any,
    op: ReduceOp = SUM,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Give each member, in place, the reduction over the members before it.

    The first member's tensor stays as it is. Args: as for :func:`scan`. Source: ``MPI_Exscan``.
    """
    if rank_list is not None:
        group = group_of(rank_list, "exscan", group)
    return _reducing(Op.EXSCAN, None, tensor, op, group, async_op)


def reduce_scatter(
    output: Any,
    input_list: Sequence[Any],
    op: ReduceOp = SUM,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Reduce a list of tensors over all members and give number i of it to member i.

    Args:
        output: as many elements as this member's number of the list has.
        input_list: one tensor for each member; their sizes may differ.
        op, group, async_op: as for :func:`all_reduce`.
    """
    if rank_list is not None:
        group = group_of(rank_list, "reduce_scatter", group)
    return _reducing(
        Op.REDUCE_SCATTER, Many(input_list, "input_list", each=True), output, op, group, async_op
    )


def reduce_scatter_tensor(
    output: Any,
    input: Any,
    op: ReduceOp = SUM,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Reduce a tensor over all members and give its i-th equal part to member i.

    Args:
        output: m elements.
        input: world_size x m elements, contiguous parts in rank order.
        op, group, async_op: as for :func:`all_reduce`.
    """
    if rank_list is not None:
        group = group_of(rank_list, "reduce_scatter_tensor", group)
    return _reducing(Op.REDUCE_SCATTER, input, output, op, group, async_op)


def broadcast(
    tensor: Any,
    src: int | None = None,
    group: _Group = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Copy the tensor of ``src`` into that of every member.

    Args:
        tensor: input on ``src``, output elsewhere; the same number of elements.
        src: global rank, or ``group_src``.
    """
    if rank_list is not None:
        group = group_of(rank_list, "broadcast", group)
    if outside(group, Op.BROADCAST):
        return None
    root, _ = chosen_root(Op.BROADCAST, group, "src", src, group_src)
    return _moving(Op.BROADCAST, None, tensor, group, async_op, root)


def all_gather(
    tensor_list: Sequence[Any],
    tensor: Any,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Give every member the tensors of all members.

    Args:
        tensor_list: output, one tensor for each member, each of the size of that
            member's ``tensor``; the sizes may differ.
        tensor: input.
    """
    if rank_list is not None:
        group = group_of(rank_list, "all_gather", group)
    return _moving(
        Op.ALL_GATHER, tensor, Many(tensor_list, "tensor_list", each=True), group, async_op
    )


def all_gather_into_tensor(
    output_tensor: Any,
    input_tensor: Any,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Give every member the tensors of all members, one after the other in one tensor.

    Args:
        output_tensor: world_size x m elements, concatenated or stacked.
        input_tensor: m elements.
    """
    if rank_list is not None:
        group = group_of(rank_list, "all_gather_into_tensor", group)
    return _moving(Op.ALL_GATHER, input_tensor, output_tensor, group, async_op)


def gather(
    tensor: Any,
    gather_list: Sequence[Any] | None = None,
    dst: int | None = None,
    group: _Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Give ``dst`` the tensors of all members.

    Args:
        tensor: input; the same number of elements on every member.
        gather_list: on ``dst`` output, one tensor for each member; None elsewhere.
        dst: global rank (default 0), or ``group_dst``.
    """
    if rank_list is not None:
        group = group_of(rank_list, "gather", group)
    if outside(group, Op.GATHER):
        return None
    root, mine = chosen_root(Op.GATHER, group, "dst", dst, group_dst, 0)  # as in torch
    recv = on_root(Op.GATHER, group, mine, "gather_list", gather_list)
    return _moving(Op.GATHER, tensor, recv, group, async_op, root)


def scatter(
    tensor: Any,
    scatter_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: _Group = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Give member i tensor number i of the list on ``src``.

    Args:
        tensor: output; the same number of elements on every member.
        scatter_list: on ``src`` input, one tensor for each member; None elsewhere.
        src: global rank (default 0), or ``group_src``.
    """
    if rank_list is not None:
        group = group_of(rank_list, "scatter", group)
    if outside(group, Op.SCATTER):
        return None
    root, mine = chosen_root(Op.SCATTER, group, "src", src, group_src, 0)  # as in torch
    send = on_root(Op.SCATTER, group, mine, "scatter_list", scatter_list)
    return _moving(Op.SCATTER, send, tensor, group, async_op, root)


def all_to_all(
    output_tensor_list: Sequence[Any],
    input_tensor_list: Sequence[Any],
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Send tensor i of the list to member i, and receive one from each.

    Args:
        output_tensor_list: number i takes what member i sends to this one.
        input_tensor_list: one tensor for each member; sizes may differ.
    """
    if rank_list is not None:
        group = group_of(rank_list, "all_to_all", group)
    return _moving(
        Op.ALL_TO_ALL,
        Many(input_tensor_list, "input_tensor_list", each=True),
        Many(output_tensor_list, "output_tensor_list", each=True),
        group,
        async_op,
    )


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Split a tensor along its first dimension, send part i to member i, receive one from each.

    Args:
        output: the received parts one after the other in rank order.
        input: the parts to send.
        output_split_sizes: rows of ``output`` from each member; None or empty: equal parts.
        input_split_sizes: rows of ``input`` to each member; None or empty: equal parts.
    """
    if rank_list is not None:
        group = group_of(rank_list, "all_to_all_single", group)
    if outside(group, Op.ALL_TO_ALL):
        return None
    recv_splits = splits_of(group, "output_split_sizes", output_split_sizes)
    send_splits = splits_of(group, "input_split_sizes", input_split_sizes)
    return _moving(
        Op.ALL_TO_ALL,
        input,
        output,
        group,
        async_op,
        -1,
        send_splits=send_splits,
        recv_splits=recv_splits,
    )


def barrier(
    group: _Group = None,
    async_op: bool = False,
    device_ids: object = None,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Return when every member has called it.

    Args:
        device_ids: taken and not used, for there is no device to choose.
    """
    if rank_list is not None:
        group = group_of(rank_list, "barrier", group)
    return _moving(Op.BARRIER, None, None, group, async_op)


def monitored_barrier(
    group: _Group = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """A barrier that finds out who is missing and leaves the group usable.

    The members meet by messages beside the collectives, whose order it takes no part in. It
    is for finding a rank that hangs or is lost; :func:`barrier` is faster.

    Args:
        timeout: a timedelta or seconds; None: the group's.
        wait_all_ranks: taken and not used: all missing ranks are always named.

    Raises:
        TimeoutError: ``ranks`` did not come; on every member that did.

    Source: :func:`torch.distributed.monitored_barrier`, as gloo has it.
    """
    if outside(group, Op.BARRIER):
        return
    seconds = None if timeout is None else to_seconds(timeout, "monitored_barrier")
    _native.control("monitored_barrier", group=members(group)._id, timeout=seconds)


# What they have in common


def _reducing(
    code: Op,
    send: Any,
    recv: Any,
    op: ReduceOp,
    group: _Group,
    async_op: bool,
    root: int = -1,
) -> Work | None:
    if outside(group, code):
        return None
    if not isinstance(op, ReduceOp):
        refuse(
            code,
            group,
            DtypeError(
                f"{code.label}: op={op!r} is a {type(op).__name__}, it must be a paddlempi.ReduceOp"
                + (", made by PREMUL_SUM(factor)" if op is PremulSum else "")
            ),
        )
    return _moving(code, send, recv, group, async_op, root, op)


def _moving(
    code: Op,
    send: Any,
    recv: Any,
    group: _Group,
    async_op: bool,
    root: int = -1,
    op: ReduceOp | None = None,
    send_splits: Sequence[int] | None = None,
    recv_splits: Sequence[int] | None = None,
) -> Work | None:
    if outside(group, code):
        return None
    if send.__class__ is Many:
        send = send.checked(code, group)
    if recv.__class__ is Many:
        recv = recv.checked(code, group)
    reduce_op, scale = (0, 1.0) if op is None else (op, op.scale)
    written = code.writes(root, members(group)._rank)
    operation = _native.submit(
        code,
        0 if group is None else group._id,
        send,
        recv,
        reduce_op,
        (ASYNC if async_op else 0) | (0 if written else _native.QUIET),
        root=root,
        scale=scale,
        send_splits=send_splits,
        recv_splits=recv_splits,
    )
    return Work(operation, code.label, recv if written else None, group) if async_op else None
