"""Moves the gradient buckets of DistributedDataParallel into memory that other ranks can map.

torch's Reducer allocates a bucket, and calls ``allreduce`` with it in every backward. Here the
bucket's storage is moved, in place, into a shared memory file (torch's own ``_share_fd_cpu_``). All
views of the storage follow. The heap adopts the file, so that the collectives of one node work in
place (:mod:`paddlempi.memory`).

A storage is moved in the second backward that brings it, because the Reducer replaces its first
buckets after one step. Each rank decides alone: the ranks tell each other in every call where their
tensors are. After the move ``bucket.buffer().is_shared()`` is true. A storage is not moved if its
memory was given to NumPy or exported by DLPack, because such an alias would not follow.

``PADDLEMPI_PROMOTE=0`` switches this off.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from typing import Any

import torch
import torch.utils.dlpack
from torch.autograd.graph import _engine_run_backward

from .. import _native
from ..errors import Error

__all__ = ["consider", "watch_exports"]

LEAST = 4096
"""The length of a bucket in bytes up to which its values travel in the arrival; see
docs/algorithms.md."""

_BACKWARD = _engine_run_backward.__code__
_in_graph_task = torch._C._current_graph_task_id

_on = os.environ.get("PADDLEMPI_PROMOTE", "1") != "0"

# By the address of the StorageImpl, which a finalizer of the storage removes.
_seen: set[int] = set()  # brought by one backward so far
_settled: set[int] = set()  # moved, or never to be moved
_exported: set[int] = set()  # exported by DLPack


def consider(tensor: Any, depth: int) -> None:
    """Move the storage of a tensor if it is a bucket that was seen in an earlier backward.

    Args:
        tensor: what an asynchronous ``allreduce`` was called with.
        depth: the number of frames between this function and the caller of ``allreduce``.
    """
    if not _on or _in_graph_task() == -1 or sys._getframe(depth + 1).f_code is not _BACKWARD:
        return
    if tensor.layout is not torch.strided or not tensor.is_cpu:
        return
    storage = tensor.untyped_storage()
    key = storage._cdata
    if key in _settled:
        return
    if key not in _seen:
        _seen.add(key)
        weakref.finalize(storage, _forget, key).atexit = False
        return
    _seen.discard(key)
    _settled.add(key)
    if _movable(tensor, storage) and key not in _exported:
        _move(tensor, storage)


def _movable(tensor: Any, storage: Any) -> bool:
    size = storage.nbytes()
    return (
        size > LEAST
        and tensor.storage_offset() == 0
        and tensor.numel() * tensor.element_size() == size
        and storage.resizable()
        and not storage.is_shared()
    )


def _move(tensor: Any, storage: Any) -> None:
    global _on
    if not _native.control("info")["heap"]["adopts"]:
        _on = False  # the other ranks could not open the file
        return
    try:
        descriptor, size = storage._share_fd_cpu_()
        answer = _native.control(
            "heap_adopt", descriptor=descriptor, address=tensor.data_ptr(), bytes=size
        )
    except (Error, RuntimeError):  # torch's for a /dev/shm that is too small
        _on = False
        return
    generation = answer["generation"]
    weakref.finalize(storage, _disown, generation).atexit = False


def _forget(key: int) -> None:
    _seen.discard(key)
    _settled.discard(key)
    _exported.discard(key)


def _disown(generation: int) -> None:
    if not _native.load().forked():
        _native.control("heap_disown", generation=generation)


def _note(tensor: Any) -> None:
    if tensor.layout is torch.strided and tensor.is_cpu:
        storage = tensor.untyped_storage()
        if storage._cdata not in _exported:
            _exported.add(storage._cdata)
            weakref.finalize(storage, _forget, storage._cdata).atexit = False


def watch_exports() -> None:
    """Have exports by DLPack noted, once in a process. torch itself does not mark them."""
    if not _on or hasattr(torch.Tensor.__dlpack__, "_paddlempi"):
        return

    @functools.wraps(torch.Tensor.__dlpack__)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        _note(self)
        return export(self, *args, **options)

    @functools.wraps(torch.utils.dlpack.to_dlpack)
    def function(tensor: Any, *args: Any, **options: Any) -> Any:
        _note(tensor)
        return to_capsule(tensor, *args, **options)

    export, to_capsule = torch.Tensor.__dlpack__, torch.utils.dlpack.to_dlpack
    method._paddlempi = True  # type: ignore[attr-defined]
    torch.Tensor.__dlpack__ = method
    torch.utils.dlpack.to_dlpack = function
