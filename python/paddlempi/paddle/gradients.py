"""Gradients that only their owners keep, averaged over the ranks: ZeRO's level 2."""

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
from .reducer import averaged
from .refusal import refuse

__all__ = ["OwnedGradients"]


class OwnedGradients:
    """Reduces gradients to their owners at the end of each backward; the others drop theirs.

    Each gradient is divided by the number of ranks before Paddle accumulates it, so that what
    an owner has from earlier backwards is not divided again.

    Args:
        parameters: the same on every rank; of dtype float32 or float64.
        owners: a rank of ``group`` for each.
        bucket_size: bytes that travel together.

    Raises:
        ArgumentError: a DataParallel averages them already.
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
                    "its gradients are shared by level 1 only"
                )
        autograd.watch()
        self._group = group
        self._came = array("B", bytes(len(parameters)))
        self._joined = False
        self._failure: Exception | None = None
        self._lots = _lots(parameters, owners, bucket_size)
        me = weakref.ref(self)
        for parameter in parameters:
            parameter.register_hook(_divided_by(group.size(), me, parameter.name))
        autograd.on_gradients(parameters, self)

    def came(self, index: int) -> None:
        """Paddle has accumulated into the gradient of a parameter."""
        self._came[index] = 1
        if not self._joined:
            self._joined = True
            autograd.join(self)

    def finish(self) -> None:
        """Backward has ended: each gradient that some rank has goes to its owner."""
        failure, came = self._failure, self._leave()
        if failure is not None:
            refuse(Op.ALL_REDUCE, self._group)
            raise failure
        self._check_alone()
        collectives.all_reduce(came, ReduceOp.MAX, group=self._group)
        under_way = []
        for owner, members in self._lots:
            chosen = [index for index in members if came[index]]
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
            under_way.append((owner, chosen, views, work))
        for owner, chosen, views, work in under_way:
            if work is not None:
                work.wait()
            for index, view in zip(chosen, views, strict=True):
                parameter = self._parameters[index]
                parameter.clear_gradient(False)
                if owner == self._group.rank():
                    autograd.bind(parameter, view, list(parameter.shape))

    def abort(self) -> None:
        """Backward ended with an exception: tell the others not to wait for this rank."""
        self._leave()
        refuse(Op.ALL_REDUCE, self._group)

    def fail(self, error: Exception) -> None:
        """Remember what went wrong: out of a hook it would reach the user as another exception."""
        self._failure = self._failure or error

    def _check_alone(self) -> None:
        if averaged(self._parameters):
            raise ArgumentError(
                "zero_opt_level=2 averages the gradients to their owners by itself: "
                "do not wrap the model in DataParallel, or use level 1"
            )

    def _leave(self) -> array[int]:
        self._failure = None
        came, self._came = self._came, array("B", bytes(len(self._parameters)))
        self._joined = False
        return came


def _divided_by(size: int, gradients: weakref.ref[OwnedGradients], name: str) -> Any:
    def divide(gradient: Any) -> Any:
        if not gradient.is_selected_rows():
            return gradient.scale(1.0 / size)
        target = gradients()
        if target is not None:
            target.fail(
                UnsupportedError(
                    f"zero_opt_level=2: the gradient of parameter '{name}' is sparse: use level 1"
                )
            )
        return None

    return divide


def _lots(
    parameters: Sequence[Any], owners: Sequence[int], bucket_size: int
) -> list[tuple[int, list[int]]]:
    """Owners with the parameters whose gradients travel to them together, of one dtype."""
    lots: list[tuple[int, list[int]]] = []
    filling: dict[tuple[int, Any], tuple[list[int], int]] = {}
    for index, (parameter, owner) in enumerate(zip(parameters, owners, strict=True)):
        key = owner, parameter.dtype
        members, left = filling.get(key, ([], 0))
        if left <= 0:
            members, left = [], bucket_size
            lots.append((owner, members))
        members.append(index)
        filling[key] = members, left - bytes_of(parameter)
    return lots
