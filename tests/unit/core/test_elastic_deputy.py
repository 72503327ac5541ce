"""The coordinator among ranks of several nodes: its port, its secret, and who counts as dead."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from paddlempi import _native
from paddlempi.elasticity.deputy import Address, Deputy, PeersLink, reach
from paddlempi.elasticity.wire import Channel
from paddlempi.errors import PeerDiedError


@pytest.fixture
def deputy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deputy]:
    monkeypatch.setattr(_native, "control", lambda *_, **__: {"addresses": ["::1", "127.0.0.1"]})
    made = Deputy(several=True)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))  # nobody listens there: that rank has died
        gone = Address("127.0.0.1", 1, other.getsockname()[1], "of rank 1")
        made.serve({0: made.address, 1: gone})
        yield made  # its thread waits until the process ends


def test_it_listens_where_other_hosts_reach_it(deputy: Deputy) -> None:
    assert deputy.address[:2] == ("127.0.0.1", os.getpid())
    assert deputy.address.port > 0 and len(deputy.address.secret) == 32


@pytest.mark.parametrize("secret", [{}, {"secret": ""}, {"secret": "of rank 1"}])
def test_who_does_not_know_its_secret_is_not_heard(deputy: Deputy, secret: dict[str, str]) -> None:
    stranger = Channel(reach(deputy.address))
    stranger.send({"say": "hello", "key": 0, "generation": 0, "keys": [0, 1], **secret})
    stranger.send({"say": "ready"})
    with pytest.raises(ConnectionError):
        for _ in range(10):
            stranger.wait(10)
            stranger.receive()


def test_a_rank_without_a_listener_is_dead(deputy: Deputy) -> None:
    """The worlds after the first one are over MPI, whose ranks the members are."""
    link = PeersLink(0, deputy._addresses, over_mpi=True)
    world = link.muster(1, False, False)
    assert (world.generation, world.rank, world.size, world.keys) == (1, 0, 1, (0,))
    assert link.members(world) == (0,)
    link.close()


@pytest.mark.parametrize("what", ["look", "tell", "ask"])
def test_the_coordinator_dies(deputy: Deputy, what: str) -> None:
    """It dies between two questions, or with one unanswered. Another one takes its place."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        first = Address("127.0.0.1", 1, listener.getsockname()[1], "of rank 0")
        link = PeersLink(0, {0: first, 1: deputy.address})
        link._connect()
        listener.accept()[0].close()
    if what == "ask":
        with pytest.raises(PeerDiedError, match="coordinates has died"):
            link.ask({"say": "get", "keys": ["x"]})
    else:
        for _ in range(3):
            getattr(link, what)(*["in"] * (what == "tell"))
            if link._channel is not None:
                link._channel.wait(1)
        link.look()
    world = link.muster(1, False, False)
    assert (world.rank, world.size, world.keys) == (0, 1, (0,))
    link.close()
