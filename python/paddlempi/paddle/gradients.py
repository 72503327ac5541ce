"""ZeRO's level 2: gradients are averaged over the ranks, and only their owners keep them."""

from __future__ import annotations

import math
import weakref
from array import array
from collections.abc import Sequence
from typing import Any

import paddle

from .. import collectives
from .._ops import Op
from ..errors import ArgumentError, UnsupportedError
from ..group import ProcessGroup
from ..reduce_op import ReduceOp
from . import autograd
from .buckets import allocate, bytes_of
from .reducer import is_averaged
from .refusal import refuse

__all__ = ["OwnedGradients"]


class OwnedGradients:
    """Reduces every gradient to its owner at the end of a backward; other ranks drop theirs.

    A gradient is divided by the number of ranks before Paddle accumulates it. So the gradients of
    earlier backwards, which an owner already has, are not divided again.

    Args:
        parameters: the same on every rank; of dtype float32 or float64.
        owners: for each parameter, the rank of ``group`` that owns it.
        bucket_size: bytes of gradients that travel together.

    Raises:
        ArgumentError: a DataParallel averages these gradients already.
        UnsupportedError: a parameter of another dtype.
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        owners: Sequence[int],
        group: ProcessGroup,
        bucket_size: int,
    ) -> None:
        self._parameters = parameters
        self._check_alone()
        for parameter in parameters:
            if parameter.dtype not in (paddle.float32, paddle.float64):
                raise UnsupportedError(
                    f"zero_opt_level=2: parameter '{parameter.name}' has dtype {parameter.dtype}: "
                    "level 2 reduces float32 and float64 gradients only: use level 1"
                )
        autograd.watch()
        self._group = group
        self._added = array("B", bytes(len(parameters)))  # 1: has a gradient of this backward
        self._listening = False
        self._failure: Exception | None = None
        self._buckets = _arrange(parameters, owners, bucket_size)
        reference = weakref.ref(self)
        for parameter in parameters:
            parameter.register_hook(_divide_by(group.size(), reference, parameter.name))
        autograd.on_gradients(parameters, self)

    def gradient_added(self, index: int) -> None:
        """Take note that Paddle has accumulated into the gradient of a parameter."""
        self._added[index] = 1
        if not self._listening:
            self._listening = True
            autograd.listen(self)

    def finish(self) -> None:
        """End a backward: reduce every gradient that some rank has to its owner."""
        failure, added = self._failure, self._stop_listening()
        if failure is not None:
            refuse(Op.ALL_REDUCE, self._group)
            raise failure
        self._check_alone()
        collectives.all_reduce(added, ReduceOp.MAX, group=self._group)
        started = []
        for owner, members in self._buckets:
            chosen = [index for index in members if added[index]]
            if not chosen:
                continue
            sizes = [math.prod(self._parameters[index].shape) for index in chosen]
            storage = allocate(sum(sizes), self._parameters[chosen[0]].dtype)
            views, start = [], 0
            for index, size in zip(chosen, sizes, strict=True):
                parameter = self._parameters[index]
                view = autograd.alias(storage[start : start + size], list(parameter.shape))
                start += size
                if parameter.grad is not None:
                    view.copy_(parameter.grad.detach(), True)
                views.append(view)
            work = collectives.reduce(storage, group=self._group, group_dst=owner, async_op=True)
            started.append((owner, chosen, views, work))
        for owner, chosen, views, work in started:
            if work is not None:
                work.wait()
            for index, view in zip(chosen, views, strict=True):
                parameter = self._parameters[index]
                parameter.clear_gradient(False)
                if owner == self._group.rank():
                    autograd.bind(parameter, view, list(parameter.shape))

    def abort(self) -> None:
        """End a backward that raised an exception; tell the other ranks, which then do not wait."""
        self._stop_listening()
        refuse(Op.ALL_REDUCE, self._group)

    def keep_error(self, error: Exception) -> None:
        """Keep an error until backward ends, because Paddle turns what a hook raises into another.

        Only the first one is kept.
        """
        self._failure = self._failure or error

    def _check_alone(self) -> None:
        if is_averaged(self._parameters):
            raise ArgumentError(
                "zero_opt_level=2 averages the gradients itself: "
                "do not wrap the model in DataParallel, or use level 1"
            )

    def _stop_listening(self) -> array[int]:
        """Prepare for the next backward. Return which parameters had gradients in this one."""
        self._failure = None
        added, self._added = self._added, array("B", bytes(len(self._parameters)))
        self._listening = False
        return added


def _divide_by(size: int, gradients: weakref.ref[OwnedGradients], name: str) -> Any:
    """Return a hook that divides a gradient by the number of ranks, and refuses a sparse one."""

    def divide(gradient: Any) -> Any:
        if not gradient.is_selected_rows():
            return gradient.scale(1.0 / size)
        target = gradients()
        if target is not None:
            target.keep_error(
                UnsupportedError(
                    f"zero_opt_level=2: the gradient of parameter '{name}' is sparse: use level 1"
                )
            )
        return None

    return divide


def _arrange(
    parameters: Sequence[Any], owners: Sequence[int], bucket_size: int
) -> list[tuple[int, list[int]]]:
    """Divide the parameters into buckets of one owner and one dtype each.

    Returns:
        For each bucket its owner and the indices of its parameters.
    """
    buckets: list[tuple[int, list[int]]] = []
    filling: dict[tuple[int, Any], tuple[list[int], int]] = {}
    for index, (parameter, owner) in enumerate(zip(parameters, owners, strict=True)):
        key = owner, parameter.dtype
        members, left = filling.get(key, ([], 0))
        if left <= 0:
            members, left = [], bucket_size
            buckets.append((owner, members))
        members.append(index)
        filling[key] = members, left - bytes_of(parameter)
    return buckets
