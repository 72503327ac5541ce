"""The part of a model: parameters and buffers; in DistributedDataParallel a reducer, too."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ...errors import ArgumentError, UnsupportedError
from .. import reducers
from .sharing import broadcast_same

__all__ = ["Buffers", "DataParallel", "Module"]


class Buffers:
    """What a forward changes of a model, such as BatchNorm's statistics."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._kept: list[tuple[dict[str, Any], str, Any]] = []
        self._copies: list[torch.Tensor] = []

    def before(self) -> None:
        """Keep the buffers."""
        found = [
            (module._buffers, name, buffer)
            for module in self._module.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        tensors = [buffer.detach() for *_, buffer in found]
        same = len(found) == len(self._kept) and all(
            new[2] is old[2] and new[2].shape == copy.shape
            for new, old, copy in zip(found, self._kept, self._copies, strict=True)
        )
        if same:
            if tensors:
                torch._foreach_copy_(self._copies, tensors)
        else:
            self._copies = [tensor.clone() for tensor in tensors]
        self._kept = found

    def back(self) -> None:
        """Give the buffers back, also those in whose place a forward has put others."""
        with torch.no_grad():
            for (owner, name, buffer), copy in zip(self._kept, self._copies, strict=True):
                owner[name] = buffer
                buffer.copy_(copy)


class Module(Buffers):
    """A model of which every rank has the whole.

    A forward changes buffers. Parameters change only in an optimizer's step. A step that is
    repeated, and the first after a reform, begins without gradients.

    Raises:
        ArgumentError: its parameters are divided, or there is a DistributedDataParallel inside it.
        UnsupportedError: its backward makes steps of optimizers.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        _check(module)
        super().__init__(module)
        self._taken = False  # a rank's parameters, or some of them, since the step began

    def before(self) -> None:
        """Keep the buffers."""
        super().before()
        self._taken = False

    def whole(self) -> bool:
        """Whether the parameters are those from before the step."""
        return not self._taken

    def reformed(self, job: Any) -> None:
        """Drop the gradients, which may be of the old world, or lie in its memory."""
        for parameter in self._module.parameters():
            parameter.grad = None

    def share(self, root: int) -> None:
        """Take the root's parameters and buffers."""
        tensors = dict(self._module.named_parameters())
        tensors |= {f"buffer {name}": buffer for name, buffer in self._module.named_buffers()}
        self._taken = True
        broadcast_same("model", tensors, root)


def _check(module: torch.nn.Module) -> None:
    for name, inner in module.named_modules():
        if isinstance(inner, DistributedDataParallel) and inner is not module:
            raise ArgumentError(
                f"attach: there is a DistributedDataParallel in the model, at {name}: attach that "
                "instead of what is around it"
            )
    for name, parameter in module.named_parameters():
        if type(parameter).__name__ in ("DTensor", "FlatParameter"):
            raise ArgumentError(
                f"attach: {name} is divided among the ranks: attach paddlempi.torch.Sharded(build) "
                "instead of the model and its optimizer"
            )
        if hasattr(parameter, "_in_backward_optimizers"):
            raise UnsupportedError(
                f"attach: an optimizer changes {name} in backward, which cannot be repeated then"
            )


class DataParallel(Module):
    """A model in DistributedDataParallel.

    After a reform it gets a new reducer, as after unpickling. ``_update_process_group`` would keep
    the old one with its buckets, which have been rebuilt in the order of a backward: a replacement
    has those of a first step. It would also keep what a backward left that an exception has ended.
    """

    def __init__(self, module: DistributedDataParallel) -> None:
        if module.process_group is not dist.group.WORLD:
            raise ArgumentError(
                "attach: this DistributedDataParallel has a group of its own (process_group= or "
                "device_mesh=), which does not outlive a reform: leave it to the default group"
            )
        super().__init__(module)
        self._ddp = module

    def reformed(self, job: Any) -> None:
        """Make a new reducer, and register the hooks again."""
        super().reformed(job)
        ddp = self._ddp
        builtin = reducers.builtin_hook_of(ddp.reducer)
        ddp.process_group = dist.group.WORLD
        parameters, sparse = ddp._build_params_for_reducer()
        names = ddp._build_debug_param_to_name_mapping(parameters)
        ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
        ddp._has_rebuilt_buckets = False
        if ddp.static_graph:
            ddp.reducer._set_static_graph()
            ddp.logger._set_static_graph()
        if getattr(ddp, "_require_manual_backward_finalization", False):
            ddp.require_manual_backward_finalization = True
        if ddp.mixed_precision is not None:
            ddp.reducer._set_mixed_precision_param_dtype(ddp.mixed_precision.param_dtype)
        for hook, state in ddp._comm_hooks:
            dist._register_comm_hook(ddp.reducer, state, hook)
        if builtin is not None:
            dist._register_builtin_comm_hook(ddp.reducer, builtin)
