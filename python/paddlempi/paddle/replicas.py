"""What every rank must have alike besides gradients: parameters at the start, buffers always."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import paddle

from .._ops import Op
from ..collectives import all_reduce_coalesced, broadcast
from ..errors import MismatchError
from ..group import ProcessGroup
from ..objects import all_gather_object
from ..reduce_op import ReduceOp
from ..work import Work
from . import private
from .buckets import bytes_of
from .refusal import refuse

__all__ = ["Buffers", "Sync", "broadcast_all", "check_same", "has_value"]

Sync = Literal["broadcast", "average", "local"]
"""How buffers are made equal: rank 0's, the average (floating dtypes; rank 0's others), never."""

_Signature = tuple[str, tuple[int, ...], str]


def check_same(named: Sequence[tuple[str, Any]], options: object, group: ProcessGroup) -> None:
    """Compare a model with those of the other ranks. Collective.

    Args:
        named: names and tensors, in the model's order.
        options: what else must be equal; its ``repr`` is compared.

    Raises:
        MismatchError: on every rank; ``ranks`` differ from the group's first one in the number,
            names, shapes or dtypes of the tensors, or in the options.
    """
    mine = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in named]
    everyone: list[tuple[list[_Signature], str]] = [([], "")] * group.size()
    all_gather_object(everyone, (mine, repr(options)), group)
    first, first_options = everyone[0]
    for rank, (other, other_options) in enumerate(everyone):
        what = _difference(first, other)
        if what is None and other_options != first_options:
            what = f"the options are {first_options}", other_options
        if what is not None:
            zero, world = group._ranks[0], group._ranks[rank]
            error = MismatchError(
                f"paddlempi.paddle.DataParallel: the model of rank {world} is another than that "
                f"of rank {zero}: on rank {zero} {what[0]}, on rank {world} {what[1]}"
            )
            error.ranks = (world,)
            raise error


def _difference(first: list[_Signature], other: list[_Signature]) -> tuple[str, str] | None:
    """The first tensor that differs, as each of the two has it."""
    for a, b in zip(first, other, strict=False):
        if a != b:
            return _describe(a), _describe(b)
    if len(first) == len(other):
        return None
    longer = first if len(first) > len(other) else other
    extra = longer[min(len(first), len(other))]
    counts = [f"there are {len(tensors)} tensors" for tensors in (first, other)]
    counts[longer is other] += f", '{extra[0]}' among them"
    return counts[0], counts[1]


def _describe(signature: _Signature) -> str:
    name, shape, dtype = signature
    return f"'{name}' has shape {list(shape)} and dtype {dtype.removeprefix('paddle.')}"


def broadcast_all(
    tensors: Sequence[Any], group: ProcessGroup, owners: Sequence[int] | None = None
) -> None:
    """Give every member the tensors of their owners. Collective.

    Args:
        owners: for each tensor the rank in ``group`` whose value counts; None: the first one's.
    """
    works = [
        broadcast(tensor.detach(), group=group, group_src=owner, async_op=True)
        for tensor, owner in zip(tensors, owners or [0] * len(tensors), strict=True)
    ]
    for work in works:
        if work is not None:
            work.wait()


def has_value(buffer: Any) -> bool:
    """Whether a buffer is there, with memory: the LSTM of Paddle has one without."""
    return buffer is not None and bool(buffer._is_initialized())


class Buffers:
    """The buffers of a model, made equal after each synchronized backward.

    Those that travel as rank 0 has them are one message, whatever their dtypes.

    Args:
        model: its buffers with a true ``no_sync`` stay out.
        how: see :data:`Sync`.
        group: the reducer's.
    """

    def __init__(self, model: Any, how: Sync, group: ProcessGroup) -> None:
        # By name: a layer may give its buffer another tensor.
        places = [] if how == "local" else list(_places(model))
        averaged = [p for p in places if how == "average" and _floating(_at(p))]
        copied = [p for p in places if p not in averaged]
        self._group = group
        self._copied = copied
        self._averaged = [
            [p for p in averaged if _at(p).dtype == dtype]
            for dtype in sorted({_at(p).dtype for p in averaged}, key=str)
        ]
        self._bytes = np.zeros(sum(bytes_of(_at(place)) for place in copied), np.uint8)
        self._works: list[Work | None] = []

    def start(self) -> None:
        """Start what the group has to do."""
        group = self._group
        if self._bytes.size:
            if group.rank() == 0:
                self._move(out=True)
            self._works.append(broadcast(self._bytes, group=group, group_src=0, async_op=True))
        for places in self._averaged:
            tensors = [_at(place).detach() for place in places]
            self._works.append(
                all_reduce_coalesced(tensors, ReduceOp.AVG, group=group, async_op=True)
            )

    def finish(self) -> None:
        """Wait for it."""
        works, self._works = self._works, []
        for work in works:
            if work is not None:
                work.wait()
        if self._bytes.size and self._group.rank() != 0:
            self._move(out=False)

    def refuse(self) -> None:
        """Take the places of the collectives that this rank will not start."""
        self._works = []
        if self._bytes.size:
            refuse(Op.BROADCAST, self._group)
        refuse(Op.ALL_REDUCE_COALESCED, self._group, times=len(self._averaged))

    def _move(self, out: bool) -> None:
        """Copy the buffers to the bytes, or back."""
        at = self._bytes.ctypes.data
        for place in self._copied:
            tensor = _at(place)
            size = bytes_of(tensor)
            if out:
                ctypes.memmove(at, tensor.data_ptr(), size)
            else:
                ctypes.memmove(tensor.data_ptr(), at, size)
                tensor._bump_inplace_version()
            at += size


_Place = tuple[dict[str, Any], str]

_STATISTICS = ("_mean", "_variance")
"""What Paddle's BatchNorm updates; it keeps them as parameters that are not trained."""


def _places(model: Any) -> list[_Place]:
    found: dict[int, _Place] = {}
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, paddle.nn.BatchNorm1D.__base__):
            private.check_object(layer, _STATISTICS)
        places = [(layer._buffers, name) for name in layer._buffers]
        places += [(layer._parameters, name) for name in _STATISTICS if name in layer._parameters]
        for store, name in places:
            tensor = store[name]
            if not has_value(tensor) or getattr(tensor, "no_sync", False):
                continue
            if store is layer._buffers or tensor.stop_gradient:
                found.setdefault(id(tensor), (store, name))
    return list(found.values())


def _at(place: _Place) -> Any:
    store, name = place
    return store[name]


def _floating(tensor: Any) -> bool:
    return bool(tensor.is_floating_point())
