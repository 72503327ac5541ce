"""Names of RAF and Meta: ``get_context`` and the functional ``allreduce``."""

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
from .tensor_types import Tensor

__all__ = ["DistContext", "allreduce", "get_context"]

_COMPUTATIONS = {
    "sum": ReduceOp.SUM,
    "prod": ReduceOp.PRODUCT,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
    "avg": ReduceOp.AVG,
}


class DistContext:
    """This process's ranks and sizes, and settings for optimizers. Returned by :func:`get_context`.

    The ranks and sizes raise ``NotInitializedError`` before init and after destroy. The settings
    hold for optimizers that are built later by a framework whose front is imported
    (``paddlempi.paddle``). They may be set at any time.

    Thread-safety: may be used from any thread.
    """

    __slots__ = ("_enable_data_parallel", "_group_bucket_size", "_zero_opt_level")

    def __init__(self) -> None:
        self._enable_data_parallel = False
        self._zero_opt_level = 0
        self._group_bucket_size = 25 << 20

    @property
    def enable_data_parallel(self) -> bool:
        """Whether an optimizer's step averages the gradients of all ranks.

        Settable; False by default.
        """
        return self._enable_data_parallel

    @enable_data_parallel.setter
    def enable_data_parallel(self, on: bool) -> None:
        if not isinstance(on, bool):
            raise DtypeError(f"enable_data_parallel={on!r}: it must be True or False")
        self._enable_data_parallel = on

    @property
    def zero_opt_level(self) -> int:
        """What an optimizer shards over the ranks: 0 nothing, 1 its states, 2 gradients too.

        Settable; 0 by default.

        Source: ZeRO (Rajbhandari et al. 2020, section 5).
        """
        return self._zero_opt_level

    @zero_opt_level.setter
    def zero_opt_level(self, level: int) -> None:
        if isinstance(level, bool) or level not in (0, 1, 2):
            raise ArgumentError(f"zero_opt_level={level!r}: it must be 0, 1 or 2")
        self._zero_opt_level = level

    @property
    def group_bucket_size(self) -> int:
        """The size of a bucket of gradients in bytes. Settable; 25 MiB by default."""
        return self._group_bucket_size

    @group_bucket_size.setter
    def group_bucket_size(self, size: int) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ArgumentError(f"group_bucket_size={size!r}: it must be a number of bytes above 0")
        self._group_bucket_size = size

    @property
    def root_rank(self) -> int:
        """The rank that does work of which one rank suffices: 0."""
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
        """This process's rank among the ranks of its node."""
        return get_local_rank()

    @property
    def local_size(self) -> int:
        """The number of ranks on this node."""
        return get_local_size()


_context = DistContext()


def get_context() -> DistContext:
    """Return the context of this process, in every call the same one.

    Source: RAF's ``raf.distributed.get_context``.
    """
    return _context


def allreduce(
    x: Tensor | Sequence[Tensor],
    computation: str = "sum",
    rank_list: Sequence[Sequence[int]] | None = None,
) -> Any:
    """Reduce tensors over all ranks into new tensors. ``x`` stays as it is.

    Other errors, deadlines and threads are described in :mod:`paddlempi.collectives`.

    Args:
        x: a tensor, or a list or tuple of tensors. Tensor i has the same dtype and number of
            elements on all ranks.
        computation: ``"sum"``, ``"prod"``, ``"min"``, ``"max"`` or ``"avg"``.
        rank_list: disjoint lists of global ranks. ``[[0, 1], [2, 3]]`` reduces over ranks 0 and 1,
            and over ranks 2 and 3; a rank in no list reduces alone. None: over all ranks.

    Returns:
        A new tensor of the type, shape and dtype of ``x``; for a list or tuple a list of such
        tensors.

    Raises:
        ArgumentError: another ``computation``.
        DtypeError: ``x`` is no tensor, or the library cannot make tensors of its type.

    Source: RAF's ``raf.distributed.allreduce``.
    """
    group = None if rank_list is None else group_of(rank_list, "allreduce")
    op = _COMPUTATIONS.get(computation)
    if op is None:
        error = ArgumentError(
            f"allreduce: computation={computation!r} must be one of {', '.join(_COMPUTATIONS)}"
        )
        refuse(Op.ALL_REDUCE, group, error)
    if isinstance(x, (list, tuple)):
        return [_aggregate(pair, op, group) for pair in _with_outputs(x, group)]
    return _aggregate(_with_outputs([x], group)[0], op, group)


def _with_outputs(tensors: Sequence[Any], group: ProcessGroup | None) -> list[tuple[Any, Any]]:
    """Pair every tensor with a new one for its result. All are made before anything is sent."""
    try:
        return [(tensor, empty_like(tensor)) for tensor in tensors]
    except Error as error:
        refuse(Op.ALL_REDUCE, group, error)


def _aggregate(pair: tuple[Any, Any], op: ReduceOp, group: ProcessGroup | None) -> Any:
    tensor, output = pair
    gid = members(group)._id
    _native.submit(Op.ALL_REDUCE, gid, tensor, output, op)
    return output
