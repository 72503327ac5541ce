"""The addresses at which the default group's store may be served."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets what the core says of this host, and returns the candidates."""
    from paddlempi import _native
    from paddlempi.torch import store

    def put(name: str, *addresses: str, one_host: bool = False) -> list[str]:
        def control(method: str, **request: object) -> Any:
            assert method == "addresses"
            assert request == {"one_host": one_host, "variable": "GLOO_SOCKET_IFNAME"}
            return {"name": name, "addresses": list(addresses)}

        monkeypatch.setattr(_native, "control", control)
        return list(store.candidates(one_host))

    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("PADDLEMPI_FILLED", raising=False)
    return put


def test_candidates(addresses: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert addresses("node", "10.0.0.1", "172.17.0.1") == ["node", "10.0.0.1", "172.17.0.1"]
    assert addresses("", "10.0.0.1") == ["10.0.0.1"]
    assert addresses("") == []
    # The user's address comes first, unless it is a loopback. paddlempi's is not the user's.
    monkeypatch.setenv("MASTER_ADDR", "head")
    assert addresses("node", "10.0.0.1") == ["head", "node", "10.0.0.1"]
    assert addresses("", "127.0.0.1", one_host=True) == ["127.0.0.1"]
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    assert addresses("node", "10.0.0.1") == ["10.0.0.1", "node"]
    for here in ("127.0.0.1", "::1"):
        monkeypatch.setenv("MASTER_ADDR", here)
        assert addresses("node", "10.0.0.1") == ["node", "10.0.0.1"]
    monkeypatch.setenv("MASTER_ADDR", "head")
    monkeypatch.setenv("PADDLEMPI_FILLED", "job|RANK=0 MASTER_ADDR=head")
    assert addresses("node", "10.0.0.1") == ["node", "10.0.0.1"]
