"""The part of a model that is divided among the ranks: FSDP2, HSDP, ZeroRedundancyOptimizer.

The sizes of FSDP2's shards are those of the mesh with which the model was wrapped. A
ZeroRedundancyOptimizer keeps the states of some parameters, which every rank has.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from ...elasticity.boxes import Array, Box, Index, mark_of
from ...elasticity.divided import Divided
from ...errors import UnsupportedError
from .modules import Buffers
from .optimizers import Steps, hyperparameters, is_zero
from .tensors import local_of, piece_of

__all__ = ["Sharded"]


class Sharded(Divided):
    """A model with shards, and its optimizer, as a part of a job.

    ``model``, ``optimizer`` and ``scheduler`` are those of the present world: read them in every
    step.

    Args:
        build: makes model and optimizer for the ranks that ``torch.distributed`` has, and returns
            them, and a scheduler if there is one. It is called in every new world.
        every: before every so many steps each rank copies its shards, and sends them to the next
            rank. A death costs so many steps at most. 0: never; only living ranks count.

    Raises:
        ArgumentError: ``every`` is negative.
    """

    def _built(self) -> tuple[Any, Any]:
        self._states = self.optimizer.state
        self._owners: dict[Any, int] | None = None
        if is_zero(self.optimizer):
            if self.optimizer._overlap_with_ddp:
                raise UnsupportedError(
                    "Sharded: ZeroRedundancyOptimizer(overlap_with_ddp=True) steps in backward, "
                    "which cannot be repeated then: leave it out"
                )
            self._states, self._owners = self.optimizer.optim.state, self.optimizer._param_to_rank
        return Steps(self.optimizer), Buffers(self.model)

    def _owns(self, parameter: Any) -> bool:
        owners = self._owners
        return owners is None or owners.get(parameter) == dist.get_rank()

    def _tensors(self) -> dict[Any, tuple[Box, Array]]:
        found: dict[Any, Any] = {("p", name): p for name, p in self._parameters.items()}
        found |= {("b", name): b for name, b in self.model.named_buffers()}
        found |= {
            ("s", name, key): value
            for name, parameter in self._parameters.items()
            for key, value in self._states.get(parameter, {}).items()
            if isinstance(value, torch.Tensor)
        }
        there = {name: piece_of(tensor) for name, tensor in found.items()}
        if self._owners is None:
            return there
        for name, (box, array) in there.items():
            if name[0] == "s":
                there[name] = box._replace(is_divided=True), array
        marks = ((n, p) for n, p in self._parameters.items() if p in self._owners)
        return there | {("owner", name): mark_of(self._owns(p)) for name, p in marks}

    def _plain(self) -> Any:
        scalars = {
            (name, key): value
            for name, parameter in self._parameters.items()
            for key, value in self._states.get(parameter, {}).items()
            if not isinstance(value, torch.Tensor)
        }
        if scalars and self._owners is not None:
            (name, key), value = next(iter(scalars.items()))
            raise UnsupportedError(
                f"Sharded: ZeroRedundancyOptimizer: the state {key} of {name} is a "
                f"{type(value).__name__}, and no tensor: use FSDP2 for this optimizer"
            )
        return {
            "groups": [hyperparameters(group) for group in self.optimizer.param_groups],
            "scalars": scalars,
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
        }

    def _take_plain(self, plain: Any) -> None:
        for (name, key), value in plain["scalars"].items():
            self._states[self._parameters[name]][key] = value
        for group, hyper in zip(self.optimizer.param_groups, plain["groups"], strict=True):
            group.update(hyper)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(plain["scheduler"])

    def _make_states(self, boxes: Index) -> None:
        for (_, name, key), box in boxes.items():
            parameter = self._parameters[name]
            self._states[parameter][key] = _like(parameter, box)


def _like(parameter: Any, box: Box) -> Any:
    """Return a new tensor of an optimizer's state: divided as the parameter is, or whole."""
    dtype = getattr(torch, box.dtype)
    if not (box.is_divided and isinstance(parameter, DTensor)):
        return torch.zeros(box.shape, dtype=dtype)
    return DTensor.from_local(
        torch.zeros_like(local_of(parameter), dtype=dtype),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
