"""Windows of torch: ``dist._new_window``, one-sided access to tensors of other ranks.

torch's interface is private: ``c10d::Window``, the same in torch 2.14 and 2.15. All names of it
that paddlempi uses are in this module. Python can neither make nor subclass a ``c10d::Window``. So
:func:`new_window` returns an object of this module that has its methods.

One thing differs from NCCL's windows. There a ``put`` also raises a signal, which ``wait_signal``
takes. Here a ``put`` only writes; ``signal`` raises a signal, which arrives after the puts before.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch._C._distributed_c10d as c10d

from .. import window
from .._ops import Op
from ..arguments import refuse
from ..errors import ArgumentError, DtypeError, Error, TimeoutError, UnsupportedError
from ..tensors import torch as tensors
from .arguments import resolved
from .errors import NotReadyError
from .issue import Issuer
from .work import DONE, Work

__all__ = ["Window", "new_window", "supported"]

_VERSIONS = ("2.14", "2.15")
_NAMES = ("PutOptions", "SignalOptions", "WaitSignalOptions", "WindowAccessType", "WindowAttr")


def supported() -> bool:
    """Whether this torch has the windows that this module knows."""
    return _refusal() is None


def _refusal() -> str | None:
    version = torch.__version__
    if ".".join(version.split(".")[:2]) not in _VERSIONS:
        return f"torch {version}: paddlempi knows the windows of torch {' and '.join(_VERSIONS)}"
    missing = [name for name in _NAMES if not hasattr(c10d, name)]
    return f"torch {version} has no {', '.join(missing)}" if missing else None


def new_window(group: Issuer, tensor: Any = None) -> Window:
    """Return a new window of a group. Collective.

    Args:
        group: the group.
        tensor: what to register at once; None: nothing yet.

    Raises:
        UnsupportedError: torch has another version; the text names it.
    """
    refusal = _refusal()
    if refusal is not None:
        raise UnsupportedError(f"new_window: {refusal}; use paddlempi.Window")
    made = Window(group)
    if tensor is not None:
        made.tensor_register(tensor)
    return made


class Window:
    """A window over tensors of all ranks of a group, with the methods of ``c10d::Window``.

    Offsets are elements, and ranks are ranks of the group. Works of ``put`` and ``signal`` have
    ended when they are returned.

    Thread-safety: all methods may be called from any thread.

    Args:
        group: the group.

    Source: ``c10d::Window`` of torch 2.14 and 2.15.
    """

    def __init__(self, group: Issuer) -> None:
        self._group = group
        self._core: window.Window | None = None

    def tensor_register(self, tensor: Any, owning: bool = True) -> None:
        """Make this rank's tensor accessible to all ranks. Collective.

        Args:
            tensor: a contiguous tensor in host memory. The sizes of the ranks' tensors may differ,
                their dtypes may not. It lies in a heap (``paddlempi.empty``, ``allocate_tensor`` of
                the group), or its storage is moved into one, in place.
            owning: torch's argument. The window keeps the tensor alive in any case, because other
                ranks write to its memory.

        Raises:
            ArgumentError: a tensor is registered already.
            DtypeError: it is no tensor of torch.
            UnsupportedError: the tensor's memory cannot be moved.
        """
        if self._core is not None:
            raise ArgumentError(
                "tensor_register: this window has a tensor: call tensor_deregister first"
            )
        group = self._group._core
        if not isinstance(tensor, torch.Tensor):  # a number would be a shape
            kind = type(tensor).__name__
            text = f"tensor_register: got a {kind}, it must be a tensor of torch"
            refuse(Op.ALL_GATHER, group, DtypeError(text))
        self._core = window.Window(tensor, group=group)

    def tensor_deregister(self) -> None:
        """Wait until all ranks call it, and end the access to their tensors. Collective."""
        core = self._registered("tensor_deregister")
        core.free()
        self._core = None

    def put(
        self,
        tensor: Any,
        dst_rank: int,
        target_offset_nelems: int,
        async_op: bool,
        opts: Any = None,
    ) -> Work:
        """Write a tensor into the tensor of a rank. It raises no signal.

        The tensor may be used again when the work has ended. What it wrote is there when a later
        ``signal`` has arrived.

        Args:
            tensor: of the window's dtype. It is written in the order of its elements.
            dst_rank: the rank that is written to.
            target_offset_nelems: the first element that is written.
            async_op: without effect.
            opts: torch's ``PutOptions``, without effect.
        """
        self._registered("put").put(resolved(tensor), dst_rank, target_offset_nelems)
        return DONE

    def map_remote_tensor(self, rank: int) -> Any:
        """Return the tensor of a rank of this node, without a copy.

        It stays valid after ``tensor_deregister``, and then shows what its owner does with it.

        Raises:
            UnsupportedError: the memory of that rank cannot be mapped here.
        """
        core = self._registered("map_remote_tensor")
        if rank == core.rank():
            return core.local
        mapped = core._map(rank)
        if mapped is None:
            raise UnsupportedError(
                f"map_remote_tensor: the memory of rank {rank} cannot be mapped here: it is on "
                "another node, or there is no shared memory; use put, or get of paddlempi.Window"
            )
        return tensors.over(mapped, core.dtype, core.shape_of(rank))

    def signal(self, peer_rank: int, async_op: bool, opts: Any = None) -> Work:
        """Raise a signal at a rank. It arrives after this rank's puts to it before.

        Args:
            peer_rank: the rank.
            async_op: without effect.
            opts: torch's ``SignalOptions``, without effect.
        """
        self._registered("signal").signal(peer_rank)
        return DONE

    def wait_signal(self, peer_rank: int, async_op: bool, opts: Any = None) -> Work:
        """Wait for a signal of a rank, and take it. Each call takes one.

        Args:
            peer_rank: the rank that raises the signal.
            async_op: return at once. The signal is taken when the program waits for the work, or
                asks whether it has ended.
            opts: torch's ``WaitSignalOptions``: its ``timeout``, if it is above 0, is the deadline.

        Raises:
            TimeoutError: the deadline ran out.
        """
        core = self._registered("wait_signal")
        seconds = None if opts is None else opts.timeout.total_seconds()
        work = _Signal(core, peer_rank, seconds if seconds and seconds > 0 else None)
        if async_op:
            return work
        work.wait()
        return DONE

    def get_attr(self, peer_rank: int) -> Any:
        """Return torch's ``WindowAttr``: UNIFIED if a rank's tensor can be mapped."""
        core = self._registered("get_attr")
        attr = c10d.WindowAttr()
        kinds = c10d.WindowAccessType
        attr.access_type = kinds.SEPARATE if core._map(peer_rank) is None else kinds.UNIFIED
        return attr

    def _registered(self, method: str) -> window.Window:
        if self._core is None:
            raise ArgumentError(f"{method}: this window has no tensor: call tensor_register first")
        return self._core


_AT_ONCE = 1e-6  # seconds, of a wait that only looks


class _Signal(Work):
    """A signal that is to come. ``wait`` or ``is_completed`` takes it, whichever finds it first.

    Args:
        core: the window.
        rank: the rank that raises the signal.
        seconds: the deadline, from now on; None: that of the window.
    """

    def __init__(self, core: window.Window, rank: int, seconds: float | None) -> None:
        super().__init__()
        self._core, self._rank = core, rank
        self._end = None if seconds is None else time.monotonic() + seconds
        self._taking = threading.Lock()
        self._taken = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Do as :meth:`Work.wait`."""
        limit = 0.0 if timeout is None else timeout.total_seconds()
        self._take(limit if limit > 0 else None)
        if self._failed is not None:
            raise self._failed
        if not self._taken:
            raise NotReadyError(f"wait_signal: rank {self._rank} has raised no signal in {limit} s")
        return True

    def is_completed(self) -> bool:
        """Whether the signal has come, or the wait has failed. Does not wait."""
        self._take(_AT_ONCE)
        return self._taken or self._failed is not None

    def get_future(self) -> Any:
        """Raise UnsupportedError: nobody but a waiting program takes signals.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("get_future: the work of a wait_signal has none: wait for the work")

    def _take(self, limit: float | None) -> None:
        """Take the signal if it comes within ``limit`` seconds and before the deadline."""
        if not self._taking.acquire(timeout=-1 if limit is None else limit):
            return  # another thread waits for the signal
        try:
            if self._taken or self._failed is not None:
                return
            left = None if self._end is None else max(self._end - time.monotonic(), _AT_ONCE)
            patient = limit is None or (left is not None and left <= limit)
            try:
                self._core.wait_signal(self._rank, left if patient else limit)
                self._taken = True
            except TimeoutError as error:
                if patient:
                    self._failed = error
            except Error as error:
                self._failed = error
        finally:
            self._taking.release()
