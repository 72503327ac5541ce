"""``ps.DistributedOptimizer`` for torch: one step of all trainers, dense and sparse."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .. import ps
from ..errors import DtypeError, UnsupportedError
from ..ps.distributed import CommonOptimizer, Vector

__all__ = ["DistributedOptimizer", "for_servers", "read", "write"]


class DistributedOptimizer(CommonOptimizer, torch.optim.Optimizer):  # type: ignore[misc]
    """An optimizer whose step is one step of all trainers.

    ``step`` pushes the gradients of all layers of ``paddlempi.ps`` in one request, averages the
    dense gradients over the trainers, and has the wrapped optimizer update the dense parameters.
    So all trainers call it equally often. Of several such optimizers in a program, each pushes what
    all layers have noted.

    Args:
        optimizer: the optimizer of the dense parameters. An optimizer that calls its closure
            several times (LBFGS) cannot be wrapped.
        dense: how trainers keep their dense parameters the same.

            * "all_reduce": their gradients are averaged in ``step``, and at the beginning all
              trainers get the parameters of the first.
            * "server": they lie on the servers too, in float32, which update them: in sync mode as
              the wrapped optimizer would, in async mode without waiting for other trainers. The
              wrapped optimizer gives its kind, its numbers and the learning rates of its schedule.
              All trainers begin with the parameters of the first.
            * "local": this object does nothing of all this, such as with DistributedDataParallel.
        average: for what lies on servers; see :func:`paddlempi.ps.step`.
        name: with "server", how the names of the tables begin. No other such optimizer of the
            parameter server has it.
        placement: with "server", how their blocks of 8192 elements are dealt to the servers:
            "round_robin", in turn over all such optimizers of the program, which all trainers make
            in the same order; or "hash_name", by a hash of the table's name and the block's number.

    Raises:
        NotInitializedError: before :func:`paddlempi.ps.init`.
        ArgumentError: this rank does not train, ``dense`` or ``placement`` is another word,
            ``name`` is taken, or ``optimizer`` is a DistributedOptimizer.
        DtypeError: ``optimizer`` is none of torch.
        UnsupportedError: ``optimizer`` is LBFGS; with "server", servers do not have it.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        dense: str = "all_reduce",
        average: bool = True,
        name: str = "dense",
        placement: str = "round_robin",
    ) -> None:
        if not hasattr(optimizer, "param_groups"):
            raise DtypeError(
                f"ps.DistributedOptimizer: a {type(optimizer).__qualname__} is no optimizer of "
                "torch"
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UnsupportedError("ps.DistributedOptimizer: LBFGS calls its closure several times")
        # Not the constructor of Optimizer: the parameters, states and hooks are the wrapped one's.
        self._attach(optimizer, dense, average, name, placement)

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

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # torch.amp.GradScaler reads it, before a step.
        raise UnsupportedError(
            "DistributedOptimizer: a GradScaler does not see the gradients of rows, which would "
            "stay scaled, and may skip the step of one trainer: train in bfloat16, without one"
        )

    def _all_parameters(self) -> list[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _parameters(self) -> list[torch.Tensor]:
        return [p for group in self.param_groups for p in _trained(group)]

    def _vectors(self, name: str, placement: str) -> list[Vector]:
        return [
            Vector(
                f"{name}.{number}",
                _trained(group),
                partial(for_servers, self.optim, group),
                placement,
                read,
                write,
            )
            for number, group in enumerate(self.param_groups)
            if sum(p.numel() for p in _trained(group))
        ]

    @staticmethod
    def _detached(parameter: torch.Tensor) -> torch.Tensor:
        return parameter.detach()

    @staticmethod
    def _is_sparse(gradient: torch.Tensor) -> bool:
        return gradient.layout is not torch.strided

    @staticmethod
    def _zeros_like(parameter: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(parameter)

    @staticmethod
    def _flags(values: list[float], parameters: list[torch.Tensor]) -> torch.Tensor:
        device = parameters[0].device if parameters else torch.device("cpu")
        return torch.tensor(values, dtype=torch.float32).to(device)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step of all trainers.

        Args:
            closure: computes the loss and its gradients first. None: they are there.

        Returns:
            What the closure returned.

        Raises:
            UnsupportedError: a dense parameter has a sparse gradient; with "server", anything but
                the learning rate has changed.
            RefusedError: in sync mode, another trainer raised such an error; ``ranks`` has it.
            Error: as :func:`paddlempi.ps.push` and :func:`paddlempi.all_reduce_coalesced`.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step_of_all()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients: of the dense parameters, and those that layers have noted."""
        ps.discard()
        self.optim.zero_grad(set_to_none)

    def state_dict(self) -> Any:
        """Return the state of the wrapped optimizer. What lies on servers is in ``ps.save``."""
        return self.optim.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self.optim.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the wrapped optimizer. Its parameters must be the same on all trainers.

        Raises:
            UnsupportedError: with ``dense="server"``.
        """
        if self._on_servers:
            raise UnsupportedError("DistributedOptimizer: with dense='server' groups cannot grow")
        self.optim.add_param_group(param_group)

    def register_step_pre_hook(self, hook: Any) -> Any:
        """Have the wrapped optimizer call a hook in each step, after gradients were averaged.

        Raises:
            UnsupportedError: with ``dense="server"``, where it takes no steps.
        """
        return self._hooked().register_step_pre_hook(hook)

    def register_step_post_hook(self, hook: Any) -> Any:
        """Have the wrapped optimizer call a hook after each step; else as the pre-hook."""
        return self._hooked().register_step_post_hook(hook)

    def _hooked(self) -> Any:
        if self._on_servers:
            raise UnsupportedError("DistributedOptimizer: with dense='server' no hook is called")
        return self.optim

    def __getstate__(self) -> dict[str, Any]:
        raise UnsupportedError("DistributedOptimizer: it cannot be copied: use its state_dict()")


def _trained(group: dict[str, Any]) -> list[torch.Tensor]:
    return [p for p in group["params"] if p.requires_grad]


def read(tensor: torch.Tensor) -> Any:
    """Return a parameter or a gradient as an array of float32, [elements]."""
    return tensor.detach().reshape(-1).to("cpu", torch.float32).numpy()


def write(parameter: torch.Tensor, values: Any) -> None:
    """Set a parameter to an array of float32, [elements]."""
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(values).view_as(parameter))


_PLAIN = {"dampening": 0, "maximize": False, "amsgrad": False, "lr_decay": 0}
"""Numbers of torch's optimizers that servers know with these values only."""


def for_servers(optimizer: Any, group: dict[str, Any]) -> ps.Optimizer:
    """Return what servers have for a group of an optimizer of torch.

    Raises:
        UnsupportedError: they do not have it.
    """
    kind = type(optimizer)
    if kind not in (torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW):
        raise UnsupportedError(
            f"ps.DistributedOptimizer: servers have no {kind.__name__}: they have SGD, Adagrad, "
            "Adam and AdamW; or take dense='all_reduce'"
        )
    if any(p.is_complex() for p in group["params"]):
        raise UnsupportedError("ps.DistributedOptimizer: servers have no complex parameters")
    odd = {key: group[key] for key, plain in _PLAIN.items() if group.get(key, plain) != plain}
    if odd:
        raise UnsupportedError(f"ps.DistributedOptimizer: servers have no optimizer with {odd}")
    common = {"learning_rate": float(group["lr"]), "weight_decay": group["weight_decay"]}
    if kind is torch.optim.SGD and not group["momentum"]:
        return ps.SGD(**common)
    if kind is torch.optim.SGD:
        return ps.Momentum(**common, momentum=group["momentum"], nesterov=group["nesterov"])
    if kind is torch.optim.Adagrad:
        start = group["initial_accumulator_value"]
        return ps.Adagrad(**common, epsilon=group["eps"], initial_accumulator=start)
    decoupled = kind is torch.optim.AdamW or group.get("decoupled_weight_decay")
    make = ps.AdamW if decoupled else ps.Adam
    beta1, beta2 = group["betas"]
    return make(**common, beta1=beta1, beta2=beta2, epsilon=group["eps"])
