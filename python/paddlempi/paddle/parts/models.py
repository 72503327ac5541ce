"""The part of a model: parameters and buffers. That of DataParallel has a reducer too."""

from __future__ import annotations

from typing import Any

import paddle

from ... import group as core_group
from ...elasticity.sharing import check_same
from ...errors import UnsupportedError
from .. import world
from ..data_parallel import DataParallel
from ..replicas import broadcast_all, find_buffers, has_value, tensor_at

__all__ = ["Layer", "Parallel"]


class Layer:
    """A model of which every rank has the whole.

    A forward changes buffers, such as BatchNorm's. Parameters change only in an optimizer's step.
    A step that is repeated, and the first after a reform, begins without gradients.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._kept: list[tuple[Any, Any, Any]] = []
        self._taken = False  # a rank's parameters, or some of them, since the step began

    def before(self) -> None:
        """Keep the buffers."""
        self._taken = False
        found = [(at, tensor_at(at)) for at in find_buffers(self._layer)]
        self._kept = [(at, tensor, tensor.detach().clone()) for at, tensor in found]

    def back(self) -> None:
        """Give the buffers back, also those in whose place a forward has put others."""
        for (store, name), tensor, copy in self._kept:
            store[name] = tensor
            paddle.assign(copy, tensor.detach())

    def whole(self) -> bool:
        """Whether the parameters are those from before the step."""
        return not self._taken

    def reformed(self, job: Any) -> None:
        """Drop the gradients, which may be of the old world, or lie in its memory."""
        for parameter in self._layer.parameters():
            parameter.clear_gradient(False)

    def share(self, root: int) -> None:
        """Take the root's parameters and buffers."""
        tensors = dict(self._layer.named_parameters())
        tensors |= {f"buffer {n}": b for n, b in self._layer.named_buffers() if has_value(b)}
        check_same("model", {n: (tuple(t.shape), str(t.dtype)) for n, t in tensors.items()}, root)
        assert core_group.WORLD is not None
        self._taken = True
        broadcast_all(list(tensors.values()), core_group.WORLD, [root] * len(tensors))


class Parallel(Layer):
    """A model in DataParallel. After a reform it gets a new reducer, of the new ranks.

    Raises:
        UnsupportedError: it was made with ``overlap_next_forward``.
    """

    def __init__(self, layer: DataParallel) -> None:
        if layer.overlaps:
            raise UnsupportedError(
                "attach: overlap_next_forward=True: the optimizer's step would end in the next "
                "step of the job: leave it out"
            )
        super().__init__(layer)
        self._parallel = layer

    def reformed(self, job: Any) -> None:
        """Make the reducer for the ranks of this world."""
        super().reformed(job)
        self._parallel.regroup(world.default_group())
