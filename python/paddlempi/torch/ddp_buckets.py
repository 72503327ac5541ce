"""Moves the gradient buckets of DistributedDataParallel into memory that other ranks can map.

torch's Reducer allocates a bucket, and calls ``allreduce`` with it in every backward. Here the
bucket's storage is moved, in place, into a shared memory file (torch's own ``_share_fd_cpu_``). All
tensors of torch follow. The heap adopts the file, so that the collectives of one node work in place
(:mod:`paddlempi.memory`). Each rank decides alone: the ranks tell each other in every call where
their tensors are. After the move ``bucket.buffer().is_shared()`` is true.

What is not of torch does not follow: an array of NumPy, an export by DLPack. There are many ways
to export a tensor, and not all of them can be watched. So a storage is moved only where no program
can have exported it:

* The program sees a bucket only if the gradients are views of it (``gradient_as_bucket_view``), or
  through a mode or a hook. Otherwise it is moved in the second backward that brings it, because the
  Reducer replaces its first buckets after one step.
* If gradients are views of it, it is moved in the first backward that brings it, or never. The
  gradient that came last has become a view only a moment ago, so nobody has exported that one. An
  export counts as a use of the gradient, or of the storage. So none exists if all gradients have
  the same number of uses, and the storage has one use for each.

A mere address (``data_ptr``) is no use that torch counts.

``PADDLEMPI_PROMOTE=0`` switches this off.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from .. import _native
from ..errors import Error
from ..tensors.torch import adopt
from . import backward

__all__ = ["consider", "expose", "know"]

LEAST = 4096
"""The length of a bucket in bytes up to which its values travel in the arrival; see
docs/algorithms.md."""

_in_graph_task = torch._C._current_graph_task_id

_on = os.environ.get("PADDLEMPI_PROMOTE", "1") != "0"

# By the address of the StorageImpl, which a finalizer of the storage removes.
_seen: set[int] = set()  # brought by one backward so far
_settled: set[int] = set()  # moved, or never to be moved

_parameters: weakref.WeakKeyDictionary[Any, dict[int, weakref.ref[Any]]]
_parameters = weakref.WeakKeyDictionary()
"""The parameters of the reducers of each group by ``id``: a model may have had several."""


def know(group: Any, parameters: Iterable[Any]) -> None:
    """Note the parameters of a new reducer."""
    alive = {i: one for i, one in _parameters.get(group, {}).items() if one() is not None}
    alive.update((id(one), weakref.ref(one)) for one in parameters)
    _parameters[group] = alive


def consider(group: Any, tensor: Any) -> None:
    """Move the storage of a tensor if it is a bucket, and nobody can have exported it.

    Args:
        group: the group of the collective.
        tensor: what an asynchronous ``allreduce`` was called with.
    """
    if not _on or _in_graph_task() == -1:
        return
    if tensor.layout is not torch.strided or not tensor.is_cpu:
        return
    storage = tensor.untyped_storage()
    key = storage._cdata
    if key in _settled or not _called_by_backward():
        return
    first = key not in _seen
    if first:
        weakref.finalize(storage, _forget, key).atexit = False
    if _movable(tensor, storage):
        grads = _views_of(group, key)
        if first and not grads:
            _seen.add(key)
            return
        if _unused_elsewhere(grads, key) if first else not grads:
            _move(storage)
    _seen.discard(key)
    _settled.add(key)


def _called_by_backward() -> bool:
    """Whether C++ has called in the thread that runs a backward: a function of Python has not."""
    frame = backward.outside()
    return frame is not None and frame.f_code is backward.BACKWARD


def expose(tensor: Any) -> None:
    """Never move the storage of a tensor, because a mode or a profiler sees the tensor."""
    if _on and _in_graph_task() != -1 and tensor.layout is torch.strided and tensor.is_cpu:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in _settled:
            _seen.discard(key)
            _settled.add(key)
            weakref.finalize(storage, _forget, key).atexit = False


def _views_of(group: Any, key: int) -> list[Any]:
    """Return the gradients whose storage it is."""
    grads = []
    for reference in _parameters.get(group, {}).values():
        parameter = reference()
        grad = None if parameter is None else parameter.grad
        if grad is None or grad.layout is not torch.strided:
            continue
        if grad.untyped_storage()._cdata == key:
            grads.append(grad)
    return grads


def _unused_elsewhere(grads: list[Any], key: int) -> bool:
    """Whether only torch uses a bucket whose views are gradients."""
    uses = {grad._use_count() for grad in grads}
    others = 2  # of the storage: the bucket itself, and the caller's object in Python
    return len(uses) == 1 and bool(torch._C._storage_Use_Count(key) == len(grads) + others)


def _movable(tensor: Any, storage: Any) -> bool:
    size = storage.nbytes()
    return (
        size > LEAST
        and tensor.storage_offset() == 0
        and tensor.numel() * tensor.element_size() == size
        and storage.resizable()
        and not storage.is_shared()
    )


def _move(storage: Any) -> None:
    global _on
    if not _native.control("info")["heap"]["adopts"]:
        _on = False  # the other ranks could not open the file
        return
    try:
        adopt(storage)
    except (Error, RuntimeError):  # torch's for a /dev/shm that is too small
        _on = False


def _forget(key: int) -> None:
    _seen.discard(key)
    _settled.discard(key)
