"""The names of RAF and Meta: a context that knows its rank, and a functional allreduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _native
from ._buffer import empty_like
from ._ops import Op
from .arguments import refuse
from .errors import ArgumentError, DtypeError, Error
from .group import (
    ProcessGroup,
    get_local_rank,
    get_local_size,
    get_rank,
    get_world_size,
    members,
)
from .rank_list import group_of
from .reduce_op import ReduceOp

__all__ = ["DistContext", "allreduce", "get_context"]

_COMPUTATIONS = {
    "sum": ReduceOp.SUM,
    "prod": ReduceOp.PRODUCT,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
    "avg": ReduceOp.AVG,
}


class DistContext:
    """Where this process stands in the job, and how its optimizers should work. Made by
    :func:`get_context`.

    The ranks and sizes raise ``NotInitializedError`` before init and after destroy. What
    can be set holds for the optimizers that are built afterwards by a framework whose
    front is imported (``paddlempi.paddle``), and may be set at any time.
    """

    __slots__ = ("_enable_data_parallel", "_group_bucket_size", "_zero_opt_level")

    def __init__(self) -> None:
        self._enable_data_parallel = False
        self._zero_opt_level = 0
        self._group_bucket_size = 25 << 20

    @property
    def enable_data_parallel(self) -> bool:
        """Whether an optimizer's step averages the gradients of all ranks; settable, False."""
        return self._enable_data_parallel

    @enable_data_parallel.setter
    def enable_data_parallel(self, on: bool) -> None:
        if not isinstance(on, bool):
            raise DtypeError(f"enable_data_parallel={on!r}: it must be True or False")
        self._enable_data_parallel = on

    @property
    def zero_opt_level(self) -> int:
        """What an optimizer shards over the ranks: 0 nothing, 1 its states, 2 gradients too.

        Settable, 0. Source: ZeRO (Rajbhandari et al. 2020, section 5).
        """
        return self._zero_opt_level

    @zero_opt_level.setter
    def zero_opt_level(self, level: int) -> None:
        if isinstance(level, bool) or level not in (0, 1, 2):
            raise ArgumentError(f"zero_opt_level={level!r}: it must be 0, 1 or 2")
        self._zero_opt_level = level

    @property
    def group_bucket_size(self) -> int:
        """Bytes of gradients that travel together; settable, 25 MiB."""
        return self._group_bucket_size

    @group_bucket_size.setter
    def group_bucket_size(self, size: int) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ArgumentError(f"group_bucket_size={size!r}: it must be a number of bytes above 0")
        self._group_bucket_size = size

    @property
    def root_rank(self) -> int:
        """The rank that does what one rank does for all: 0."""
        get_rank()
        return 0

    @property
    def rank(self) -> int:
        """This process's rank in the world."""
        return get_rank()

    @property
    def size(self) -> int:
        """The number of ranks in the world."""
        return get_world_size()

    @property
    def local_rank(self) -> int:
        """This process's rank among those of its node."""
        return get_local_rank()

    @property
    def local_size(self) -> int:
        """The number of ranks on this node."""
        return get_local_size()


_context = DistContext()


def get_context() -> DistContext:
    """The context of this process. Source: RAF's ``raf.distributed.get_context``."""
    return _context


def allreduce(
    x: Any, computation: str = "sum", rank_list: Sequence[Sequence[int]] | None = None
) -> Any:
    """Reduce over all ranks into new tensors; ``x`` stays as it is.

    Args:
        x: a tensor, or a list or tuple of tensors, each of the same size on all ranks.
        computation: ``"sum"``, ``"prod"``, ``"min"``, ``"max"`` or ``"avg"``.
        rank_list: ``[[0, 1], [2, 3]]`` reduces over the ranks of each list by themselves; a
            rank in none of them is alone. None: over all ranks.

    Returns:
        A tensor of the type of ``x``, or a list of them.

    Raises:
        ArgumentError: another ``computation``.
        DtypeError: ``x`` is no tensor, or of a type that cannot be made here.

    Source: RAF's ``raf.distributed.allreduce``. Errors else as for
    :func:`paddlempi.all_reduce`.
    """
    group = None if rank_list is None else group_of(rank_list, "allreduce")
    op = _COMPUTATIONS.get(computation)
    if op is None:
        error = ArgumentError(
            f"allreduce: computation={computation!r} must be one of {', '.join(_COMPUTATIONS)}"
        )
        refuse(Op.ALL_REDUCE, group, error)
    if isinstance(x, (list, tuple)):
        return [_aggregate(one, op, group) for one in _made(x, group)]
    return _aggregate(_made([x], group)[0], op, group)


def _made(tensors: Sequence[Any], group: ProcessGroup | None) -> list[tuple[Any, Any]]:
    """Each tensor with a new one for its aggregate; made before anything is sent."""
    try:
        return [(tensor, empty_like(tensor)) for tensor in tensors]
    except Error as error:
        refuse(Op.ALL_REDUCE, group, error)


def _aggregate(pair: tuple[Any, Any], op: ReduceOp, group: ProcessGroup | None) -> Any:
    tensor, made = pair
    gid = members(group)._id
    _native.submit(Op.ALL_REDUCE, gid, tensor, made, op)
    return made
