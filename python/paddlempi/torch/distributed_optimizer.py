"""``ps.DistributedOptimizer`` for torch: one step of all trainers, dense and sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import ps
from ..collectives import all_reduce_coalesced, broadcast
from ..errors import ArgumentError, UnsupportedError
from ..group import ProcessGroup
from ..ps.dense import Blocks, spread
from ..reduce_op import ReduceOp

__all__ = ["DistributedOptimizer"]

_SPARSE = "ps.DistributedOptimizer: a dense parameter has a sparse gradient: use ps.Embedding"


class DistributedOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
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
        name: with "server", how the names of the tables begin.
        placement: with "server", how their blocks of 8192 elements are dealt to the servers:
            "round_robin", in turn over all such optimizers of the program, which all trainers make
            in the same order; or "hash_name", by a hash of the table's name and the block's number.

    Raises:
        NotInitializedError: before :func:`paddlempi.ps.init`.
        ArgumentError: this rank does not train, or ``dense`` or ``placement`` is another word.
        UnsupportedError: with "server", servers do not have the wrapped optimizer.
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
        if dense not in ("all_reduce", "server", "local"):
            raise ArgumentError(
                f"ps.DistributedOptimizer: dense={dense!r} is none of 'all_reduce', 'server' and "
                "'local'"
            )
        if not ps.is_trainer():
            raise ArgumentError("ps.DistributedOptimizer: this rank is a pserver; it has no steps")
        # Not the constructor of Optimizer: the parameters, states and hooks are the wrapped one's.
        self.optim = optimizer
        self._average = average
        self._group = ps.trainer_group() if dense == "all_reduce" else None
        self._on_servers: list[_OnServers] = []
        if dense == "server":
            self._on_servers = [
                _OnServers(f"{name}.{number}", group, optimizer, placement)
                for number, group in enumerate(optimizer.param_groups)
            ]
            spread([part.blocks for part in self._on_servers])
            self.refresh()
        elif self._group is not None and self._group.size() > 1:
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
        for part in self._on_servers:
            part.note()
        ps.step(average=self._average)
        if self._on_servers:
            self.refresh()
            return loss
        if self._group is not None and self._group.size() > 1:
            _average(self._parameters(), self._group)
        self.optim.step()
        return loss

    def refresh(self) -> None:
        """With ``dense="server"``, set the parameters to those on the servers.

        ``step`` does so. A program does it after ``ps.restore``.
        """
        for part in self._on_servers:
            part.pull()

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
            raise UnsupportedError(_SPARSE)
        gradients.append(gradient)
        by_dtype.setdefault(gradient.dtype, []).append(gradient)
    for tensors in by_dtype.values():
        all_reduce_coalesced(tensors, ReduceOp.AVG, group)
    anywhere = by_dtype[torch.float32][0].tolist()
    for parameter, gradient, share in zip(parameters, gradients, anywhere, strict=True):
        if share and parameter.grad is None:
            parameter.grad = gradient


class _OnServers:
    """A group of parameters on the servers, one behind the other."""

    def __init__(self, name: str, group: dict[str, Any], optimizer: Any, placement: str) -> None:
        self._group = group
        self._parameters = [p for p in group["params"] if p.requires_grad]
        self.blocks = Blocks(
            name,
            sum(p.numel() for p in self._parameters),
            _for_servers(optimizer, group),
            placement,
        )
        self._values = torch.from_numpy(self.blocks.values)
        self._gradients = torch.from_numpy(self.blocks.gradients)
        for parameter, place in self._places():
            self._values[place] = parameter.detach().reshape(-1).float()

    def _places(self) -> Iterator[tuple[torch.Tensor, slice]]:
        """Yield the parameters, and where they are in the blocks."""
        begin = 0
        for parameter in self._parameters:
            yield parameter, slice(begin, begin + parameter.numel())
            begin += parameter.numel()

    def note(self) -> None:
        """Note the gradients for the next step; those of parameters that were not used are 0."""
        for parameter, place in self._places():
            if parameter.grad is None:
                self._gradients[place] = 0
            elif parameter.grad.layout is not torch.strided:
                raise UnsupportedError(_SPARSE)
            else:
                self._gradients[place] = parameter.grad.reshape(-1)
        table, ids, gradients = self.blocks.request()
        table.learning_rate = float(self._group["lr"])
        ps.note(table, ids, gradients)

    def pull(self) -> None:
        """Set the parameters to those on the servers."""
        self.blocks.pull()
        with torch.no_grad():
            for parameter, place in self._places():
                parameter.copy_(self._values[place].view_as(parameter))


_PLAIN = {"dampening": 0, "maximize": False, "amsgrad": False, "lr_decay": 0}
"""Numbers of torch's optimizers that servers know with these values only."""


def _for_servers(optimizer: Any, group: dict[str, Any]) -> ps.Optimizer:
    """Return what servers have for a group of an optimizer of torch.

    Raises:
        UnsupportedError: they do not have it.
    """
    odd = {key: group[key] for key, plain in _PLAIN.items() if group.get(key, plain) != plain}
    if odd:
        raise UnsupportedError(f"ps.DistributedOptimizer: servers have no optimizer with {odd}")
    common = {"learning_rate": float(group["lr"]), "weight_decay": group["weight_decay"]}
    kind = type(optimizer)
    if kind is torch.optim.SGD and not group["momentum"]:
        return ps.SGD(**common)
    if kind is torch.optim.SGD:
        return ps.Momentum(**common, momentum=group["momentum"], nesterov=group["nesterov"])
    if kind is torch.optim.Adagrad:
        start = group["initial_accumulator_value"]
        return ps.Adagrad(**common, epsilon=group["eps"], initial_accumulator=start)
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        decoupled = kind is torch.optim.AdamW or group.get("decoupled_weight_decay")
        make = ps.AdamW if decoupled else ps.Adam
        beta1, beta2 = group["betas"]
        return make(**common, beta1=beta1, beta2=beta2, epsilon=group["eps"])
    raise UnsupportedError(
        f"ps.DistributedOptimizer: servers have no {kind.__name__}: they have SGD, Adagrad, Adam "
        "and AdamW; or take dense='all_reduce'"
    )
