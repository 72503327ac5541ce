"""Messages of a process group: what torch calls point to point. They are always asynchronous."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _python_dispatch

from .. import _native
from .._ops import ASYNC, Op
from ..errors import ArgumentError
from . import dispatch
from .argument_checks import Checked
from .arguments import resolved, writable
from .issue import tell_autograd
from .profile import state
from .work import OperationWork, Work

__all__ = ["TENSORS", "VERSIONS", "Messages"]

TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
"""The classes of tensors that the short ways take."""
VERSIONS = _native.ONCE if tell_autograd else _native.QUIET
"""The flag of submit for a tensor that is written to."""

# For the short ways: names of this module are the fastest to look up.
_SEND, _RECV = int(Op.SEND), int(Op.RECV)
_SENDS, _RECVS = ASYNC | _native.QUIET, ASYNC | VERSIONS


class Messages(Checked):
    """A group that sends and receives messages."""

    def _short(self, tensors: Any) -> Any:
        """Return the tensor of a message that is only submitted, as most are; else None.

        The time of these functions counts for tensors of a few bytes.
        """
        if (
            tensors.__class__ is list
            and len(tensors) == 1
            and self._batch is None
            and not self._extension.seconds
            and not state._is_profiler_enabled
            and not _python_dispatch._is_in_torch_dispatch_mode
            and dispatch.transforms() is None
        ):
            tensor = tensors[0]
            if tensor.__class__ in TENSORS and not tensor.is_neg() and not tensor.is_conj():
                return tensor
        return None

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Work:
        """Begin to send a tensor to a rank of the group. Always asynchronous."""
        tensor, gid = self._short(tensors), self._gid
        if tensor is not None:
            operation = _native.submit(_SEND, gid, tensor, None, 0, _SENDS, peer=dstRank, tag=tag)
            return OperationWork(operation, Op.SEND, (), gid)
        work: Work = self._send(tensors, dstRank, tag)
        return work

    def _send(self, tensors: Any, dstRank: int, tag: int = 0) -> Work:
        return self._message(Op.SEND, resolved(self._one(tensors, Op.SEND)), None, dstRank, tag)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Work:
        """Begin to receive a tensor from a rank of the group. Always asynchronous."""
        if srcRank < 0:  # to the core it would mean any rank
            raise ArgumentError(f"recv: {srcRank} is no rank of the group")
        _check_tag(tag)
        tensor, gid = self._short(tensors), self._gid
        if tensor is not None:
            operation = _native.submit(_RECV, gid, None, tensor, 0, _RECVS, peer=srcRank, tag=tag)
            return OperationWork(operation, Op.RECV, (tensor,), gid)
        work: Work = self._recv(tensors, srcRank, tag)
        return work

    def _recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Work:
        return self._receive(tensors, srcRank, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Begin to receive a tensor from any rank. ``Work.source_rank()`` returns which it was."""
        _check_tag(tag)
        return self._receive(tensors, -1, tag)

    def _receive(self, tensors: Any, peer: int, tag: int) -> Work:
        tensor = self._one(tensors, Op.RECV)
        target, finish = writable(tensor)
        return self._message(Op.RECV, None, target, peer, tag, (tensor,), finish)


def _check_tag(tag: int) -> None:
    """Raise ArgumentError for a tag that the core would take for any tag."""
    if tag < 0:
        raise ArgumentError(f"recv: tag={tag}: a tag is 0 or more, and none means any message")
