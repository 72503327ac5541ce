"""Collectives over the tensors of all members of a group.

Names, argument order and meaning are ``torch.distributed``'s. For all functions here:

* **Members.** Every member of ``group`` (None: the world) calls the same function with the
  same dtype, number of elements, root and reduce op. If these differ, all members raise
  ``MismatchError``. If the arguments of one rank are wrong, that rank raises
  ``ArgumentError`` or ``DtypeError`` and the others raise ``RefusedError``. In both cases
  nothing was sent and the group stays usable. A rank that is no member of the group gets a
  warning and None.
* **Tensors.** A tensor is a NumPy array, a Paddle or PyTorch tensor, or any object with the
  buffer protocol, ``__dlpack__`` or ``__cuda_array_interface__``. It is in host memory or in
  CUDA memory. It may have any shape and strides, also zero elements or zero dimensions:
  members have to agree on the number of elements, not on the shape. Contiguous tensors in
  host memory are not copied.
* **Dtypes.** bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64,
  complex64, complex128. Functions that reduce nothing also take float8. All tensors of a call
  have one dtype. ``docs/ops.md`` lists which reduce op is defined for which dtype.
* **Ranks.** ``src`` and ``dst`` are global ranks. ``group_src`` and ``group_dst`` are ranks of
  the group. A call gives at most one of the two.
* **rank_list** replaces ``group``. ``[[0, 1], [2, 3]]`` names disjoint lists of global ranks.
  The members of a call are the ranks of the list that has this rank, or this rank alone if no
  list has it.
* **async_op=True** returns a :class:`~paddlempi.work.Work` at once. Otherwise the function
  returns None when the result is in the output tensors. With tensors in CUDA memory it returns
  when the current stream has been made to wait for the result.
* **Deadline.** If the group's deadline runs out, the members that wait raise ``TimeoutError``,
  whose ``ranks`` are the members that never came. A timeout or Ctrl-C breaks the group: later
  calls raise ``GroupBrokenError``.
* **Threads.** Every function may be called from any thread. Collectives of one group run one
  after another.

Source: :mod:`torch.distributed`; ``scan`` and ``exscan`` are MPI's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from . import _native
from ._ops import ASYNC, Op
from .arguments import TensorList, chosen_root, is_nonmember, on_root, refuse, splits_of
from .errors import DtypeError
from .group import ProcessGroup, members
from .group_arguments import to_seconds
from .rank_list import group_of
from .reduce_op import SUM, PremulSum, ReduceOp
from .tensor_types import Tensor
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
    tensor: Tensor,
    op: ReduceOp = SUM,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Reduce the tensors of all members in place; every member gets the same bits.

    Errors, deadlines and threads are described in :mod:`paddlempi.collectives`.

    Args:
        tensor: input and output; any shape, the same number of elements on every member.
        op: a :class:`~paddlempi.reduce_op.ReduceOp` that is defined for the dtype.
        group: the members; None is the world.
        async_op: return a Work instead of waiting.
        rank_list: lists of global ranks, instead of ``group``.

    Returns:
        A Work if ``async_op`` is set, else None.
    """
    if rank_list is not None:
        group = group_of(rank_list, "all_reduce", group)
    if (
        op.__class__ is not ReduceOp
        or async_op
        or (group is not None and group.__class__ is not ProcessGroup)
    ):
        return _submit_reduction(Op.ALL_REDUCE, None, tensor, op, group, async_op)
    _native.submit(3, 0 if group is None else group._id, None, tensor, op)
    return None


def all_reduce_coalesced(
    tensors: Sequence[Tensor],
    op: ReduceOp = SUM,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Reduce several tensors of one dtype in place, as one operation.

    Args:
        tensors: input and output; one or more tensors of any shapes. Every member gives as many
            tensors, and tensor i has the same number of elements on every member.
        op, group, async_op, rank_list: as for :func:`all_reduce`.
    """
    if rank_list is not None:
        group = group_of(rank_list, "all_reduce_coalesced", group)
    return _submit_reduction(
        Op.ALL_REDUCE_COALESCED, None, TensorList(tensors, "tensors"), op, group, async_op
    )


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: ReduceOp = SUM,
    group: _Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Reduce the tensors of all members into the tensor of ``dst``.

    Args:
        tensor: input; on ``dst`` also the output. Any shape, the same number of elements on
            every member.
        dst: the global rank of the root; or give ``group_dst``, its rank in the group.
        op, group, async_op, rank_list: as for :func:`all_reduce`.
    """
    if rank_list is not None:
        group = group_of(rank_list, "reduce", group)
    if is_nonmember(group, Op.REDUCE):
        return None
    root, is_root = chosen_root(Op.REDUCE, group, "dst", dst, group_dst)
    send, recv = (None, tensor) if is_root else (tensor, None)
    return _submit_reduction(Op.REDUCE, send, recv, op, group, async_op, root)


def scan(
    tensor: Tensor,
    op: ReduceOp = SUM,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Give member i the reduction over members 0 to i, in place.

    The arguments are those of :func:`all_reduce`. ``op=AVG`` raises ``DtypeError``.

    Source: ``MPI_Scan``.
    """
    if rank_list is not None:
        group = group_of(rank_list, "scan", group)
    return _submit_reduction(Op.SCAN, None, tensor, op, group, async_op)


def exscan(
    tensor: Tensor,
    op: ReduceOp = SUM,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Give member i the reduction over members 0 to i-1, in place.

    Member 0 keeps its tensor as it is. The arguments are those of :func:`scan`.

    Source: ``MPI_Exscan``.
    """
    if rank_list is not None:
        group = group_of(rank_list, "exscan", group)
    return _submit_reduction(Op.EXSCAN, None, tensor, op, group, async_op)


def reduce_scatter(
    output: Tensor,
    input_list: Sequence[Tensor],
    op: ReduceOp = SUM,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Reduce lists of tensors over all members and give member i the result of tensor i.

    Args:
        output: as many elements as ``input_list[i]`` on member i.
        input_list: input; one tensor for each member. The tensors of a list may have different
            numbers of elements, but tensor i has the same number on every member.
        op, group, async_op, rank_list: as for :func:`all_reduce`.
    """
    if rank_list is not None:
        group = group_of(rank_list, "reduce_scatter", group)
    return _submit_reduction(
        Op.REDUCE_SCATTER,
        TensorList(input_list, "input_list", per_rank=True),
        output,
        op,
        group,
        async_op,
    )


def reduce_scatter_tensor(
    output: Tensor,
    input: Tensor,
    op: ReduceOp = SUM,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Reduce the tensors of all members and give member i part i of the result.

    Args:
        output: m elements.
        input: n * m elements for n members: n equal parts, one after another in rank order.
        op, group, async_op, rank_list: as for :func:`all_reduce`.
    """
    if rank_list is not None:
        group = group_of(rank_list, "reduce_scatter_tensor", group)
    return _submit_reduction(Op.REDUCE_SCATTER, input, output, op, group, async_op)


def broadcast(
    tensor: Tensor,
    src: int | None = None,
    group: _Group = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Copy the tensor of ``src`` into the tensor of every other member.

    Args:
        tensor: input on ``src``, output elsewhere; the same number of elements on every member.
        src: the global rank of the root; or give ``group_src``, its rank in the group.
        group, async_op, rank_list: as for :func:`all_reduce`.
    """
    if rank_list is not None:
        group = group_of(rank_list, "broadcast", group)
    if is_nonmember(group, Op.BROADCAST):
        return None
    root, _ = chosen_root(Op.BROADCAST, group, "src", src, group_src)
    return _submit(Op.BROADCAST, None, tensor, group, async_op, root)


def all_gather(
    tensor_list: Sequence[Tensor],
    tensor: Tensor,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Give every member the tensors of all members.

    Args:
        tensor_list: output; one tensor for each member. ``tensor_list[i]`` has as many elements
            as member i's ``tensor``.
        tensor: input; its number of elements may differ from member to member.
        group, async_op, rank_list: as for :func:`all_reduce`.
    """
    if rank_list is not None:
        group = group_of(rank_list, "all_gather", group)
    return _submit(
        Op.ALL_GATHER,
        tensor,
        TensorList(tensor_list, "tensor_list", per_rank=True),
        group,
        async_op,
    )


def all_gather_into_tensor(
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Give every member the tensors of all members, one after another in one tensor.

    Args:
        output_tensor: n * m elements for n members, in rank order; concatenated and stacked
            shapes are the same to this function.
        input_tensor: m elements, the same m on every member.
        group, async_op, rank_list: as for :func:`all_reduce`.
    """
    if rank_list is not None:
        group = group_of(rank_list, "all_gather_into_tensor", group)
    return _submit(Op.ALL_GATHER, input_tensor, output_tensor, group, async_op)


def gather(
    tensor: Tensor,
    gather_list: Sequence[Tensor] | None = None,
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
        gather_list: output on ``dst``: one tensor for each member, each with as many elements as
            ``tensor``.
            None or empty on the other members.
        dst: the global rank of the root, by default 0; or give ``group_dst``, its rank in the
            group.
        group, async_op, rank_list: as for :func:`all_reduce`.
    """
    if rank_list is not None:
        group = group_of(rank_list, "gather", group)
    if is_nonmember(group, Op.GATHER):
        return None
    root, is_root = chosen_root(Op.GATHER, group, "dst", dst, group_dst, 0)  # as in torch
    recv = on_root(Op.GATHER, group, is_root, "gather_list", gather_list)
    return _submit(Op.GATHER, tensor, recv, group, async_op, root)


def scatter(
    tensor: Tensor,
    scatter_list: Sequence[Tensor] | None = None,
    src: int | None = None,
    group: _Group = None,
    async_op: bool = False,
    group_src: int | None = None,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Give member i tensor i of the list on ``src``.

    Args:
        tensor: output; the same number of elements on every member.
        scatter_list: input on ``src``: one tensor for each member, each with as many elements as
            ``tensor``.
            None or empty on the other members.
        src: the global rank of the root, by default 0; or give ``group_src``, its rank in the
            group.
        group, async_op, rank_list: as for :func:`all_reduce`.
    """
    if rank_list is not None:
        group = group_of(rank_list, "scatter", group)
    if is_nonmember(group, Op.SCATTER):
        return None
    root, is_root = chosen_root(Op.SCATTER, group, "src", src, group_src, 0)  # as in torch
    send = on_root(Op.SCATTER, group, is_root, "scatter_list", scatter_list)
    return _submit(Op.SCATTER, send, tensor, group, async_op, root)


def all_to_all(
    output_tensor_list: Sequence[Tensor],
    input_tensor_list: Sequence[Tensor],
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Send tensor i of a list to member i, and receive one tensor from every member.

    Args:
        output_tensor_list: output; tensor i takes what member i sends to this rank, and has as
            many elements.
        input_tensor_list: input; one tensor for each member, of any sizes.
        group, async_op, rank_list: as for :func:`all_reduce`.
    """
    if rank_list is not None:
        group = group_of(rank_list, "all_to_all", group)
    return _submit(
        Op.ALL_TO_ALL,
        TensorList(input_tensor_list, "input_tensor_list", per_rank=True),
        TensorList(output_tensor_list, "output_tensor_list", per_rank=True),
        group,
        async_op,
    )


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: _Group = None,
    async_op: bool = False,
    *,
    rank_list: _RankList = None,
) -> Work | None:
    """Split a tensor along its first dimension, send part i to member i, receive one part of each.

    Args:
        output: the received parts, one after another in rank order.
        input: the parts to send, one after another in rank order.
        output_split_sizes: for each member, how many rows of ``output`` it sends; rows count
            along the first dimension. None or empty: equal parts.
        input_split_sizes: for each member, how many rows of ``input`` it receives. None or
            empty: equal parts.
        group, async_op, rank_list: as for :func:`all_reduce`.
    """
    if rank_list is not None:
        group = group_of(rank_list, "all_to_all_single", group)
    if is_nonmember(group, Op.ALL_TO_ALL):
        return None
    recv_splits = splits_of(group, "output_split_sizes", output_split_sizes)
    send_splits = splits_of(group, "input_split_sizes", input_split_sizes)
    return _submit(
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
        group, async_op, rank_list: as for :func:`all_reduce`.
        device_ids: ignored; ``torch.distributed`` has this argument.
    """
    if rank_list is not None:
        group = group_of(rank_list, "barrier", group)
    return _submit(Op.BARRIER, None, None, group, async_op)


def monitored_barrier(
    group: _Group = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    """Wait until every member has called it, or name the members that did not.

    It finds a rank that hangs or is lost, and leaves the group usable. The members meet by
    messages, outside the order of the group's collectives. :func:`barrier` is faster.

    Args:
        group: the members; None is the world.
        timeout: how long to wait, a timedelta or seconds. None: the group's deadline.
        wait_all_ranks: ignored: the error always names all missing ranks.

    Raises:
        TimeoutError: on every member that came; its ``ranks`` are the members that did not.
        PeerLeftError: the members ``ranks`` have ended, so that they will not call it.

    Source: :func:`torch.distributed.monitored_barrier` with gloo.
    """
    if is_nonmember(group, Op.BARRIER):
        return
    seconds = None if timeout is None else to_seconds(timeout, "monitored_barrier")
    _native.control("monitored_barrier", group=members(group)._id, timeout=seconds)


# How all of them submit


def _submit_reduction(
    code: Op,
    send: Any,
    recv: Any,
    op: ReduceOp,
    group: _Group,
    async_op: bool,
    root: int = -1,
) -> Work | None:
    if is_nonmember(group, code):
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
    return _submit(code, send, recv, group, async_op, root, op)


def _submit(
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
    if is_nonmember(group, code):
        return None
    if send.__class__ is TensorList:
        send = send.checked(code, group)
    if recv.__class__ is TensorList:
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
