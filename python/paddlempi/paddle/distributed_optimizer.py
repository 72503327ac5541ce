"""``ps.DistributedOptimizer`` for Paddle: one step of all trainers, dense and sparse."""

from __future__ import annotations

from typing import Any

import paddle

from .. import ps
from ..collectives import all_reduce_coalesced, broadcast
from ..errors import ArgumentError, UnsupportedError
from ..group import ProcessGroup
from ..reduce_op import ReduceOp
from .parameters import parameters_of

__all__ = ["DistributedOptimizer"]


class DistributedOptimizer:
    """An optimizer whose step is one step of all trainers.

    ``step`` pushes the gradients of all layers of ``paddlempi.ps`` in one request, averages the
    dense gradients over the trainers, and has the wrapped optimizer update the dense parameters.
    So all trainers call it equally often. What it does not have is the wrapped optimizer's
    (``get_lr``, ``set_lr``, ``state_dict``, ``set_state_dict``).

    Args:
        optimizer: the optimizer of the dense parameters.
        dense: how trainers keep their dense parameters the same. "all_reduce": their gradients are
            averaged in ``step``, and at the beginning all trainers get the parameters of the first.
            "local": this object does neither, such as with ``paddle.DataParallel``.
        average: for the rows on servers; see :func:`paddlempi.ps.step`.

    Raises:
        NotInitializedError: before :func:`paddlempi.ps.init`.
        ArgumentError: this rank does not train, or ``dense`` is another word.
    """

    def __init__(self, optimizer: Any, *, dense: str = "all_reduce", average: bool = True) -> None:
        if dense not in ("all_reduce", "local"):
            raise ArgumentError(
                f"ps.DistributedOptimizer: dense={dense!r} is neither 'all_reduce' nor 'local'"
            )
        if not ps.is_trainer():
            raise ArgumentError("ps.DistributedOptimizer: this rank is a pserver; it has no steps")
        self.optim = optimizer
        self._average = average
        self._group = ps.trainer_group() if dense == "all_reduce" else None
        if self._group is not None and self._group.size() > 1:
            first = ps.trainers()[0]
            for parameter in self._parameters():
                broadcast(parameter, src=first, group=self._group)

    def _parameters(self) -> list[Any]:
        return [p for p in parameters_of(self.optim) if not p.stop_gradient]

    def step(self) -> None:
        """Take one step of all trainers. The gradients are there.

        Raises:
            UnsupportedError: a dense parameter has a sparse gradient.
            Error: as :func:`paddlempi.ps.push` and :func:`paddlempi.all_reduce_coalesced`.
        """
        ps.step(average=self._average)
        if self._group is not None and self._group.size() > 1:
            _average(self._parameters(), self._group)
        self.optim.step()

    def minimize(self, loss: Any, *arguments: Any, **named: Any) -> tuple[None, list[Any]]:
        """Take one step, as Paddle's ``minimize`` does in dynamic mode: after ``loss.backward()``.

        Returns:
            None, and the pairs of parameters and gradients.
        """
        self.step()
        return None, [(p, p.grad) for p in self._parameters() if p.grad is not None]

    def clear_grad(self, set_to_zero: bool = True) -> None:
        """Drop the gradients: of the dense parameters, and those that layers have noted."""
        ps.discard()
        self.optim.clear_grad(set_to_zero)

    clear_gradients = clear_grad

    def __getattr__(self, name: str) -> Any:
        if name == "optim":  # not made yet
            raise AttributeError(name)
        return getattr(self.optim, name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optim!r})"


def _average(parameters: list[Any], group: ProcessGroup) -> None:
    """Average the gradients over the trainers. A parameter that no trainer has used keeps none."""
    used = paddle.to_tensor([float(p.grad is not None) for p in parameters], "float32")
    by_dtype: dict[Any, list[Any]] = {paddle.float32: [used]}
    gradients = []
    for parameter in parameters:
        gradient = paddle.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if gradient.is_selected_rows():
            raise UnsupportedError(
                "ps.DistributedOptimizer: a dense parameter has a sparse gradient: use "
                "ps.SparseEmbedding"
            )
        gradients.append(gradient)
        by_dtype.setdefault(gradient.dtype, []).append(gradient)
    for tensors in by_dtype.values():
        all_reduce_coalesced(tensors, ReduceOp.AVG, group)
    for parameter, gradient, share in zip(parameters, gradients, used.tolist(), strict=True):
        if share and parameter.grad is None:
            parameter.grad = gradient
