"""The names of RAF and Meta: a context that knows its rank, and a functional allreduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _native, work
from ._buffer import bump, empty_like
from ._ops import Op
from .errors import ArgumentError, Error, TimeoutError
from .group import get_local_rank, get_local_size, get_rank, get_world_size, members
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
    """Where this process stands in the job. Made by :func:`get_context`.

    Each property raises ``NotInitializedError`` before init and after destroy.
    """

    __slots__ = ()

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


def allreduce(x: Any, computation: str = "sum") -> Any:
    """Reduce over all ranks into new tensors; ``x`` stays as it is.

    Args:
        x: a tensor, or a list or tuple of tensors, each of the same size on all ranks.
        computation: ``"sum"``, ``"prod"``, ``"min"``, ``"max"`` or ``"avg"``.

    Returns:
        A tensor of the type of ``x``, or a list of them.

    Raises:
        ArgumentError: another ``computation``.
        DtypeError: ``x`` is no tensor, or of a type that cannot be made here.

    Source: RAF's ``raf.distributed.allreduce``. Errors else as for
    :func:`paddlempi.all_reduce`.
    """
    op = _COMPUTATIONS.get(computation)
    if op is None:
        error = ArgumentError(
            f"allreduce: computation={computation!r} must be one of {', '.join(_COMPUTATIONS)}"
        )
        _native.core().refuse(Op.ALL_REDUCE, members(None)._id, str(error))
        raise error
    if isinstance(x, (list, tuple)):
        return [_aggregate(one, op) for one in _made(x)]
    return _aggregate(_made([x])[0], op)


def _made(tensors: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Each tensor with a new one for its aggregate; made before anything is sent."""
    try:
        return [(tensor, empty_like(tensor)) for tensor in tensors]
    except Error as error:
        _native.core().refuse(Op.ALL_REDUCE, members(None)._id, str(error))
        raise


def _aggregate(pair: tuple[Any, Any], op: ReduceOp) -> Any:
    tensor, made = pair
    try:
        _native.submit(Op.ALL_REDUCE, members(None)._id, tensor, made, op)
    except (TimeoutError, KeyboardInterrupt):
        work.keep(pair)
        raise
    bump(made)
    return made
