"""The process group that ``paddle.distributed`` calls instead of Paddle's, which is in C++.

Its methods are those of Paddle's ``core.ProcessGroup``. Ranks are ranks of the group. The lists
that only a root needs are ignored on the other ranks. If ``sync`` is false, a method returns before
the operation is over. Errors and deadlines are those of :mod:`paddlempi.collectives`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paddle.base import core as paddle_core

from .. import _native
from .._ops import ASYNC, Op, ReduceCode
from ..errors import ArgumentError
from ..group import ProcessGroup
from ..work import Work
from .task import DONE, Task, UnderWay

__all__ = ["ProcessGroupMPI"]

_Tensors = Sequence[Any]

_ALL_REDUCE = int(Op.ALL_REDUCE)
_CODES = {
    paddle_core.ReduceOp.SUM: int(ReduceCode.SUM),
    paddle_core.ReduceOp.MAX: int(ReduceCode.MAX),
    paddle_core.ReduceOp.MIN: int(ReduceCode.MIN),
    paddle_core.ReduceOp.PRODUCT: int(ReduceCode.PRODUCT),
    paddle_core.ReduceOp.AVG: int(ReduceCode.AVG),
}


class ProcessGroupMPI:
    """A group of ranks whose collectives go over MPI. ``new_group`` makes it, not the user.

    Args:
        core: the group of the core. This rank must be a member of it.
    """

    def __init__(self, core: ProcessGroup) -> None:
        self.core = core
        self._gid = core._id
        self._under_way = UnderWay()

    def name(self) -> str:
        """Return ``"MPI"``. Paddle's process groups return ``"NCCL"`` or ``"GLOO"``."""
        return "MPI"

    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self.core._rank

    def size(self) -> int:
        """Return the number of members."""
        return len(self.core._ranks)

    # Collectives

    def all_reduce(self, tensor: Any, op: Any, sync: bool = False) -> Task:
        """Reduce in place over the group."""
        code = _CODES.get(op)
        if not sync or code is None:
            return self._issue(Op.ALL_REDUCE, None, tensor, sync, _code(op))
        # The most frequent call takes a shorter way to the same submit.
        _native.submit(_ALL_REDUCE, self._gid, None, tensor, code)
        return DONE

    def broadcast(self, tensor: Any, src: int, sync: bool = False) -> Task:
        """Copy the tensor of ``src`` into that of every member."""
        return self._issue(Op.BROADCAST, None, tensor, sync, root=src)

    def reduce(self, tensor: Any, dst: int, op: Any, sync: bool = False) -> Task:
        """Reduce into the tensor of ``dst``."""
        send, recv = (None, tensor) if dst == self.core._rank else (tensor, None)
        return self._issue(Op.REDUCE, send, recv, sync, _code(op), root=dst)

    def all_gather(self, outputs: _Tensors, tensor: Any, sync: bool = False) -> Task:
        """Give every member the tensors of all."""
        return self._issue(Op.ALL_GATHER, tensor, list(outputs), sync)

    def all_gather_into_tensor(self, output: Any, tensor: Any, sync: bool = False) -> Task:
        """Give every member the tensors of all, one after the other in one tensor."""
        return self._issue(Op.ALL_GATHER, tensor, output, sync)

    def reduce_scatter(self, output: Any, inputs: _Tensors, op: Any, sync: bool = False) -> Task:
        """Reduce lists of tensors element by element, and give result i to member i."""
        return self._issue(Op.REDUCE_SCATTER, list(inputs), output, sync, _code(op))

    def reduce_scatter_tensor(self, output: Any, tensor: Any, op: Any, sync: bool = False) -> Task:
        """Reduce a tensor, and give part i of its equal parts to member i."""
        return self._issue(Op.REDUCE_SCATTER, tensor, output, sync, _code(op))

    def scatter(self, output: Any, inputs: _Tensors, src: int, sync: bool = False) -> Task:
        """Give member i tensor i of the list that ``src`` has."""
        send = list(inputs) if src == self.core._rank else None
        return self._issue(Op.SCATTER, send, output, sync, root=src)

    def scatter_tensor(self, output: Any, tensor: Any, src: int, sync: bool = False) -> Task:
        """Give member i part i of the equal parts of the tensor that ``src`` has."""
        send = tensor if src == self.core._rank else None
        return self._issue(Op.SCATTER, send, output, sync, root=src)

    def gather(
        self,
        tensor: Any,
        outputs: _Tensors,
        dst: int,
        sync: bool = False,
        use_calc_stream: bool = False,
    ) -> Task:
        """Give ``dst`` the tensors of all."""
        recv = list(outputs) if dst == self.core._rank else None
        return self._issue(Op.GATHER, tensor, recv, sync, root=dst)

    def all_to_all(self, outputs: _Tensors, inputs: _Tensors, sync: bool = False) -> Task:
        """Send tensor i to member i, and receive tensor i from member i; sizes may differ."""
        return self._issue(Op.ALL_TO_ALL, list(inputs), list(outputs), sync)

    def all_to_all_tensor(self, output: Any, tensor: Any, sync: bool = False) -> Task:
        """Send part i of the equal parts of a tensor to member i."""
        return self._issue(Op.ALL_TO_ALL, tensor, output, sync)

    def all_to_all_single(
        self,
        output: Any,
        tensor: Any,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        sync: bool = False,
    ) -> Task:
        """Split along the first dimension, and send part i to member i.

        Without sizes the parts are equal.
        """
        return self._issue(
            Op.ALL_TO_ALL,
            tensor,
            output,
            sync,
            send_splits=list(input_sizes) or None,
            recv_splits=list(output_sizes) or None,
        )

    def barrier(self, device_id: int = -1) -> Task:
        """Return when every member has called it."""
        return self._issue(Op.BARRIER, None, None, True)

    # The names with which Paddle asks for the current stream (its "calculation stream"). Here they
    # are synchronous operations, which are always ordered with the current stream.

    def all_reduce_on_calc_stream(self, tensor: Any, op: Any) -> Task:
        """Do what ``all_reduce`` does, and wait."""
        return self.all_reduce(tensor, op, True)

    def broadcast_on_calc_stream(self, tensor: Any, src: int) -> Task:
        """Do what ``broadcast`` does, and wait."""
        return self.broadcast(tensor, src, True)

    def reduce_on_calc_stream(self, tensor: Any, dst: int, op: Any) -> Task:
        """Do what ``reduce`` does, and wait."""
        return self.reduce(tensor, dst, op, True)

    def all_gather_on_calc_stream(self, outputs: _Tensors, tensor: Any) -> Task:
        """Do what ``all_gather`` does, and wait."""
        return self.all_gather(outputs, tensor, True)

    def all_gather_into_tensor_on_calc_stream(self, output: Any, tensor: Any) -> Task:
        """Do what ``all_gather_into_tensor`` does, and wait."""
        return self.all_gather_into_tensor(output, tensor, True)

    def reduce_scatter_on_calc_stream(self, output: Any, inputs: _Tensors, op: Any) -> Task:
        """Do what ``reduce_scatter`` does, and wait."""
        return self.reduce_scatter(output, inputs, op, True)

    def reduce_scatter_tensor_on_calc_stream(self, output: Any, tensor: Any, op: Any) -> Task:
        """Do what ``reduce_scatter_tensor`` does, and wait."""
        return self.reduce_scatter_tensor(output, tensor, op, True)

    def scatter_on_calc_stream(self, output: Any, inputs: _Tensors, src: int) -> Task:
        """Do what ``scatter`` does, and wait."""
        return self.scatter(output, inputs, src, True)

    def scatter_tensor_on_calc_stream(self, output: Any, tensor: Any, src: int) -> Task:
        """Do what ``scatter_tensor`` does, and wait."""
        return self.scatter_tensor(output, tensor, src, True)

    def all_to_all_on_calc_stream(self, outputs: _Tensors, inputs: _Tensors) -> Task:
        """Do what ``all_to_all`` does, and wait."""
        return self.all_to_all(outputs, inputs, True)

    def all_to_all_tensor_on_calc_stream(self, output: Any, tensor: Any) -> Task:
        """Do what ``all_to_all_tensor`` does, and wait."""
        return self.all_to_all_tensor(output, tensor, True)

    def all_to_all_single_on_calc_stream(
        self, output: Any, tensor: Any, output_sizes: Sequence[int], input_sizes: Sequence[int]
    ) -> Task:
        """Do what ``all_to_all_single`` does, and wait."""
        return self.all_to_all_single(output, tensor, output_sizes, input_sizes, True)

    # Point to point

    def send(self, tensor: Any, peer: int, sync: bool = False) -> Task:
        """Send to a rank of the group."""
        return self._message(Op.SEND, tensor, None, peer, sync)

    def recv(self, tensor: Any, peer: int, sync: bool = False) -> Task:
        """Receive from a rank of the group."""
        return self._message(Op.RECV, None, tensor, peer, sync)

    def send_on_calc_stream(self, tensor: Any, peer: int) -> Task:
        """Do what ``send`` does, and wait."""
        return self.send(tensor, peer, True)

    def recv_on_calc_stream(self, tensor: Any, peer: int) -> Task:
        """Do what ``recv`` does, and wait."""
        return self.recv(tensor, peer, True)

    def send_partial(
        self, tensor: Any, peer: int, parts: int, part: int, sync: bool = False
    ) -> Task:
        """Send part number ``part`` of ``parts`` equal parts of a tensor."""
        return self._message(Op.SEND, _part(tensor, parts, part), None, peer, sync)

    def recv_partial(
        self, tensor: Any, peer: int, parts: int, part: int, sync: bool = False
    ) -> Task:
        """Receive into part number ``part`` of ``parts`` equal parts of a contiguous tensor."""
        if not tensor.is_contiguous():
            raise ArgumentError(
                "recv_partial: the tensor is not contiguous; give it a contiguous one"
            )
        return self._message(Op.RECV, None, _part(tensor, parts, part), peer, sync)

    def all_gather_partial(
        self, output: Any, tensor: Any, parts: int, part: int, sync: bool = False
    ) -> Task:
        """Give every member part ``part`` of every member's tensor, one after the other."""
        return self._issue(Op.ALL_GATHER, _part(tensor, parts, part), output, sync)

    def send_partial_on_calc_stream(self, tensor: Any, peer: int, parts: int, part: int) -> Task:
        """Do what ``send_partial`` does, and wait."""
        return self.send_partial(tensor, peer, parts, part, True)

    def recv_partial_on_calc_stream(self, tensor: Any, peer: int, parts: int, part: int) -> Task:
        """Do what ``recv_partial`` does, and wait."""
        return self.recv_partial(tensor, peer, parts, part, True)

    def all_gather_partial_on_calc_stream(
        self, output: Any, tensor: Any, parts: int, part: int
    ) -> Task:
        """Do what ``all_gather_partial`` does, and wait."""
        return self.all_gather_partial(output, tensor, parts, part, True)

    # Older names of Paddle's, without an underscore.
    allreduce = all_reduce
    alltoall = all_to_all
    alltoall_single = all_to_all_single

    def _start_coalescing(self) -> None:
        """Do nothing: messages do not wait for each other."""

    def _end_coalescing(self, tasks: Sequence[Task] | None = None) -> None:
        """Do nothing: the messages are under way already."""

    def wait_for(self, tensor: Any) -> None:
        """Wait for the operations that are under way and read or write memory of a tensor.

        Raises:
            Error: what one of them ended with.
        """
        self._under_way.wait(tensor)

    # Inside

    def _issue(
        self,
        code: Op,
        send: Any,
        recv: Any,
        sync: bool,
        reduce_op: int = 0,
        root: int = -1,
        send_splits: Sequence[int] | None = None,
        recv_splits: Sequence[int] | None = None,
    ) -> Task:
        return self._run(
            code,
            send,
            recv,
            sync,
            reduce_op,
            root=root,
            send_splits=send_splits,
            recv_splits=recv_splits,
        )

    def _message(self, code: Op, send: Any, recv: Any, peer: int, sync: bool) -> Task:
        return self._run(code, send, recv, sync, peer=peer)

    def _run(
        self, code: Op, send: Any, recv: Any, sync: bool, reduce_op: int = 0, **fields: Any
    ) -> Task:
        flags = 0 if sync else ASYNC
        if not code.writes(fields.get("root", -1), self.core._rank):
            flags |= _native.QUIET
        operation = _native.submit(code, self._gid, send, recv, reduce_op, flags, **fields)
        if sync:
            return DONE
        work = Work(operation, code.label, recv, None)
        self._under_way.add(work, (send, recv))
        return Task(work)


def _code(op: Any) -> int:
    code = _CODES.get(op)
    if code is None:
        raise ArgumentError(f"op={op!r}: the MPI process group does not know this reduce op")
    return code


def _part(tensor: Any, parts: int, part: int) -> Any:
    """Return part number ``part`` of ``parts`` equal parts: a view if the tensor is contiguous."""
    flat = tensor.flatten() if not tensor.is_contiguous() else tensor.view([-1])
    length = flat.shape[0] // parts
    if flat.shape[0] % parts:
        raise ArgumentError(f"a tensor of {flat.shape[0]} elements has no {parts} equal parts")
    return flat[part * length : (part + 1) * length]
