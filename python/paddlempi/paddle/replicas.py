"""What is equal on all ranks besides gradients: parameters at the start, buffers at every step."""

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

__all__ = [
    "Buffers",
    "Sync",
    "broadcast_all",
    "check_same",
    "find_buffers",
    "has_value",
    "tensor_at",
]

Sync = Literal["broadcast", "average", "local"]
"""How buffers are made equal at the end of a backward.

``"broadcast"``: all ranks get rank 0's. ``"average"``: those of floating dtypes become the mean,
all ranks get rank 0's others. ``"local"``: they are not made equal.
"""

_Signature = tuple[str, tuple[int, ...], str]
"""Name, shape and dtype of a tensor."""


def check_same(named: Sequence[tuple[str, Any]], options: object, group: ProcessGroup) -> None:
    """Compare a model with those of the other ranks. Collective.

    Args:
        named: names and tensors, in the model's order.
        options: what else must be equal; its ``repr`` is compared.

    Raises:
        MismatchError: on every rank, if a rank differs from the group's first rank in the number,
            names, shapes or dtypes of the tensors, or in the options. ``ranks`` has the first such
            rank.
    """
    local = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in named]
    gathered: list[tuple[list[_Signature], str]] = [([], "")] * group.size()
    all_gather_object(gathered, (local, repr(options)), group)
    first, first_options = gathered[0]
    for rank, (other, other_options) in enumerate(gathered):
        what = _difference(first, other)
        if what is None and other_options != first_options:
            what = f"the options are {first_options}", other_options
        if what is not None:
            zero, world = group._ranks[0], group._ranks[rank]
            error = MismatchError(
                f"paddlempi.paddle.DataParallel: the model of rank {world} differs from that "
                f"of rank {zero}: on rank {zero} {what[0]}, on rank {world} {what[1]}"
            )
            error.ranks = (world,)
            raise error


def _difference(first: list[_Signature], other: list[_Signature]) -> tuple[str, str] | None:
    """Describe the first tensor that differs, in the one list and in the other."""
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
    """Give every member the values that the owners have of some tensors. Collective.

    Args:
        tensors: the same on every rank in number, shapes and dtypes.
        owners: for each tensor, the rank of ``group`` that owns it. None: rank 0 owns all.
    """
    works = [
        broadcast(tensor.detach(), group=group, group_src=owner, async_op=True)
        for tensor, owner in zip(tensors, owners or [0] * len(tensors), strict=True)
    ]
    for work in works:
        if work is not None:
            work.wait()


def has_value(buffer: Any) -> bool:
    """Return whether a buffer exists and has memory. Paddle's LSTM has one without memory."""
    return buffer is not None and bool(buffer._is_initialized())


class Buffers:
    """The buffers of a model, made equal after each synchronized backward.

    The buffers that rank 0 broadcasts are one message, whatever their dtypes.

    Args:
        model: its buffers whose attribute ``no_sync`` is true are left as they are.
        how: see :data:`Sync`.
        group: a group of the reducer.
    """

    def __init__(self, model: Any, how: Sync, group: ProcessGroup) -> None:
        # Kept by name, because a layer may replace the tensor of a buffer.
        buffers = [] if how == "local" else list(find_buffers(model))
        averaged = [b for b in buffers if how == "average" and _floating(tensor_at(b))]
        copied = [b for b in buffers if b not in averaged]
        self._group = group
        self._copied = copied
        self._averaged = [
            [b for b in averaged if tensor_at(b).dtype == dtype]
            for dtype in sorted({tensor_at(b).dtype for b in averaged}, key=str)
        ]
        self._bytes = np.zeros(sum(bytes_of(tensor_at(b)) for b in copied), np.uint8)
        self._works: list[Work | None] = []

    def start(self) -> None:
        """Start the collectives that make the buffers equal."""
        group = self._group
        if self._bytes.size:
            if group.rank() == 0:
                self._move(out=True)
            self._works.append(broadcast(self._bytes, group=group, group_src=0, async_op=True))
        for buffers in self._averaged:
            tensors = [tensor_at(buffer).detach() for buffer in buffers]
            self._works.append(
                all_reduce_coalesced(tensors, ReduceOp.AVG, group=group, async_op=True)
            )

    def finish(self) -> None:
        """Wait for these collectives, and write rank 0's values into the buffers."""
        works, self._works = self._works, []
        for work in works:
            if work is not None:
                work.wait()
        if self._bytes.size and self._group.rank() != 0:
            self._move(out=False)

    def refuse(self) -> None:
        """Refuse the collectives that this rank will not start."""
        self._works = []
        if self._bytes.size:
            refuse(Op.BROADCAST, self._group)
        refuse(Op.ALL_REDUCE_COALESCED, self._group, times=len(self._averaged))

    def _move(self, out: bool) -> None:
        """Copy the buffers to the bytes (``out``), or back."""
        at = self._bytes.ctypes.data
        for buffer in self._copied:
            tensor = tensor_at(buffer)
            size = bytes_of(tensor)
            if out:
                ctypes.memmove(at, tensor.data_ptr(), size)
            else:
                ctypes.memmove(tensor.data_ptr(), at, size)
                tensor._bump_inplace_version()
            at += size


_Location = tuple[dict[str, Any], str]
"""Where a buffer is: a dictionary of a layer, and a key of it."""

_STATISTICS = ("_mean", "_variance")
"""The statistics of Paddle's BatchNorm. It keeps them as parameters that are not trained."""


def find_buffers(model: Any) -> list[_Location]:
    """Return where the buffers of a model are, and the statistics of its BatchNorms."""
    found: dict[int, _Location] = {}
    for layer in model.sublayers(include_self=True):
        if isinstance(layer, paddle.nn.BatchNorm1D.__base__):
            private.check_object(layer, _STATISTICS)
        locations = [(layer._buffers, name) for name in layer._buffers]
        locations += [
            (layer._parameters, name) for name in _STATISTICS if name in layer._parameters
        ]
        for store, name in locations:
            tensor = store[name]
            if not has_value(tensor) or getattr(tensor, "no_sync", False):
                continue
            if store is layer._buffers or tensor.stop_gradient:
                found.setdefault(id(tensor), (store, name))
    return list(found.values())


def tensor_at(location: _Location) -> Any:
    """Return the tensor that is there now."""
    store, name = location
    return store[name]


def _floating(tensor: Any) -> bool:
    return bool(tensor.is_floating_point())
