"""A ``paddlempi._core`` in Python for the unit tests of the API: it records, and answers as told.

It moves no data: what the ranks exchange is tested under mpirun.
"""

from __future__ import annotations

import json
import queue
from types import ModuleType
from typing import Any

WORLD = 5
"""The number of the group of all ranks; 0 names it too."""

SUBMIT_DEFAULTS = (0, 0, -1, -1, 0, -1.0, 1.0, None, None, -1, 0)


class FakeCore(ModuleType):
    """Rank ``rank`` of ``size``; ``calls`` holds every submit with its defaults filled in."""

    def __init__(self, rank: int = 1, size: int = 3) -> None:
        super().__init__("paddlempi._core")
        self.rank, self.size = rank, size
        self.calls: list[tuple[Any, ...]] = []
        self.refusals: list[tuple[int, int, str]] = []
        self.controls: list[tuple[str, dict[str, Any]]] = []
        self.answer: Any = None  # of a synchronous submit
        self.error: BaseException | None = None  # what the next submit raises
        self.next_handle = 1
        self.pending: set[int] = set()
        self.results: dict[int, Any] = {}
        self.queued: set[int] = set()  # what has ended for the host and not on its device
        self.lost: BaseException | None = None  # what the device answers
        self.ordered: list[tuple[int, int]] = []
        self.held: dict[int, tuple[Any, Any]] = {}  # the tensors of works, as the C shim keeps them
        self.released: list[int] = []
        self.notified: list[int] = []
        self.completions: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.registered: dict[type, Any] = {}
        self.errors: dict[int, type] = {}
        self.resolver: Any = None

    def set_errors(self, classes: dict[int, type]) -> None:
        self.errors = classes

    def set_resolver(self, resolver: Any) -> None:
        self.resolver = resolver

    def register(self, kind: type, describe: Any) -> None:
        self.registered[kind] = describe

    def submit(self, *arguments: Any) -> Any:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        full = arguments + SUBMIT_DEFAULTS[len(arguments) - 4 :]
        self.calls.append(full)
        if full[5] & 1:
            handle, self.next_handle = self.next_handle, self.next_handle + 1
            self.pending.add(handle)
            self.held[handle] = arguments[2], arguments[3]
            return handle
        return self.answer

    def refuse(self, code: int, group: int, message: str) -> None:
        self.refusals.append((code, group, message))

    def end(self, handle: int, result: Any = None) -> None:
        """The operation ends: with an error if ``result`` is one."""
        self.results[handle] = result
        self.pending.discard(handle)
        if isinstance(result, tuple) and result[3]:
            self.queued.add(handle)
        if handle in self.notified:
            self.completions.put(handle)
        self.collect()

    def wait(self, handle: int, timeout: float) -> Any:
        if handle in self.pending:
            raise self.errors[23]("not ready")
        result = self.results.get(handle)
        if isinstance(result, BaseException):
            raise result
        if handle not in self.queued:
            self.let_go(handle)
        return result

    def test(self, handle: int) -> bool:
        if self.lost is not None and handle in self.queued:
            raise self.lost
        return handle not in self.pending and handle not in self.queued

    def order(self, handle: int, stream: int) -> None:
        if self.lost is not None:
            raise self.lost
        self.ordered.append((handle, stream))

    def release(self, handle: int) -> None:
        self.released.append(handle)
        self.collect()

    def let_go(self, handle: int) -> None:
        self.held.pop(handle, None)

    def collect(self) -> None:
        """Let go of the tensors of works that were released and are over, on the device too."""
        for handle in [h for h in self.held if h in self.released]:
            if handle not in self.pending and (handle not in self.queued or self.lost):
                self.let_go(handle)

    def notify(self, handle: int) -> None:
        self.notified.append(handle)
        if handle not in self.pending:
            self.completions.put(handle)

    def next_completion(self, timeout: float) -> int:
        return self.completions.get()

    def control(self, method: str, arguments: str) -> str:
        given = json.loads(arguments)
        self.controls.append((method, given))
        if method == "init":
            return json.dumps(
                {
                    "group": WORLD,
                    "rank": self.rank,
                    "size": self.size,
                    "local_rank": 0,
                    "local_size": 2,
                }
            )
        if method == "new_group":
            ranks = given["ranks"]
            return json.dumps({"group": 7, "rank": ranks.index(self.rank)})
        if method == "info":
            return json.dumps({"mpi": None})
        return "{}"
