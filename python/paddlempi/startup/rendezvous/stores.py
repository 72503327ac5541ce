"""Stores: keys and values that the processes of a job share before they have anything else.

:class:`Store` is what a meeting needs of a store. :class:`TorchStore` adapts one of torch's;
``file_store`` and ``tcp_store`` have those of this package.

A value may be left from an earlier job: torchrun keeps its store, its port and all keys when it
restarts the ranks. So nothing is believed because it is in a store (``meeting``).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ...errors import DtypeError

__all__ = ["MemoryStore", "Store", "TorchStore", "adapt"]


class Store:
    """What a meeting needs of a store. An empty value is like none.

    Thread-safety: one thread at a time.
    """

    def get(self, keys: Sequence[str]) -> list[bytes]:
        """Return the values of ``keys``; ``b""`` for each one that has none. Does not wait."""
        raise NotImplementedError

    def set(self, key: str, value: bytes) -> None:
        """Give ``key`` a value."""
        raise NotImplementedError

    def swap(self, key: str, old: bytes, new: bytes) -> bool:
        """Give ``key`` the value ``new`` if it has the value ``old``; return whether it had."""
        raise NotImplementedError

    def delete(self, keys: Sequence[str]) -> None:
        """Remove ``keys``, also those that are not there."""
        raise NotImplementedError

    def moved(self) -> bool:
        """Whether processes that come now would come to another store than this one."""
        return False

    def reopen(self) -> None:
        """Go to the store that processes come to now. It has none of the values of this one."""

    def remove(self) -> None:
        """Remove the store, if it is this job's alone. Processes that have it open may go on."""

    def close(self) -> None:
        """End the use of the store by this process."""


class MemoryStore(Store):
    """A store of this process alone. Any thread may use it."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def get(self, keys: Sequence[str]) -> list[bytes]:
        return [self._values.get(key, b"") for key in keys]

    def set(self, key: str, value: bytes) -> None:
        with self._lock:
            self._values[key] = value

    def swap(self, key: str, old: bytes, new: bytes) -> bool:
        with self._lock:
            if self._values.get(key, b"") != old:
                return False
            self._values[key] = new
            return True

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._values.pop(key, None)


class TorchStore(Store):
    """A store of torch.

    Args:
        store: a ``torch.distributed.Store``, such as a TCPStore or a PrefixStore, which nobody else
            uses meanwhile.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    def get(self, keys: Sequence[str]) -> list[bytes]:
        # torch's get waits for a key that is not there, so ask first.
        if len(keys) > 1 and self._store.check(list(keys)):
            return [self._store.get(key) for key in keys]
        return [self._store.get(key) if self._store.check([key]) else b"" for key in keys]

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def swap(self, key: str, old: bytes, new: bytes) -> bool:
        there: bytes = self._store.compare_set(key, old, new)
        return there == new

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._store.delete_key(key)


def adapt(store: Any) -> Store:
    """Return ``store``, or an adaptor of one of torch's stores.

    The adaptor has a client of its own where torch can make one, so that no thread of the program
    waits for it.

    Raises:
        DtypeError: it is no store.
    """
    if isinstance(store, Store):
        return store
    if all(hasattr(store, name) for name in ("check", "get", "set", "compare_set", "delete_key")):
        clone = getattr(store, "clone", None)
        with suppress(RuntimeError, NotImplementedError):  # a store of one process has no second
            store = store if clone is None else clone()
        return TorchStore(store)
    raise DtypeError(
        f"init_process_group: store is a {type(store).__name__}, it must be a store of "
        "torch.distributed, such as a TCPStore"
    )
