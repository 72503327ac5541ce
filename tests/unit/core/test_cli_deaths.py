"""What ``run -np`` says of a rank that a signal has ended."""

from __future__ import annotations

import errno
import os
import signal

import pytest
from paddlempi.cli import deaths

LOG = [
    b"6,1,1,-;Killed process 41 (python3) total-vm:1kB\n",
    b"3,2,2,-;Out of memory: Killed process 4711 (python3), UID 0, total-vm:8kB\n",
]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the cgroup's counter says, in turn; and no log."""
    found: list[int] = []
    monkeypatch.setattr(deaths, "_killed_for_memory", lambda: found.pop(0))
    monkeypatch.setattr(deaths, "_is_in_kernel_log", lambda pid: False)
    return found


def test_a_signal_has_its_name(counts: list[int]) -> None:
    counts[:] = [3, 3, 3]
    told = deaths.Deaths()
    assert told.said(2, 4711, signal.SIGSEGV) == (
        "rank 2 (process 4711) was ended by SIGSEGV (Segmentation fault)"
    )
    assert told.said(0, 12, signal.SIGKILL) == "rank 0 (process 12) was ended by SIGKILL (Killed)"
    assert told.said(0, 12, 40) == "rank 0 (process 12) was ended by signal 40"


def test_the_cgroup_has_killed_it(counts: list[int]) -> None:
    counts[:] = [3, 4, 4, 6]
    told = deaths.Deaths()
    said = [told.said(0, 12, signal.SIGKILL) for _ in range(3)]
    assert ["out of memory" in line for line in said] == [True, False, True]


@pytest.mark.parametrize(("pid", "found"), [(41, True), (4711, True), (471, False), (47, False)])
def test_the_kernel_s_log(monkeypatch: pytest.MonkeyPatch, pid: int, found: bool) -> None:
    records = list(LOG)

    def read(descriptor: int, size: int) -> bytes:
        if records:
            return records.pop(0)
        raise BlockingIOError(errno.EAGAIN, "no more")

    monkeypatch.setattr(deaths.os, "open", lambda *_: 1234)
    monkeypatch.setattr(deaths.os, "read", read)
    monkeypatch.setattr(deaths.os, "close", lambda descriptor: None)
    assert deaths._is_in_kernel_log(pid) == found


def test_a_log_that_this_user_may_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(deaths.os, "open", refuse)
    assert not deaths._is_in_kernel_log(os.getpid())
