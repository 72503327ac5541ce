"""An optimizer for the parameters that a model has after it was cut."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ...errors import ArgumentError, DtypeError

__all__ = ["Recipe", "recipe"]


class Recipe(NamedTuple):
    """What an optimizer is made of: the names of its parameters instead of the parameters."""

    kind: type[torch.optim.Optimizer]
    defaults: dict[str, Any]
    groups: tuple[tuple[dict[str, Any], tuple[str, ...]], ...]

    def build(
        self, parameters: Mapping[str, nn.Parameter], one_by_one: bool = False
    ) -> torch.optim.Optimizer:
        """Make the optimizer anew. Groups keep their numbers, also if none of theirs is here.

        Args:
            one_by_one: update no parameters together: torch cannot where some of them are cut over
                ranks and others whole.
        """
        accepted = inspect.signature(self.kind.__init__).parameters
        defaults = {key: value for key, value in self.defaults.items() if key in accepted}
        groups = []
        for options, names in self.groups:
            here: list[Any] = [(name, parameters[name]) for name in names if name in parameters]
            if "param_names" not in options:
                here = [parameter for _, parameter in here]
            groups.append({k: v for k, v in options.items() if k != "param_names"})
            groups[-1]["params"] = here
        if one_by_one:
            for settings in (defaults, *groups):
                settings |= {key: False for key in ("foreach", "fused") if key in settings}
        return self.kind(groups, **defaults)

    def text(self) -> str:
        """Return what must be the same on all ranks."""
        return f"{self.kind.__name__} {self.defaults} {self.groups}"


def recipe(optimizer: Any, model: nn.Module) -> Recipe:
    """Return how an optimizer of a model's parameters is made.

    Raises:
        DtypeError: it is no optimizer of torch.
        ArgumentError: it has made a step, or a scheduler, or needs a closure, or has parameters
            that are not the model's.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise DtypeError(
            f"apply: optimizer={type(optimizer).__name__}: it must be a torch.optim.Optimizer"
        )
    kind = type(optimizer)
    if len(optimizer.state):
        raise ArgumentError(
            f"apply: optimizer={kind.__name__} has states of {len(optimizer.state)} parameters: "
            "apply a plan before the first step"
        )
    # A scheduler puts itself before the step of its optimizer.
    if "step" in vars(optimizer):
        raise ArgumentError(
            f"apply: optimizer={kind.__name__} has a scheduler, which would go on changing this "
            "optimizer and not the new one: make the scheduler of step.optimizer after apply"
        )
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ArgumentError(
            f"apply: optimizer={kind.__name__} needs a closure that computes the loss again, "
            "which a step of a plan cannot: use another optimizer"
        )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        found = []
        for place, parameter in enumerate(group["params"]):
            if id(parameter) not in names:
                raise ArgumentError(
                    f"apply: parameter {place} of group {number} of the optimizer, of shape "
                    f"{tuple(parameter.shape)}, is not the model's: make the optimizer of "
                    "model.parameters() after the model is complete"
                )
            found.append(names[id(parameter)])
        options = {key: value for key, value in group.items() if key != "params"}
        groups.append((options, tuple(found)))
    return Recipe(kind, dict(optimizer.defaults), tuple(groups))
