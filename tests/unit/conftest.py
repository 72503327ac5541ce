"""A process that is rank 1 of 3 over a core that only records."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from api_fake import FakeCore


@pytest.fixture
def fresh_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCore]:
    """The fake in the core's place, not initialised; everything is put back afterwards."""
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
    """The fake, initialised."""
    import paddlempi

    paddlempi.init_process_group()
    return fresh_core
