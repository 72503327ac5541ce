"""The process group that ``paddle.distributed`` calls, in the place of Paddle's C++ one.

Its methods are those of Paddle's ``core.ProcessGroup``: ranks are ranks of the group, what
is not a root passes lists that nobody reads, ``sync`` False returns a task that runs. Errors
and deadlines are :mod:`paddlempi.collectives`'.
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
    """A group of ranks whose collectives go over MPI; made by ``new_group``, not by users.

    Args:
        core: the group of the core, of which this rank is a member.
    """

    def __init__(self, core: ProcessGroup) -> None:
        self.core = core
        self._gid = core._id
        self._under_way = UnderWay()

    def name(self) -> str:
        """``"MPI"``, as Paddle's own say ``"NCCL"`` and ``"GLOO"``."""
        return "MPI"

    def rank(self) -> int:
        """This process's rank in the group."""
        return self.core._rank

    def size(self) -> int:
        """The number of members."""
        return len(self.core._ranks)

    # Collectives

    def all_reduce(self, tensor: Any, op: Any, sync: bool = False) -> Task:
        """Reduce in place over the group."""
        code = _CODES.get(op)
        if not sync or code is None:
            return self._issue(Op.ALL_REDUCE, None, tensor, sync, _code(op))
        # The short way of what is called most, the same as the long one.
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
        """Give every member the tensors of all, one after the other in one."""
        return self._issue(Op.ALL_GATHER, tensor, output, sync)

    def reduce_scatter(self, output: Any, inputs: _Tensors, op: Any, sync: bool = False) -> Task:
        """Reduce a list of tensors, number i of it for member i."""
        return self._issue(Op.REDUCE_SCATTER, list(inputs), output, sync, _code(op))

    def reduce_scatter_tensor(self, output: Any, tensor: Any, op: Any, sync: bool = False) -> Task:
        """Reduce a tensor and give its i-th equal part to member i."""
        return self._issue(Op.REDUCE_SCATTER, tensor, output, sync, _code(op))

    def scatter(self, output: Any, inputs: _Tensors, src: int, sync: bool = False) -> Task:
        """Give member i tensor i of the list of ``src``."""
        send = list(inputs) if src == self.core._rank else None
        return self._issue(Op.SCATTER, send, output, sync, root=src)

    def scatter_tensor(self, output: Any, tensor: Any, src: int, sync: bool = False) -> Task:
        """Give member i the i-th equal part of the tensor of ``src``."""
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
        """Send tensor i to member i and receive one from each; sizes may differ."""
        return self._issue(Op.ALL_TO_ALL, list(inputs), list(outputs), sync)

    def all_to_all_tensor(self, output: Any, tensor: Any, sync: bool = False) -> Task:
        """Send equal part i of a tensor to member i."""
        return self._issue(Op.ALL_TO_ALL, tensor, output, sync)

    def all_to_all_single(
        self,
        output: Any,
        tensor: Any,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        sync: bool = False,
    ) -> Task:
        """Split along the first dimension, part i to member i; no sizes: equal parts."""
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

    # Paddle has two names for each of these; here what is waited for is ordered with the
    # calculation's stream, the current one.

    def all_reduce_on_calc_stream(self, tensor: Any, op: Any) -> Task:
        """As ``all_reduce``, waited for."""
        return self.all_reduce(tensor, op, True)

    def broadcast_on_calc_stream(self, tensor: Any, src: int) -> Task:
        """As ``broadcast``, waited for."""
        return self.broadcast(tensor, src, True)

    def reduce_on_calc_stream(self, tensor: Any, dst: int, op: Any) -> Task:
        """As ``reduce``, waited for."""
        return self.reduce(tensor, dst, op, True)

    def all_gather_on_calc_stream(self, outputs: _Tensors, tensor: Any) -> Task:
        """As ``all_gather``, waited for."""
        return self.all_gather(outputs, tensor, True)

    def all_gather_into_tensor_on_calc_stream(self, output: Any, tensor: Any) -> Task:
        """As ``all_gather_into_tensor``, waited for."""
        return self.all_gather_into_tensor(output, tensor, True)

    def reduce_scatter_on_calc_stream(self, output: Any, inputs: _Tensors, op: Any) -> Task:
        """As ``reduce_scatter``, waited for."""
        return self.reduce_scatter(output, inputs, op, True)

    def reduce_scatter_tensor_on_calc_stream(self, output: Any, tensor: Any, op: Any) -> Task:
        """As ``reduce_scatter_tensor``, waited for."""
        return self.reduce_scatter_tensor(output, tensor, op, True)

    def scatter_on_calc_stream(self, output: Any, inputs: _Tensors, src: int) -> Task:
        """As ``scatter``, waited for."""
        return self.scatter(output, inputs, src, True)

    def scatter_tensor_on_calc_stream(self, output: Any, tensor: Any, src: int) -> Task:
        """As ``scatter_tensor``, waited for."""
        return self.scatter_tensor(output, tensor, src, True)

    def all_to_all_on_calc_stream(self, outputs: _Tensors, inputs: _Tensors) -> Task:
        """As ``all_to_all``, waited for."""
        return self.all_to_all(outputs, inputs, True)

    def all_to_all_tensor_on_calc_stream(self, output: Any, tensor: Any) -> Task:
        """As ``all_to_all_tensor``, waited for."""
        return self.all_to_all_tensor(output, tensor, True)

    def all_to_all_single_on_calc_stream(
        self, output: Any, tensor: Any, output_sizes: Sequence[int], input_sizes: Sequence[int]
    ) -> Task:
        """As ``all_to_all_single``, waited for."""
        return self.all_to_all_single(output, tensor, output_sizes, input_sizes, True)

    # Point to point

    def send(self, tensor: Any, peer: int, sync: bool = False) -> Task:
        """Send to a rank of the group."""
        return self._message(Op.SEND, tensor, None, peer, sync)

    def recv(self, tensor: Any, peer: int, sync: bool = False) -> Task:
        """Receive from a rank of the group."""
        return self._message(Op.RECV, None, tensor, peer, sync)

    def send_on_calc_stream(self, tensor: Any, peer: int) -> Task:
        """As ``send``, waited for."""
        return self.send(tensor, peer, True)

    def recv_on_calc_stream(self, tensor: Any, peer: int) -> Task:
        """As ``recv``, waited for."""
        return self.recv(tensor, peer, True)

    def send_partial(
        self, tensor: Any, peer: int, parts: int, part: int, sync: bool = False
    ) -> Task:
        """Send part number ``part`` of ``parts`` equal ones."""
        return self._message(Op.SEND, _part(tensor, parts, part), None, peer, sync)

    def recv_partial(
        self, tensor: Any, peer: int, parts: int, part: int, sync: bool = False
    ) -> Task:
        """Receive into part number ``part`` of ``parts`` equal ones."""
        return self._message(Op.RECV, None, _part(tensor, parts, part), peer, sync)

    def all_gather_partial(
        self, output: Any, tensor: Any, parts: int, part: int, sync: bool = False
    ) -> Task:
        """Give every member part ``part`` of each tensor, one after the other."""
        return self._issue(Op.ALL_GATHER, _part(tensor, parts, part), output, sync)

    def send_partial_on_calc_stream(self, tensor: Any, peer: int, parts: int, part: int) -> Task:
        """As ``send_partial``, waited for."""
        return self.send_partial(tensor, peer, parts, part, True)

    def recv_partial_on_calc_stream(self, tensor: Any, peer: int, parts: int, part: int) -> Task:
        """As ``recv_partial``, waited for."""
        return self.recv_partial(tensor, peer, parts, part, True)

    def all_gather_partial_on_calc_stream(
        self, output: Any, tensor: Any, parts: int, part: int
    ) -> Task:
        """As ``all_gather_partial``, waited for."""
        return self.all_gather_partial(output, tensor, parts, part, True)

    # The names without an underline are older ones.
    allreduce = all_reduce
    alltoall = all_to_all
    alltoall_single = all_to_all_single

    def _start_coalescing(self) -> None:
        """Nothing to prepare: messages do not wait for each other."""

    def _end_coalescing(self, tasks: Sequence[Task] | None = None) -> None:
        """Nothing to start: they are under way already."""

    def wait_for(self, tensor: Any) -> None:
        """Wait for the operations under way that read or write memory of a tensor.

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
    """Part number ``part`` of ``parts`` equal ones of a contiguous tensor, a view."""
    flat = tensor.flatten() if not tensor.is_contiguous() else tensor.view([-1])
    length = flat.shape[0] // parts
    if flat.shape[0] % parts:
        raise ArgumentError(f"a tensor of {flat.shape[0]} elements has no {parts} equal parts")
    return flat[part * length : (part + 1) * length]
