"""A world of one process whose servers are real tables in it, without MPI.

It takes the place of the loaded core: calls of the parameter server are answered here, by tables
that ``table_new`` makes, and everything else goes to the real core. What several ranks do is tested
with real ranks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from paddlempi._ops import TableCall

WORLD = 5


class PsCore:
    """The core of rank ``rank`` of ``size``.

    An all_gather gives every rank what this rank has told, unless ``others`` has something else.
    """

    def __init__(self, real: Any, rank: int, size: int) -> None:
        self._real = real
        self.rank, self.size = rank, size
        self.controls: list[tuple[str, dict[str, Any]]] = []
        self.requests: list[tuple[int, list[str]]] = []  # of tables(): the code, and the tables
        self.steps = 0
        self.rates: list[Any] = []  # of the last push, for each table
        self.others: dict[int, bytes] = {}
        self.refusals: list[str] = []
        self.extra = ""  # of the last ps_save
        self.tables_by_name: dict[str, int] = {}
        self.configs: dict[str, Any] = {}
        self.ways: dict[str, str] = {}  # how the ids of a table are dealt to servers
        self.offsets: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def submit(
        self, code: int, group: int, send: Any, recv: Any, *more: Any, **fields: Any
    ) -> None:
        told = memoryview(send).cast("B")
        received = memoryview(recv).cast("B")
        for rank in range(self.size):
            received[rank * len(told) : (rank + 1) * len(told)] = self.others.get(rank, told)

    def refuse(self, code: int, group: int, message: str) -> None:
        self.refusals.append(message)

    def control(self, method: str, request: str) -> str:
        given = json.loads(request)
        if not method.startswith("ps_") and method != "new_group":
            return str(self._real.control(method, request))
        self.controls.append((method, given))
        if method == "new_group":
            return json.dumps({"group": 7, "rank": given["ranks"].index(self.rank)})
        if method == "ps_declare":
            return json.dumps({"table": self._declare(**given)})
        if method == "ps_restore":
            return json.dumps(
                {
                    "step": given["step"] or 9,
                    "extra": self.extra,
                    "rows": 5,
                    "tables": ["t"],
                    "skipped": [],
                }
            )
        if method == "ps_save":
            self.extra = given["extra"]
        if method == "ps_close":
            for number in self.tables_by_name.values():
                self._real.control("table_free", json.dumps({"table": number}))
            self.tables_by_name.clear()
        return "{}"

    def _declare(self, name: str, by: str, offset: int = 0, **config: Any) -> int:
        self.ways[name], self.offsets[name] = by, offset
        if name in self.tables_by_name:
            assert self.configs[name] == config
        else:
            made = json.loads(self._real.control("table_new", json.dumps(config)))
            self.tables_by_name[name], self.configs[name] = made["table"], config
        return self.tables_by_name[name]

    def table(self, code: int, number: int, *arguments: Any) -> int:
        self.steps += code == TableCall.PUSH and number in self.tables_by_name.values()
        return int(self._real.table(code, number, *arguments))

    def tables(self, code: int, entries: tuple[tuple[Any, Any, Any, Any], ...]) -> int:
        names = {number: name for name, number in self.tables_by_name.items()}
        assert isinstance(entries, tuple) and entries
        self.requests.append((code, [names[n] for n, ids, _, _ in entries if len(ids)]))
        assert len({entry[0] for entry in entries}) == len(entries)
        if code == TableCall.PUSH:
            self.steps += 1
            self.rates = [entry[3] for entry in entries]
        for number, ids, values, rate in entries:
            self._real.table(code, number, ids, values, None, rate)
        return 0

    def called(self) -> list[str]:
        """The names of the control methods that were called, in order."""
        return [method for method, _ in self.controls]


def install(monkeypatch: pytest.MonkeyPatch, rank: int = 0, size: int = 1) -> PsCore:
    """Put a PsCore in the place of the loaded core, in a world of ``size`` ranks."""
    from paddlempi import _native, group

    fake = PsCore(_native.load(), rank, size)
    monkeypatch.setattr(_native, "_core", fake)
    monkeypatch.setattr(_native, "submit", fake.submit)
    monkeypatch.setattr(group._state, "world", group.ProcessGroup(WORLD, rank, range(size)))
    monkeypatch.setattr(group._state, "local_rank", rank)
    monkeypatch.setattr(group._state, "local_size", size)
    return fake


@pytest.fixture
def ps_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[PsCore]:
    """A PsCore of one rank, without a session; one that a test leaves is ended."""
    from paddlempi import ps

    fake = install(monkeypatch)
    yield fake
    ps.shutdown()
