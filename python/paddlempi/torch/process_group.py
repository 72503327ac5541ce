"""The process group that ``torch.distributed`` calls, from Python and from C++.

Its methods are those of torch's C++ class and keep its conventions. Ranks are ranks of the group.
Lists of tensors have one tensor: torch means one for each device of the process, and here a process
has one device. The options carry the reduce op, the root, the deadline and whether the operation is
asynchronous. Errors and deadlines are described in :mod:`paddlempi.collectives`.

Every method that returns a Work returns ``DONE`` for a synchronous operation, which has ended.

Thread-safety: all methods may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
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
from torch.utils import _python_dispatch

from .. import _native, group, memory
from .._ops import ASYNC, Op
from ..errors import GroupDestroyedError, TimeoutError
from ..group_arguments import to_seconds
from . import (
    ddp_buckets,
    dispatch,
    fsdp_buffers,
    group_names,
    operators,
    sparse,
    window,
    world,
)
from .arguments import by_dtype, has_cuda, resolved, writable
from .messages import TENSORS, VERSIONS, Messages
from .profile import state
from .reduce_op import CODE_BY_HASH
from .work import DONE, OperationWork, Work

__all__ = ["ProcessGroupMPI"]

_Tensors = Sequence[Any]
_CPU = torch.device("cpu")
_CUDA = torch.device("cuda")

# For the short ways: names of this module are the fastest to look up.
_ALL_REDUCE = int(Op.ALL_REDUCE)
_TENSORS, _VERSIONS = TENSORS, VERSIONS
_STRIDED = torch.strided
_ZERO = timedelta(0)


class ProcessGroupMPI(Messages):
    """A group of ranks whose collectives go over MPI.

    ``init_process_group("mpi")`` and ``new_group`` make it; users do not.

    Args:
        core: the group of the core.
        timeout: how long its operations wait for other members.
        is_world: it is the default group of a world that was started here. ``shutdown`` then ends
            the world.
    """

    def __init__(
        self, core: group.ProcessGroup, timeout: timedelta, is_world: bool = False
    ) -> None:
        super().__init__(core, timeout)
        fsdp_buffers.watch(ProcessGroupMPI)
        self._is_world = is_world
        self._name = ""
        self._desc = "undefined"

    # What torch asks of a group

    def getBackendName(self) -> str:
        """Return ``"mpi"``."""
        return "mpi"

    def name(self) -> str:
        """Return ``"mpi"``."""
        return "mpi"

    @property
    def group_name(self) -> str:
        """The name of the group in torch's registry."""
        return self._name

    def getGroupName(self) -> str:
        """Return ``group_name``, to C++."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        group_names.forget(name)  # a group of an earlier world may have had it
        self._name = name

    setGroupName = _set_group_name

    @property
    def group_desc(self) -> str:
        """The description that ``new_group(group_desc=...)`` was given."""
        return self._desc

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    @property
    def bound_device_id(self) -> Any:
        """None: the group takes tensors of every device."""
        return None

    @bound_device_id.setter
    def bound_device_id(self, device: Any) -> None:
        """Ignore the device."""

    def boxed(self) -> Any:
        """Return the group as torch's operators take it: an object of TorchScript."""
        operators.serve_all()
        return super().boxed()

    def _get_backend(self, device: Any) -> ProcessGroupMPI:
        return self

    def supports_tensor_alloc(self, device: Any) -> bool:
        """Return whether ``allocate_tensor`` makes tensors on a device: on the CPU."""
        return bool(device.type == "cpu")

    def allocate_tensor(self, size: Any, *, dtype: Any, device: Any = None) -> Any:
        """Return a tensor in memory that the other ranks of the node can map.

        Args:
            size: the number of elements, or a shape.
            dtype: a dtype of torch that can be sent.
            device: the CPU.
        """
        return memory.empty(size, dtype, "torch")

    @property
    def supports_window(self) -> bool:
        """Whether ``new_window`` works with this torch."""
        return window.supported()

    def new_window(self, tensor: Any = None) -> window.Window:
        """Return a new window over tensors of all members. Collective; see :mod:`.window`."""
        return window.new_window(self, tensor)

    supports_coalescing = False
    supports_splitting = False
    supports_shrinking = False

    @property
    def _device_types(self) -> list[Any]:
        # torch 2.15 attaches its flight recorder before it names the group. With devices it fails.
        if self not in c10d._world.pg_map:
            return []
        # Always with the CPU, because torch pickles objects into host memory.
        return [_CPU, _CUDA] if has_cuda() else [_CPU]

    def shutdown(self) -> None:
        """Free the group. If it is the default group, end the world that was started for it."""
        group_names.forget(self._name)
        if self._is_world:
            world.end()
        elif group.WORLD is not None and self._core._id >= group.WORLD._id:  # of this world
            with suppress(GroupDestroyedError):  # which may be revoked
                group.destroy_process_group(self._core)

    def abort(self) -> None:
        """Do the same as ``shutdown()``, which does not wait for other ranks."""
        self.shutdown()

    def get_group_store(self) -> Any:
        """Return this group's part of the default group's store."""
        return c10d._world.pg_map[self][1]

    # Collectives

    def allreduce(
        self,
        tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> Work:
        """Reduce a tensor, dense or sparse, in place over the group.

        Also called as ``allreduce(tensor, op, timeout)``.
        """
        # The short way, for the usual calls. The time of this function counts for tensors of a few
        # bytes, and in a backward, after whose kernels Python's code is no longer in the caches.
        if opts.__class__ is AllreduceOptions and tensors.__class__ is list and len(tensors) == 1:
            tensor = tensors[0]
            reduce_code = CODE_BY_HASH.get(hash(opts.reduceOp))
            if (
                reduce_code is not None
                and tensor.__class__ in _TENSORS
                and tensor.layout is _STRIDED
                and not tensor.is_neg()
                and not tensor.is_conj()
                and opts.timeout <= _ZERO
                and self._steps is None
                and not self._extension.seconds
                and not state._is_profiler_enabled
                and not _python_dispatch._is_in_torch_dispatch_mode
                and dispatch.transforms() is None
            ):
                gid = self._gid
                if not opts.asyncOp:
                    _native.submit(_ALL_REDUCE, gid, None, tensor, reduce_code, _VERSIONS)
                    return DONE
                if self._batch is None:
                    ddp_buckets.consider(self, tensor)
                    flags = _VERSIONS | ASYNC
                    operation = _native.submit(_ALL_REDUCE, gid, None, tensor, reduce_code, flags)
                    return OperationWork(operation, Op.ALL_REDUCE, (tensor,), gid)
        work: Work = self._allreduce(tensors, opts, timeout, op=op)
        return work

    def _allreduce(
        self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, op: Any = None
    ) -> Work:
        tensor = self._one(tensors, Op.ALL_REDUCE)
        if opts.__class__ is not AllreduceOptions:
            opts = self._options(
                Op.ALL_REDUCE, AllreduceOptions, opts, timeout, "reduceOp", reduceOp=op
            )
        ddp_buckets.expose(tensor)  # this is not the short way, so somebody may look on
        code, scale = self._reduction(Op.ALL_REDUCE, opts)
        if tensor.is_sparse:
            return sparse.allreduce(self, tensor, opts, code, scale)
        target, finish = writable(tensor)
        return self._issue(Op.ALL_REDUCE, None, target, opts, (tensor,), code, scale, finish=finish)

    def allreduce_coalesced(self, tensors: _Tensors, opts: Any = None) -> Work:
        """Reduce several tensors in place. Tensors of one dtype make one operation."""
        op = Op.ALL_REDUCE_COALESCED
        tensors = self._list(tensors, op, "tensors")
        opts = self._options(op, AllreduceCoalescedOptions, opts)
        code, scale = self._reduction(op, opts)
        works = []
        for same in by_dtype(tensors):
            target, finish = writable(same)
            works.append(self._issue(op, None, target, opts, same, code, scale, finish=finish))
        return _joined(works, tensors)

    def broadcast(
        self,
        tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Work:
        """Copy the root's tensor, dense or sparse, into the tensor of every other member.

        Also called as ``broadcast(tensor, root, timeout)``.
        """
        tensor = self._one(tensors, Op.BROADCAST)
        if opts.__class__ is not BroadcastOptions:
            opts = self._options(
                Op.BROADCAST, BroadcastOptions, opts, timeout, "rootRank", rootRank=root
            )
        if tensor.is_sparse:
            return sparse.broadcast(self, tensor, opts)
        target, finish = writable(tensor)
        if opts.rootRank == self._core._rank:
            finish = None  # the root's tensor was only read
        return self._issue(
            Op.BROADCAST, None, target, opts, (tensor,), root=opts.rootRank, finish=finish
        )

    def reduce(
        self,
        tensors: Any,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Work:
        """Reduce the tensors of all members into the root's tensor.

        Also called as ``reduce(tensor, root, op, timeout)``.
        """
        tensor = self._one(tensors, Op.REDUCE)
        opts = self._options(
            Op.REDUCE, ReduceOptions, opts, timeout, "rootRank", rootRank=root, reduceOp=op
        )
        code, scale = self._reduction(Op.REDUCE, opts)
        root = opts.rootRank
        if root != self._core._rank:
            return self._issue(
                Op.REDUCE, resolved(tensor), None, opts, (tensor,), code, scale, root
            )
        target, finish = writable(tensor)
        return self._issue(
            Op.REDUCE, None, target, opts, (tensor,), code, scale, root, finish=finish
        )

    def allgather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Give every member the tensors of all, dense or sparse. Dense ones may differ in size.

        Also called as ``allgather(list, tensor, timeout)``.
        """
        send = self._one(input_tensors, Op.ALL_GATHER)
        recv = self._per_rank(output_tensors, Op.ALL_GATHER, "output_tensors")
        opts = self._options(Op.ALL_GATHER, AllgatherOptions, opts, timeout)
        if send.is_sparse:
            return sparse.allgather(self, recv, send, opts)
        target, finish = writable(recv)
        return self._issue(Op.ALL_GATHER, resolved(send), target, opts, recv, finish=finish)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Give every member the tensors of all, one after another in one tensor."""
        opts = self._options(Op.ALL_GATHER, AllgatherOptions, opts)
        target, finish = writable(output)
        return self._issue(Op.ALL_GATHER, resolved(input), target, opts, (output,), finish=finish)

    def all_gather_single_coalesced(
        self, outputs: _Tensors, inputs: _Tensors, opts: Any = None
    ) -> Work:
        """Do several ``all_gather_single`` as one Work."""
        inputs = self._list(inputs, Op.ALL_GATHER, "inputs")
        outputs = self._list(outputs, Op.ALL_GATHER, "outputs", len(inputs))
        works = [self.all_gather_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)]
        return _joined(works, outputs)

    def allgather_coalesced(
        self, output_lists: Sequence[_Tensors], input_list: _Tensors, opts: Any = None
    ) -> Work:
        """Do several ``allgather`` as one Work.

        ``output_lists[rank][i]`` receives ``input_list[i]`` of that rank.
        """
        inputs = self._list(input_list, Op.ALL_GATHER, "input_list")
        rows = self._list(output_lists, Op.ALL_GATHER, "output_lists", self._core.size())
        rows = [
            self._list(row, Op.ALL_GATHER, f"output_lists[{rank}]", len(inputs))
            for rank, row in enumerate(rows)
        ]
        works = [
            self.allgather([[row[i] for row in rows]], [tensor], opts)
            for i, tensor in enumerate(inputs)
        ]
        return _joined(works, [tensor for row in rows for tensor in row])

    def gather(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Work:
        """Give the root the tensors of all.

        Also called as ``gather(list, tensor, root, timeout)``.
        """
        send = self._one(input_tensors, Op.GATHER)
        opts = self._options(Op.GATHER, GatherOptions, opts, timeout, "rootRank", rootRank=root)
        root = opts.rootRank
        if root != self._core._rank:
            return self._issue(Op.GATHER, resolved(send), None, opts, root=root)
        recv = self._per_rank(output_tensors, Op.GATHER, "output_tensors")
        target, finish = writable(recv)
        return self._issue(Op.GATHER, resolved(send), target, opts, recv, root=root, finish=finish)

    def gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Give the root the tensors of all, one after another in one tensor."""
        opts = self._options(Op.GATHER, GatherOptions, opts)
        root = opts.rootRank
        if root != self._core._rank:
            return self._issue(Op.GATHER, resolved(input), None, opts, root=root)
        target, finish = writable(output)
        return self._issue(
            Op.GATHER, resolved(input), target, opts, (output,), root=root, finish=finish
        )

    def scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        root: int | None = None,
    ) -> Work:
        """Give member i tensor i of the root's list.

        Also called as ``scatter(tensor, list, root, timeout)``.
        """
        recv = self._one(output_tensors, Op.SCATTER)
        opts = self._options(Op.SCATTER, ScatterOptions, opts, timeout, "rootRank", rootRank=root)
        root = opts.rootRank
        send = None
        if root == self._core._rank:
            send = resolved(self._per_rank(input_tensors, Op.SCATTER, "input_tensors"))
        target, finish = writable(recv)
        return self._issue(Op.SCATTER, send, target, opts, (recv,), root=root, finish=finish)

    def reduce_scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        *,
        op: Any = None,
    ) -> Work:
        """Reduce lists of tensors and give member i the result of tensor i. Sizes may differ.

        Also called as ``reduce_scatter(tensor, list, op, timeout)``.
        """
        recv = self._one(output_tensors, Op.REDUCE_SCATTER)
        send = self._per_rank(input_tensors, Op.REDUCE_SCATTER, "input_tensors")
        opts = self._options(
            Op.REDUCE_SCATTER, ReduceScatterOptions, opts, timeout, "reduceOp", reduceOp=op
        )
        code, scale = self._reduction(Op.REDUCE_SCATTER, opts)
        target, finish = writable(recv)
        return self._issue(
            Op.REDUCE_SCATTER, resolved(send), target, opts, (recv,), code, scale, finish=finish
        )

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Reduce a tensor and give member i part i of n equal parts of the result."""
        opts = self._options(Op.REDUCE_SCATTER, ReduceScatterOptions, opts)
        code, scale = self._reduction(Op.REDUCE_SCATTER, opts)
        target, finish = writable(output)
        return self._issue(
            Op.REDUCE_SCATTER, resolved(input), target, opts, (output,), code, scale, finish=finish
        )

    def reduce_scatter_single_coalesced(
        self, outputs: _Tensors, inputs: _Tensors, opts: Any = None
    ) -> Work:
        """Do several ``reduce_scatter_single`` as one Work."""
        inputs = self._list(inputs, Op.REDUCE_SCATTER, "inputs")
        outputs = self._list(outputs, Op.REDUCE_SCATTER, "outputs", len(inputs))
        works = [
            self.reduce_scatter_single(o, i, opts) for o, i in zip(outputs, inputs, strict=True)
        ]
        return _joined(works, outputs)

    def alltoall(
        self,
        output_tensors: _Tensors,
        input_tensors: _Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Send tensor i to member i and receive a tensor from every member. Sizes may differ."""
        size = self._core.size()
        recv = self._list(output_tensors, Op.ALL_TO_ALL, "output_tensors", size)
        send = self._list(input_tensors, Op.ALL_TO_ALL, "input_tensors", size)
        opts = self._options(Op.ALL_TO_ALL, AllToAllOptions, opts, timeout)
        target, finish = writable(recv)
        return self._issue(Op.ALL_TO_ALL, resolved(send), target, opts, recv, finish=finish)

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Split a tensor along its first dimension, send part i to member i, receive one of each.

        The split sizes are rows for each member. Without them the parts are equal.
        """
        opts = self._options(Op.ALL_TO_ALL, AllToAllOptions, opts, timeout)
        recv_splits = self._splits("output", output, output_split_sizes)
        send_splits = self._splits("input", input, input_split_sizes)
        target, finish = writable(output)
        return self._issue(
            Op.ALL_TO_ALL,
            resolved(input),
            target,
            opts,
            (output,),
            send_splits=send_splits,
            recv_splits=recv_splits,
            finish=finish,
        )

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Return when every member has called it. Also called as ``barrier(timeout)``."""
        opts = self._options(Op.BARRIER, BarrierOptions, opts, timeout)
        return self._issue(Op.BARRIER, None, None, opts)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait until every member has called it, or raise an error that names the missing ranks.

        All members that called it raise, and the error names all missing ranks. The group stays
        usable, because the members meet outside the order of the collectives. The error begins
        with torch's words: ``Rank 1 failed to pass monitoredBarrier``; if several ranks are missing
        or with ``wait_all_ranks``, ``Ranks 1, 2 failed``.

        Args:
            timeout: how long to wait; None: the group's deadline.
            wait_all_ranks: only changes the error's words.

        Raises:
            TimeoutError: its ``ranks`` are the missing ones.
        """
        seconds = None if timeout is None else to_seconds(timeout, "monitored_barrier")
        try:
            _native.control("monitored_barrier", group=self._gid, timeout=seconds)
        except TimeoutError as error:
            missing = ", ".join(map(str, error.ranks))
            plural = "s" if wait_all_ranks or len(error.ranks) > 1 else ""
            named = type(error)(f"Rank{plural} {missing} failed to pass monitoredBarrier: {error}")
            named.ranks = error.ranks
            raise named from error

    # The names of these methods before torch 2.13 or so.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    gather_into_tensor = gather_single


def _joined(works: Sequence[Work], output: _Tensors) -> Work:
    if all(work is DONE for work in works):
        return DONE
    work = Work.joined(works)
    work._output = list(output)
    return work


dispatch.show(ProcessGroupMPI)
