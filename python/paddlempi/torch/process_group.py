"""The process group that ``torch.distributed`` calls, in Python and from C++.

Its methods are those of torch's C++ class, with its conventions: ranks are ranks of the
group, lists of tensors hold one tensor (one a device, of which there is one), options carry
the reduce op, the root and whether the caller wants a Work. Errors and deadlines are
:mod:`paddlempi.collectives`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from .. import group
from .._ops import Op
from ..errors import ArgumentError
from . import sparse, world
from .issue import Issuer
from .reduce_op import reduction
from .work import DONE, Work

__all__ = ["ProcessGroupMPI"]

_Tensors = Sequence[Any]
_CPU = [torch.device("cpu")]


class ProcessGroupMPI(Issuer):
    """A group of ranks whose collectives go over MPI.

    Made by ``init_process_group("mpi")`` and ``new_group``, not by users.

    Args:
        core: the group of the core.
        timeout: how long its collectives wait.
        is_world: it is the default group: shutting it down leaves MPI.
    """

    def __init__(
        self, core: group.ProcessGroup, timeout: timedelta, is_world: bool = False
    ) -> None:
        super().__init__(core, timeout)
        self._is_world = is_world
        self._name = ""
        self._desc = "undefined"

    # What torch asks of a group

    def getBackendName(self) -> str:
        """``"mpi"``."""
        return "mpi"

    def name(self) -> str:
        """``"mpi"``."""
        return "mpi"

    @property
    def group_name(self) -> str:
        """The name that torch's registry has it under."""
        return self._name

    def getGroupName(self) -> str:
        """For C++."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    setGroupName = _set_group_name

    @property
    def group_desc(self) -> str:
        """What ``new_group(group_desc=...)`` said."""
        return self._desc

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    @property
    def bound_device_id(self) -> Any:
        """None: no device is bound."""
        return None

    @bound_device_id.setter
    def bound_device_id(self, device: Any) -> None:
        """Taken and not used."""

    def _get_backend(self, device: Any) -> ProcessGroupMPI:
        return self

    supports_coalescing = False
    supports_splitting = False
    supports_shrinking = False

    @property
    def _device_types(self) -> list[Any]:
        # torch 2.15 attaches its flight recorder before it has named the group, and fails.
        return _CPU if self in c10d._world.pg_map else []

    def shutdown(self) -> None:
        """Free the group; the default group leaves MPI."""
        if self._is_world:
            world.end()
        elif group.is_initialized():
            group.destroy_process_group(self._core)

    # Collectives

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Reduce one tensor in place over the group.

        Also ``allreduce(tensor, op)``, as the C++ class has it.
        """
        tensor = self._one(tensors, "allreduce")
        if not isinstance(opts, AllreduceOptions):
            opts = _with(AllreduceOptions(), timeout, reduceOp=opts)
        code, scale = reduction(opts.reduceOp)
        if tensor.is_sparse:
            return sparse.allreduce(self, tensor, code, scale)
        return self._issue(Op.ALL_REDUCE, None, tensor, opts, (tensor,), code, scale)

    def allreduce_coalesced(self, tensors: _Tensors, opts: Any = None) -> Work:
        """Reduce several tensors in place, those of one dtype as one operation."""
        opts = AllreduceCoalescedOptions() if opts is None else opts
        code, scale = reduction(opts.reduceOp)
        works = []
        for same in _by_dtype(tensors):
            works.append(self._issue(Op.ALL_REDUCE_COALESCED, None, same, opts, same, code, scale))
        return _joined(works, tensors)

    def broadcast(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int = 0
    ) -> Work:
        """Copy the root's tensor into that of every member. Also ``broadcast(tensor, root)``."""
        tensor = self._one(tensors, "broadcast")
        if not isinstance(opts, BroadcastOptions):
            opts = _with(BroadcastOptions(), timeout, rootRank=root if opts is None else opts)
        root = opts.rootRank
        if tensor.is_sparse:
            return sparse.broadcast(self, tensor, root)
        return self._issue(Op.BROADCAST, None, tensor, opts, (tensor,), root=root)

    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int = 0,
    ) -> Work:
        """Reduce into the root's tensor. Also ``reduce(tensor, root, op)``."""
        tensor = self._one(tensors, "reduce")
        if not isinstance(opts, ReduceOptions):
            rank = root if opts is None else opts
            opts = _with(ReduceOptions(), timeout, rootRank=rank, reduceOp=op)
        code, scale = reduction(opts.reduceOp)
        root = opts.rootRank
        if root == self._core._rank:
            return self._issue(Op.REDUCE, None, tensor, opts, (tensor,), code, scale, root)
        return self._issue(Op.REDUCE, tensor, None, opts, (tensor,), code, scale, root)

    def allgather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Give every member the tensors of all; their sizes may differ.

        Also ``allgather([tensor of each member], tensor)``.
        """
        send = self._one(inputs, "allgather")
        recv = self._nested(outputs, "allgather")
        if not isinstance(opts, AllgatherOptions):
            opts = _with(AllgatherOptions(), timeout)
        if send.is_sparse:
            return sparse.allgather(self, recv, send)
        return self._issue(Op.ALL_GATHER, send, recv, opts, recv)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Give every member the tensors of all, one after the other in one tensor."""
        opts = AllgatherOptions() if opts is None else opts
        return self._issue(Op.ALL_GATHER, input, output, opts, (output,))

    def all_gather_single_coalesced(
        self, outputs: _Tensors, inputs: _Tensors, opts: Any = None
    ) -> Work:
        """Several ``all_gather_single``."""
        works = [self.all_gather_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        return _joined(works, outputs)

    def allgather_coalesced(
        self, outputs: Sequence[_Tensors], inputs: _Tensors, opts: Any = None
    ) -> Work:
        """Several ``allgather``: ``outputs[rank][i]`` is that rank's ``inputs[i]``."""
        works = [
            self.allgather([[row[i] for row in outputs]], [tensor], opts)
            for i, tensor in enumerate(inputs)
        ]
        return _joined(works, [tensor for row in outputs for tensor in row])

    def gather(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int = 0,
    ) -> Work:
        """Give the root the tensors of all. Also ``gather(list, tensor, root)``."""
        send = self._one(inputs, "gather")
        if not isinstance(opts, GatherOptions):
            opts = _with(GatherOptions(), timeout, rootRank=root if opts is None else opts)
        root = opts.rootRank
        recv = self._nested(outputs, "gather") if root == self._core._rank else None
        return self._issue(Op.GATHER, send, recv, opts, recv or (), root=root)

    def gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Give the root the tensors of all, one after the other in one tensor."""
        opts = GatherOptions() if opts is None else opts
        recv = output if opts.rootRank == self._core._rank else None
        out = () if recv is None else (recv,)
        return self._issue(Op.GATHER, input, recv, opts, out, root=opts.rootRank)

    def scatter(
        self,
        outputs: Any,
        inputs: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int = 0,
    ) -> Work:
        """Give member i tensor i of the root's list. Also ``scatter(tensor, list, root)``."""
        recv = self._one(outputs, "scatter")
        if not isinstance(opts, ScatterOptions):
            opts = _with(ScatterOptions(), timeout, rootRank=root if opts is None else opts)
        root = opts.rootRank
        send = self._nested(inputs, "scatter") if root == self._core._rank else None
        return self._issue(Op.SCATTER, send, recv, opts, (recv,), root=root)

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Reduce a list of tensors, number i of it for member i; their sizes may differ."""
        recv = self._one(outputs, "reduce_scatter")
        send = self._nested(inputs, "reduce_scatter")
        if not isinstance(opts, ReduceScatterOptions):
            opts = _with(ReduceScatterOptions(), timeout, reduceOp=opts)
        code, scale = reduction(opts.reduceOp)
        return self._issue(Op.REDUCE_SCATTER, send, recv, opts, (recv,), code, scale)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Reduce a tensor and give its i-th equal part to member i."""
        opts = ReduceScatterOptions() if opts is None else opts
        code, scale = reduction(opts.reduceOp)
        return self._issue(Op.REDUCE_SCATTER, input, output, opts, (output,), code, scale)

    def reduce_scatter_single_coalesced(
        self, outputs: _Tensors, inputs: _Tensors, opts: Any = None
    ) -> Work:
        """Several ``reduce_scatter_single``."""
        works = [
            self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)
        ]
        return _joined(works, outputs)

    def alltoall(
        self,
        outputs: _Tensors,
        inputs: _Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Send tensor i to member i and receive one from each; sizes may differ."""
        if not isinstance(opts, AllToAllOptions):
            opts = _with(AllToAllOptions(), timeout)
        return self._issue(Op.ALL_TO_ALL, list(inputs), list(outputs), opts, outputs)

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Split along the first dimension, part i to member i; no sizes: equal parts."""
        if not isinstance(opts, AllToAllOptions):
            opts = _with(AllToAllOptions(), timeout)
        return self._issue(
            Op.ALL_TO_ALL,
            input,
            output,
            opts,
            (output,),
            send_splits=input_split_sizes or None,
            recv_splits=output_split_sizes or None,
        )

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Return when every member has called it."""
        if not isinstance(opts, BarrierOptions):
            opts = _with(BarrierOptions(), timeout if opts is None else opts)
        return self._issue(Op.BARRIER, None, None, opts)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier with a deadline of its own; its error names all missing ranks."""
        opts = _with(BarrierOptions(), timeout)
        opts.asyncOp = False
        self._issue(Op.BARRIER, None, None, opts)

    # The names that they had before torch 2.13 or so.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    gather_into_tensor = gather_single

    # Point to point

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Work:
        """Begin to send a tensor to a rank of the group."""
        return self._message(Op.SEND, self._one(tensors, "send"), None, peer, tag)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Work:
        """Begin to receive a tensor from a rank of the group."""
        return self._message(Op.RECV, None, self._one(tensors, "recv"), peer, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Begin to receive a tensor from whichever rank; ``source_rank()`` tells."""
        return self._message(Op.RECV, None, self._one(tensors, "recv"), -1, tag)

    # Inside

    def _one(self, tensors: Any, what: str) -> Any:
        """The one tensor that torch wraps in a list."""
        if isinstance(tensors, torch.Tensor):
            return tensors
        if len(tensors) != 1:
            raise ArgumentError(f"{what}: {len(tensors)} tensors; the MPI group takes one a rank")
        return tensors[0]

    def _nested(self, tensors: Any, what: str) -> list[Any]:
        """The list of tensors that torch wraps in another list."""
        if tensors and isinstance(tensors[0], torch.Tensor):
            return list(tensors)
        if len(tensors) != 1:
            raise ArgumentError(f"{what}: {len(tensors)} lists; the MPI group takes one a rank")
        return list(tensors[0])


def _with(opts: Any, timeout: timedelta | None, **fields: Any) -> Any:
    """Options with some fields set."""
    if timeout is not None:
        opts.timeout = timeout
    for name, value in fields.items():
        if value is not None:
            setattr(opts, name, value)
    return opts


def _by_dtype(tensors: _Tensors) -> list[list[Any]]:
    """Tensors in lists of one dtype each, in the order in which the dtypes come."""
    lists: dict[Any, list[Any]] = {}
    for tensor in tensors:
        lists.setdefault(tensor.dtype, []).append(tensor)
    return list(lists.values())


def _joined(works: Sequence[Work], output: _Tensors) -> Work:
    if all(work is DONE for work in works):
        return DONE
    work = Work.joined(works)
    work._output = list(output)
    return work
