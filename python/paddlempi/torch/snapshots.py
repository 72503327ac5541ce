"""The copies of state dicts that ``async_save`` writes while training goes on."""

from __future__ import annotations

import copy
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from .. import memory
from .._ops import DTYPE_BY_NAME
from ..errors import DtypeError, TimeoutError

__all__ = ["Snapshots"]

_POLL = 0.01
"""Seconds between two looks whether a thread has ended, which tells nobody."""


class Snapshots:
    """The copy of a state dict that ``async_save`` writes, and the wait for the one before.

    A copy is needed as long as the thread runs that writes it; without one, until it is dropped.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._changed = threading.Condition()
        self._used = False
        self._thread: threading.Thread | None = None
        self._written = self._number = 0
        self._tensors: dict[Any, Any] = {}

    def progress(self, done: int) -> None:
        """Tell that bytes were written."""
        self._written += done

    def _dropped(self, number: int) -> None:
        """Note that nobody has a copy any more. A collector of garbage may call it anywhere."""
        if number == self._number:
            self._used = False

    def written_by(self, thread: threading.Thread) -> None:
        """Tell which thread writes the copy, if there is one."""
        with self._changed:
            if self._used:
                self._thread = thread

    def clear(self) -> None:
        """Free the memory of the copy."""
        self._tensors = {}

    def take(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Wait until the copy is needed no more, and make a new one."""
        with self._changed:
            written, until = self._written, time.monotonic() + self._timeout
            while self._used and (self._thread is None or self._thread.is_alive()):
                if self._written != written:
                    written, until = self._written, time.monotonic() + self._timeout
                if time.monotonic() > until:
                    raise TimeoutError(
                        "async_save: the save before has written nothing for "
                        f"{self._timeout:g} s: wait for its future, and look at its error"
                    )
                self._changed.wait(_POLL)
            self._used, self._thread = True, None
            self._number += 1
            number = self._number
        try:
            old, self._tensors = self._tensors, {}
            found = _Copier(old, self._tensors).copied(state_dict, ())
        except BaseException:
            self._dropped(number)
            raise
        snapshot = _Snapshot(found)
        weakref.finalize(snapshot, self._dropped, number).atexit = False
        return snapshot


class _Snapshot(dict[str, Any]):
    """A copy of a state dict, to which there can be weak references."""


class _Copier:
    """Copies the tensors of a state dict into the heap, into those of an older copy if they fit.

    Tied tensors, which are the same memory under several names, have one copy.
    """

    def __init__(self, old: dict[Any, Any], new: dict[Any, Any]) -> None:
        self._old, self._new = old, new
        self._tied: dict[Any, Any] = {}
        self._taken: set[int] = set()

    def copied(self, value: Any, path: tuple[Any, ...]) -> Any:
        """Return a copy of a part of a state dict."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, Mapping):
            return {key: self.copied(one, (*path, key)) for key, one in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.copied(one, (*path, n)) for n, one in enumerate(value))
        return copy.deepcopy(value)

    def _tensor(self, tensor: Any, path: tuple[Any, ...]) -> Any:
        from torch.distributed.tensor import DTensor

        tensor = tensor.detach()
        if isinstance(tensor, DTensor):
            return DTensor.from_local(
                self._tensor(tensor.to_local(), path),
                tensor.device_mesh,
                tensor.placements,
                run_check=False,
                shape=tensor.shape,
                stride=tensor.stride(),
            )
        if type(tensor) is not torch.Tensor and hasattr(tensor, "local_shards"):
            raise DtypeError(
                f"async_save: {'.'.join(map(str, path))} is a {type(tensor).__name__}; give a "
                "state dict of DTensors"
            )
        memory_of = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        there = self._tied.get(memory_of) if tensor.numel() else None
        if there is None:
            there = self._old.get(path)
            if (
                there is None
                or there.shape != tensor.shape
                or there.dtype != tensor.dtype
                or id(there) in self._taken  # it was that of tied tensors
            ):
                there = _new(tensor)
            self._taken.add(id(there))
            self._tied[memory_of] = there.copy_(tensor)
        self._new[path] = there
        return there


def _new(tensor: Any) -> Any:
    name = str(tensor.dtype).removeprefix("torch.")
    if name in DTYPE_BY_NAME:
        return memory.empty(tuple(tensor.shape), name, "torch")
    return torch.empty(tensor.shape, dtype=tensor.dtype)
