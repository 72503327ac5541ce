"""Where the ranks of a job meet, by the init_method."""

from __future__ import annotations

import pytest
from paddlempi.startup.rendezvous import init_method


@pytest.mark.parametrize(
    ("address", "method"),
    [
        ("Node-17.Example", "tcp://Node-17.Example:29500"),  # urlsplit gives small letters
        ("NODE", "tcp://node:29500"),
        ("127.0.0.1", "tcp://127.0.0.1:29500"),
        ("[::1]", "tcp://[::1]:29500"),
        ("::1", "tcp://[::1]:29500"),
    ],
)
def test_the_agent_s_store_is_found(
    monkeypatch: pytest.MonkeyPatch, address: str, method: str
) -> None:
    """Torchrun's agent gives its host's name as the machine spells it."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", address)
    monkeypatch.setenv("MASTER_PORT", "29500")
    asked = []
    monkeypatch.setattr(init_method, "_of_agent", lambda host, port, _: asked.append((host, port)))
    monkeypatch.setattr(init_method, "TorchStore", lambda store: "the agent's")
    assert init_method.open_store(method, 1, 0.0) == "the agent's"
    assert asked == [(method[6:-6].strip("[]").lower(), 29500)]


def test_another_address_is_not_the_agent_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", "one")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setattr(init_method, "TCPStore", lambda *_: "ours")
    for method in ("tcp://two:29500", "tcp://one:29501"):
        assert init_method.open_store(method, 1, 0.0) == "ours"
