"""``ps.DistributedOptimizer`` for torch: one step of all trainers, dense and sparse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import ps
from ..collectives import all_reduce_coalesced, broadcast
from ..errors import ArgumentError, UnsupportedError
from ..group import ProcessGroup
from ..reduce_op import ReduceOp

__all__ = ["DistributedOptimizer"]


class DistributedOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """An optimizer whose step is one step of all trainers.

    ``step`` pushes the gradients of all layers of ``paddlempi.ps`` in one request, averages the
    dense gradients over the trainers, and has the wrapped optimizer update the dense parameters.
    So all trainers call it equally often.

    Args:
        optimizer: the optimizer of the dense parameters. An optimizer that calls its closure
            several times (LBFGS) cannot be wrapped.
        dense: how trainers keep their dense parameters the same. "all_reduce": their gradients are
            averaged in ``step``, and at the beginning all trainers get the parameters of the first.
            "local": this object does neither, such as with DistributedDataParallel.
        average: for the rows on servers; see :func:`paddlempi.ps.step`.

    Raises:
        NotInitializedError: before :func:`paddlempi.ps.init`.
        ArgumentError: this rank does not train, or ``dense`` is another word.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        dense: str = "all_reduce",
        average: bool = True,
    ) -> None:
        if dense not in ("all_reduce", "local"):
            raise ArgumentError(
                f"ps.DistributedOptimizer: dense={dense!r} is neither 'all_reduce' nor 'local'"
            )
        if not ps.is_trainer():
            raise ArgumentError("ps.DistributedOptimizer: this rank is a pserver; it has no steps")
        # Not the constructor of Optimizer: the parameters, states and hooks are the wrapped one's.
        self.optim = optimizer
        self._average = average
        self._group = ps.trainer_group() if dense == "all_reduce" else None
        if self._group is not None and self._group.size() > 1:
            first = ps.trainers()[0]
            for parameter in self._parameters():
                broadcast(parameter.detach(), src=first, group=self._group)

    @property
    def param_groups(self) -> Any:
        """The groups of the wrapped optimizer, for learning-rate schedulers."""
        return self.optim.param_groups

    @property
    def state(self) -> Any:
        """The state of the wrapped optimizer."""
        return self.optim.state

    @property
    def defaults(self) -> Any:
        """The defaults of the wrapped optimizer."""
        return self.optim.defaults

    def _parameters(self) -> list[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step of all trainers.

        Args:
            closure: computes the loss and its gradients first. None: they are there.

        Returns:
            What the closure returned.

        Raises:
            UnsupportedError: a dense parameter has a sparse gradient.
            Error: as :func:`paddlempi.ps.push` and :func:`paddlempi.all_reduce_coalesced`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        ps.step(average=self._average)
        if self._group is not None and self._group.size() > 1:
            _average(self._parameters(), self._group)
        self.optim.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients: of the dense parameters, and those that layers have noted."""
        ps.discard()
        self.optim.zero_grad(set_to_none)

    def state_dict(self) -> Any:
        """Return the state of the wrapped optimizer. That of the rows is in ``ps.save``."""
        return self.optim.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self.optim.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the wrapped optimizer. Its parameters must be the same on all trainers."""
        self.optim.add_param_group(param_group)

    def __getattr__(self, name: str) -> Any:
        if name == "optim":  # not made yet
            raise AttributeError(name)
        return getattr(self.optim, name)

    def __getstate__(self) -> dict[str, Any]:
        raise UnsupportedError("DistributedOptimizer: it cannot be copied: use its state_dict()")

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optim!r})"


def _average(parameters: list[torch.Tensor], group: ProcessGroup) -> None:
    """Average the gradients over the trainers. A parameter that no trainer has used keeps none."""
    device = parameters[0].device if parameters else torch.device("cpu")
    used = torch.tensor([p.grad is not None for p in parameters], dtype=torch.float32)
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {torch.float32: [used.to(device)]}
    gradients = []
    for parameter in parameters:
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if gradient.layout is not torch.strided:
            raise UnsupportedError(
                "ps.DistributedOptimizer: a dense parameter has a sparse gradient: use ps.Embedding"
            )
        gradients.append(gradient)
        by_dtype.setdefault(gradient.dtype, []).append(gradient)
    for tensors in by_dtype.values():
        all_reduce_coalesced(tensors, ReduceOp.AVG, group)
    anywhere = by_dtype[torch.float32][0].tolist()
    for parameter, gradient, share in zip(parameters, gradients, anywhere, strict=True):
        if share and parameter.grad is None:
            parameter.grad = gradient
