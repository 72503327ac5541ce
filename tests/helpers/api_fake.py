"""A fake ``paddlempi._core`` for the unit tests of the API.

It records calls and returns the answers that a test has set. It moves no data: tests under mpirun
look at what the ranks exchange.
"""

from __future__ import annotations

import json
import os
import queue
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple

import pytest

WORLD = 5
"""The number of the group of all ranks; 0 names it too."""

FIELDS = {
    "root": -1,
    "peer": -1,
    "tag": 0,
    "timeout": -1.0,
    "scale": 1.0,
    "send_splits": None,
    "recv_splits": None,
    "peer2": -1,
    "tag2": 0,
}


class Call(NamedTuple):
    """The arguments of one submit, with its defaults filled in."""

    code: int
    group: int
    send: Any
    recv: Any
    reduce_op: int
    flags: int
    fields: dict[str, Any]


class FakeOperation:
    """The operation that submit returns if the flag ASYNC is set."""

    def __init__(self, core: FakeCore, number: int, send: Any, recv: Any) -> None:
        self._core, self.number = core, number
        self.done, self.error, self.source, self.device = False, None, -1, 0
        core.held[number] = send, recv

    @property
    def tensors(self) -> Any:
        return self._core.held.get(self.number)

    def wait(self, timeout: float = -1.0) -> None:
        core = self._core
        if not self.done:
            if self.number in core.pending:
                raise core.errors[23]("not ready")
            result = core.results.get(self.number)
            if isinstance(result, BaseException):
                self.error = result
            else:
                self.source, _, _, self.device = result or (-1, 0, -1, 0)
            if not self.device:
                core.held.pop(self.number, None)
            self.done = True
        if self.error is not None:
            raise self.error

    def test(self) -> bool:
        core = self._core
        queued = self.number in core.queued
        if self.number in core.pending or (queued and core.lost is None):
            return False
        with suppress(Exception):
            self.wait()
        if queued and core.lost is not None and self.error is None:
            self.error = core.lost
        self.device = 0
        core.held.pop(self.number, None)
        return True

    def order(self, stream: int) -> None:
        if self._core.lost is not None:
            raise self._core.lost
        self._core.ordered.append((self.number, stream))

    def let_go(self) -> None:
        self._core.held.pop(self.number, None)

    def notify(self, context: object, late: bool = False) -> bool:
        core = self._core
        if self.number not in core.pending:
            return False
        core.contexts.setdefault(self.number, (self, []))[1].append(context)
        return True

    def take_contexts(self) -> list[Any]:
        return []

    def __del__(self) -> None:
        self._core.released.append(self.number)
        self._core.collect()


class FakeCore(ModuleType):
    """The core of rank ``rank`` of ``size``. ``calls`` holds every submit with its defaults."""

    def __init__(self, rank: int = 1, size: int = 3) -> None:
        super().__init__("paddlempi._core")
        self.rank, self.size = rank, size
        self.calls: list[Call] = []
        self.refusals: list[tuple[int, int, str]] = []
        self.controls: list[tuple[str, dict[str, Any]]] = []
        self.answer: Any = None  # what a synchronous submit returns
        self.error: BaseException | None = None  # what the next submit raises
        self.next_number = 1
        self.pending: set[int] = set()
        self.results: dict[int, Any] = {}
        self.queued: set[int] = set()  # operations that ended on the host, but not on their device
        self.lost: BaseException | None = None  # the error of a device that is lost
        self.ordered: list[tuple[int, int]] = []
        self.held: dict[int, tuple[Any, Any]] = {}  # the tensors of works, by number
        self.released: list[int] = []
        self.contexts: dict[int, Any] = {}  # operations to report at their end, with contexts
        self.completions: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.registered: dict[type, Any] = {}
        self.errors: dict[int, type] = {}
        self.resolver: Any = None
        self.tuning_problem = ""  # why init takes no table of ways
        self.no_heaps = ""  # why init says that ranks cannot map each other's memory

    def set_errors(self, classes: dict[int, type]) -> None:
        self.errors = classes

    def set_resolver(self, resolver: Any) -> None:
        self.resolver = resolver

    def set_elsewhere(self, elsewhere: Any) -> None:
        self.elsewhere = elsewhere

    def torch_kernels(self, python: Any, from_handle: Any, to_handle: Any) -> bool:
        return False  # as beside an older torch

    def register(self, kind: type, describe: Any, bump: Any = None) -> None:
        self.registered[kind] = describe

    def submit(
        self,
        code: int,
        group: int,
        send: Any,
        recv: Any,
        reduce_op: int = 0,
        flags: int = 0,
        **fields: Any,
    ) -> Any:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        assert not fields.keys() - FIELDS.keys()
        self.calls.append(Call(code, group, send, recv, reduce_op, flags, FIELDS | fields))
        if flags & 1:
            number, self.next_number = self.next_number, self.next_number + 1
            self.pending.add(number)
            return FakeOperation(self, number, send, recv)
        return self.answer

    def refuse(self, code: int, group: int, message: str) -> None:
        self.refusals.append((code, group, message))

    def end(self, number: int, result: Any = None) -> None:
        """End an operation, with an error if ``result`` is an exception."""
        self.results[number] = result
        self.pending.discard(number)
        if isinstance(result, tuple) and result[3]:
            self.queued.add(number)
        if number in self.contexts:
            self.completions.put(self.contexts.pop(number))
        self.collect()

    def collect(self) -> None:
        """Drop the tensors of released works that have ended, on the host and on the device.

        If the device is lost, the end on the host is enough.
        """
        for number in [n for n in self.held if n in self.released]:
            if number not in self.pending and (number not in self.queued or self.lost):
                del self.held[number]

    def next_completions(self, timeout: float = -1.0, awake: Any = None) -> list[Any]:
        ended = self.completions.get()
        if awake is not None:
            awake()
        if ended is None:  # fresh_core ends the thread at the end of the test
            return []
        operation, contexts = ended
        with suppress(Exception):
            operation.wait()
        return contexts

    def ending(self, seconds: float) -> None:
        """Python ends. The threads of a fake wait in Python."""

    def awaited(self) -> list[Any]:
        return [context for _, contexts in self.contexts.values() for context in contexts]

    def control(self, method: str, arguments: str) -> str:
        given = json.loads(arguments)
        self.controls.append((method, given))
        if method == "init":
            if "world" in given:
                os.close(given["world"]["exchange"])  # as the core, which owns it
            return json.dumps(
                {
                    "group": WORLD,
                    "rank": self.rank,
                    "size": self.size,
                    "local_rank": 0,
                    "local_size": 2,
                    "no_heaps": self.no_heaps,
                    "generation": 0,
                    "tuning_problem": self.tuning_problem,
                }
            )
        if method == "new_group":
            ranks = given["ranks"]
            return json.dumps({"group": 7, "rank": ranks.index(self.rank)})
        if method == "info":
            return json.dumps({"mpi": None})
        return "{}"


@pytest.fixture
def fresh_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCore]:
    """Replace the core by a FakeCore that is not initialised. Undo it after the test."""
    import paddlempi
    from paddlempi import _native, future, group

    fake = FakeCore()
    monkeypatch.setitem(sys.modules, "paddlempi._core", fake)
    monkeypatch.setattr(_native, "_core", None)
    monkeypatch.setattr(_native, "submit", _native._unloaded)
    monkeypatch.setattr(group._state, "world", None)
    yield fake
    thread = future._thread
    if paddlempi.is_initialized():
        paddlempi.destroy_process_group()
    if thread is not None:
        fake.completions.put(None)
        thread.join(10)


@pytest.fixture
def core(fresh_core: FakeCore) -> FakeCore:
    """Return the FakeCore that ``fresh_core`` put in place, initialised."""
    import paddlempi

    paddlempi.init_process_group()
    return fresh_core
