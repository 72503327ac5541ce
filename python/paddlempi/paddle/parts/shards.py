"""The part of a model whose optimizer's states are divided among the ranks: ZeRO 1 and 2.

They are divided by our ``zero_opt_level``, or by fleet's DygraphShardingOptimizer. (Paddle's
``group_sharded_parallel`` refuses CPUs.)
Every rank has all parameters. Their optimizer's states are with one rank each, the owner.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import paddle

from ...elasticity.boxes import BITS, Array, Box, Index, mark_of
from ...elasticity.divided import Divided
from ...errors import UnsupportedError
from .. import private
from ..data_parallel import DataParallel
from ..parameters import parameters_of
from ..replicas import has_value
from .models import Layer, Parallel
from .optimizers import Steps

__all__ = ["Sharded"]

_FLEET = ("HybridParallelOptimizer", "DygraphShardingOptimizer")
"""The classes that fleet puts around an optimizer. By name: a subclass divides otherwise."""
_WEIGHT = "master_weight"
"""The kind of Paddle's float32 copy of a 16-bit parameter."""


class Sharded(Divided):
    """A model and its optimizer, whose states the ranks divide, as a part of a job.

    That is ``get_context().zero_opt_level`` 1 and 2, and the ``sharding_degree`` of fleet.

    ``model``, ``optimizer`` and ``scheduler`` are those of the present world: read them in every
    step.

    Args:
        build: makes model and optimizer for the ranks that ``paddle.distributed`` has, and returns
            them, and a scheduler if there is one. It is called in every new world.
        every: before every so many steps each rank copies parameters and states, and sends its
            states to the next rank. A death costs so many steps at most. 0: never; only living
            ranks count.

    Raises:
        ArgumentError: ``every`` is negative.
    """

    def _built(self) -> tuple[Any, Any]:
        model = self.model
        self._inner, self._keeps = _owned_by(self.optimizer)
        known = {id(parameter) for parameter in self._parameters.values()}
        for number, parameter in enumerate(parameters_of(self._inner)):
            if id(parameter) not in known:
                raise UnsupportedError(
                    f"Sharded: parameter {number} of the optimizer, {parameter.name}, is none of "
                    "the model that build returned: return one model that has all"
                )
        kept = Parallel(model) if isinstance(model, DataParallel) else Layer(model)
        return Steps(self.optimizer), kept

    def _owns(self, parameter: Any) -> bool:
        return self._keeps is None or self._keeps(parameter)

    def _tensors(self) -> dict[Any, tuple[Box, Array]]:
        is_divided = self._keeps is not None
        found: dict[Any, tuple[Box, Array]] = {}
        for name, parameter in self._parameters.items():
            found["p", name] = _piece(parameter)
            for kind, tensor in self._states(parameter).items():
                found["s", name, kind] = _piece(tensor, is_divided)
            if is_divided and not parameter.stop_gradient:
                found["owner", name] = mark_of(self._owns(parameter))
        for name, buffer in self.model.named_buffers():
            if has_value(buffer):
                found["b", name] = _piece(buffer)
        return found

    def _states(self, parameter: Any) -> dict[str, Any]:
        """Return what this rank has of the optimizer's states of a parameter, by kind."""
        weight = getattr(self._inner, "_master_weights", {}).get(parameter.name)
        found = {} if weight is None else {_WEIGHT: weight}
        name = parameter.name if weight is None else weight.name
        for kind, of in self._inner._accumulators.items():
            if name in of:
                found[kind] = of[name]
        return found

    def _make_states(self, boxes: Index) -> None:
        block = paddle.static.default_main_program().global_block()
        chosen = dict.fromkeys(name for _, name, _ in boxes)
        self._inner._create_accumulators(block, [self._parameters[name] for name in chosen])

    def _plain(self) -> Any:
        return {
            "rate": self._steps.rate(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
        }

    def _take_plain(self, plain: Any) -> None:
        self._steps.set_rate(plain["rate"])
        if self.scheduler is not None:
            self.scheduler.set_state_dict(plain["scheduler"])


def _owned_by(optimizer: Any) -> tuple[Any, Callable[[Any], bool] | None]:
    """Return Paddle's optimizer that keeps the states, and whether this rank has a parameter's.

    Returns:
        None instead of a function: every rank has the states of all parameters.

    Raises:
        UnsupportedError: it divides states in another way, or has others.
    """
    keeps: Callable[[Any], bool] | None = None
    while type(optimizer).__name__ in _FLEET:
        if "_param2rank" in vars(optimizer):
            if optimizer.tensor_fusion or optimizer.comm_overlap:
                raise UnsupportedError(
                    "Sharded: sharding_configs with tensor_fusion or comm_overlap: the optimizer's "
                    "states are not those of the model's parameters: leave them out"
                )
            keeps = functools.partial(_is_of, optimizer._param2rank, optimizer._sharding_rank)
        optimizer = optimizer._inner_opt
    if not isinstance(optimizer, paddle.optimizer.Optimizer):
        raise UnsupportedError(
            f"Sharded: the optimizer is a {type(optimizer).__name__}: it must be one of Paddle, "
            "with get_context().zero_opt_level or fleet's sharding_degree"
        )
    if isinstance(optimizer, paddle.optimizer.LBFGS):
        raise UnsupportedError(
            "Sharded: LBFGS has a state that belongs to no parameter: use another optimizer"
        )
    private.check_object(optimizer, ("_accumulators",))
    zero = vars(optimizer).get("_paddlempi_zero")
    return optimizer, keeps if zero is None else zero.owns


def _is_of(ranks: Mapping[str, int], rank: int, parameter: Any) -> bool:
    return ranks.get(parameter.name) == rank


def _piece(tensor: Any, is_divided: bool = False) -> tuple[Box, Array]:
    """Return the box of a tensor, and its memory as an array."""
    if not (tensor.place.is_cpu_place() and tensor.is_contiguous()):
        raise UnsupportedError(
            f"Sharded: a tensor of shape {list(tensor.shape)} in {tensor.place} with the strides "
            f"{tensor.strides}: it must be contiguous memory of the CPU"
        )
    shape, size = tuple(tensor.shape), tensor.element_size()
    dtype = str(tensor.dtype).removeprefix("paddle.")
    box = Box(shape, dtype, size, (0,) * len(shape), shape, is_divided)
    count = math.prod(shape) * size
    if not count:
        return box, np.empty(shape, BITS[size])
    memory: Any = (ctypes.c_char * count).from_address(tensor.data_ptr())
    memory.tensor = tensor  # which the array keeps
    return box, np.frombuffer(memory, BITS[size]).reshape(shape)
