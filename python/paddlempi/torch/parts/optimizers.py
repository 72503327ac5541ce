"""The parts of what changes a model: optimizers, schedulers of the learning rate, GradScaler."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ...elasticity.sharing import told
from ...errors import ArgumentError, UnsupportedError
from .sharing import shared

__all__ = ["Optimizer", "Scaler", "Scheduler", "Steps", "hyperparameters", "is_zero"]


def is_zero(optimizer: Any) -> bool:
    """Whether it is torch's ZeroRedundancyOptimizer. By name: the import takes seconds."""
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__)


class Steps:
    """The steps that an optimizer makes, and its hyperparameters."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._begun = self._ended = 0
        self._usual = 1
        self._taken = False  # a rank's state, or a part of it, since the step began
        self._kept: list[dict[str, Any]] = []
        optimizer.register_step_pre_hook(self._begins)
        optimizer.register_step_post_hook(self._ends)

    def _begins(self, *_: Any) -> None:
        self._begun += 1

    def _ends(self, *_: Any) -> None:
        self._ended += 1

    def before(self) -> None:
        """Keep the hyperparameters, which a scheduler changes."""
        self._usual = self._ended or self._usual
        self._begun = self._ended = 0
        self._taken = False
        self._kept = [hyperparameters(of) for of in self._optimizer.param_groups]

    def back(self) -> None:
        """Give the hyperparameters back."""
        for group, kept in zip(self._optimizer.param_groups, self._kept, strict=False):
            group.update(kept)
        self._begun = self._ended = 0

    def whole(self) -> bool:
        """False once it has begun to step, or to share: :meth:`back` cannot undo that."""
        return self._begun == 0 and not self._taken

    def made(self) -> bool:
        """Whether the optimizer has stepped, as often as in the step of the job before.

        Then the step of the job counts, whatever its block had still to do: a program that averages
        the loss after the optimizer's step must not make that step twice.
        """
        return self._begun == self._ended >= self._usual


class Optimizer(Steps):
    """An optimizer of which every rank has the whole state.

    Raises:
        UnsupportedError: its state is divided among the ranks.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if is_zero(optimizer):
            raise UnsupportedError(
                "attach: a ZeroRedundancyOptimizer divides its state among the ranks: attach "
                "paddlempi.torch.Sharded(build) instead of the model and its optimizer"
            )
        super().__init__(optimizer)

    def reformed(self, job: Any) -> None:
        """Do nothing: it knows no group."""

    def share(self, root: int) -> None:
        """Take the root's state and hyperparameters."""
        optimizer = self._optimizer
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        number_of = {id(p): number for number, p in enumerate(parameters)}
        mine = {number_of.get(id(key), key): of for key, of in optimizer.state.items()}
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        roots = told(sizes, root)
        if sizes != roots:
            raise ArgumentError(
                f"elastic: this optimizer has groups of {sizes} parameters, that of rank {root} "
                f"of {roots}: every process must make the same optimizer, a replacement too"
            )
        hyper = [hyperparameters(group) for group in optimizer.param_groups]
        self._taken = True
        state, hyper = shared((mine, hyper), root)
        for group, of_root in zip(optimizer.param_groups, hyper, strict=True):
            group.update(of_root)
        optimizer.state.clear()
        for key, of in state.items():
            optimizer.state[parameters[key] if isinstance(key, int) else key] = of
        self._begun = self._ended = 0


def hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)
        for name, value in group.items()
        if name != "params"
    }


class _Stated:
    """What has a small state dict: kept whole at the beginning of every step."""

    def __init__(self, of: Any) -> None:
        self._of = of
        self._kept: Any = None

    def state(self) -> Any:
        """Return the state."""
        return copy.deepcopy(self._of.state_dict())

    def load(self, state: Any) -> None:
        """Take a state."""
        self._of.load_state_dict(copy.deepcopy(state))

    def before(self) -> None:
        """Keep the state."""
        self._kept = self.state()

    def back(self) -> None:
        """Give the state back."""
        self.load(self._kept)

    def whole(self) -> bool:
        """Whether the state is not torn."""
        return True

    def reformed(self, job: Any) -> None:
        """Do nothing: it knows no group."""

    def share(self, root: int) -> None:
        """Take the root's state."""
        self.load(told(self._of.state_dict(), root))


class Scheduler(_Stated):
    """A scheduler of the learning rate."""


class Scaler(_Stated):
    """A ``torch.amp.GradScaler``."""

    def load(self, state: Any) -> None:
        """Take a state, and forget which gradients were unscaled in a lost step."""
        super().load(state)
        # Between unscale_() and update() it would refuse the next unscale_().
        self._of._per_optimizer_states.clear()
