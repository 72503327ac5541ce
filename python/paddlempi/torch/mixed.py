"""A group in which MPI serves some devices and other backends the rest: ``"cpu:mpi,cuda:nccl"``.

It is a ``ProcessGroup`` in Python that passes calls on, and not a ``Backend`` inside torch's group.
torch 2.8 cannot make a ``Backend`` in Python (``No constructor defined``). torch 2.15 can, but the
Work that its users get then lacks ``is_completed`` and ``source_rank``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from .. import group
from .process_group import ProcessGroupMPI

__all__ = ["MixedProcessGroup"]


class MixedProcessGroup(ProcessGroupMPI):
    """Passes every operation to MPI or to another backend, by the device of its tensors.

    Args:
        core, timeout, is_world: as for :class:`ProcessGroupMPI`.
        others: torch's group, in which the other backends are registered.
        ours: the types of the devices that MPI serves.
    """

    def __init__(
        self,
        core: group.ProcessGroup,
        timeout: timedelta,
        is_world: bool,
        others: Any,
        ours: frozenset[str],
    ) -> None:
        super().__init__(core, timeout, is_world)
        self._others = others
        self._ours = ours

    def _set_group_name(self, name: str) -> None:
        super()._set_group_name(name)
        self._others._set_group_name(name)

    def _set_group_desc(self, desc: str) -> None:
        super()._set_group_desc(desc)
        self._others._set_group_desc(desc)

    setGroupName = _set_group_name

    @property
    def bound_device_id(self) -> Any:
        """The device that ``device_id=`` has bound the other backends to."""
        return self._others.bound_device_id

    @bound_device_id.setter
    def bound_device_id(self, device: Any) -> None:
        self._others.bound_device_id = device

    @property
    def _device_types(self) -> list[Any]:
        if self not in c10d._world.pg_map:
            return []
        return [*map(torch.device, sorted(self._ours)), *self._others._device_types]

    def _get_backend(self, device: Any) -> Any:
        device = torch.device(device)
        return self if device.type in self._ours else self._others._get_backend(device)

    def shutdown(self) -> None:
        """Shut the other backends down, then MPI's part of the group."""
        self._others.shutdown()
        super().shutdown()

    def abort(self) -> None:
        """Abort the other backends, then shut MPI's part of the group down."""
        self._others.abort()
        super().abort()

    def set_timeout(self, timeout: timedelta) -> None:
        """Change how long the operations of all backends wait."""
        super().set_timeout(timeout)
        for device in self._others._device_types:
            self._others._get_backend(device).set_timeout(timeout)

    def _start_coalescing(self, device: Any = None) -> None:
        if device is None or device.type in self._ours:
            super()._start_coalescing(device)
        else:
            self._others._start_coalescing(device)

    def _end_coalescing(self, device: Any = None) -> Any:
        if device is None or device.type in self._ours:
            return super()._end_coalescing(device)
        return self._others._end_coalescing(device)

    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Do a barrier of the backend that serves ``opts.device``; without a device, of MPI."""
        device = getattr(opts, "device", None)
        if device is None or device.type in self._ours:
            return super().barrier(opts, timeout)
        return self._others.barrier(opts)


def _device(arguments: Iterable[Any]) -> str | None:
    """Return the device type of the first tensor in nested lists; None if there is no tensor."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return str(argument.device.type)
        if isinstance(argument, (list, tuple)):
            found = _device(argument)
            if found is not None:
                return found
    return None


def _routed(name: str) -> Callable[..., Any]:
    ours: Any = getattr(ProcessGroupMPI, name)

    def call(self: MixedProcessGroup, *arguments: Any, **named: Any) -> Any:
        device = _device((*arguments, *named.values()))
        if device is None or device in self._ours:
            return ours(self, *arguments, **named)
        return getattr(self._others, name)(*arguments, **named)

    call.__name__ = name
    call.__doc__ = ours.__doc__
    return call


for _name in (
    "allgather",
    "allgather_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced",
    "_allgather_base",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "broadcast",
    "gather",
    "gather_into_tensor",
    "gather_single",
    "new_window",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "_reduce_scatter_base",
    "scatter",
    "send",
):
    setattr(MixedProcessGroup, _name, _routed(_name))
