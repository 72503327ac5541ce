"""Where the store of the default group is served, as if the ranks were on several hosts."""

from __future__ import annotations

import socket
from typing import Any

import job
import pytest


def as_if_apart() -> None:
    import os

    import paddlempi.torch  # noqa: F401
    import torch.distributed as dist
    from paddlempi import errors, group
    from paddlempi.torch import store
    from ranks_tools import done

    group.get_local_size = lambda: 1  # each on a node of its own
    tried: list[str] = []
    reach = store._reach

    def counted(host: str, *rest: object) -> object:
        tried.append(host)
        return reach(host, *rest)

    store._reach = counted
    # Nobody is at the first one.
    store.candidates = lambda: iter(["100::1", "127.0.0.1"])
    dist.init_process_group("mpi")
    rank = dist.get_rank()
    assert tried == ([] if rank == 0 else ["100::1", "127.0.0.1"])
    assert os.environ["MASTER_ADDR"] == "127.0.0.1"
    shared = dist.distributed_c10d._get_default_store()
    shared.set(f"from {rank}", "x")
    assert shared.get(f"from {1 - rank}") == b"x"
    dist.barrier()
    dist.destroy_process_group()

    # What answers is the store of another job.
    store.candidates = lambda: iter(["127.0.0.1"])
    store._reach = lambda host, port, size, token, *rest: reach(host, port, size, "other", *rest)
    try:
        dist.init_process_group("mpi")
    except dist.DistBackendError as error:
        assert isinstance(error, errors.LauncherError)
        for word in (f"rank {rank}", "127.0.0.1", "MASTER_ADDR"):
            assert word in str(error), error
    else:
        raise AssertionError("rank 1 took the store of another")
    assert not dist.is_initialized()
    store._reach = reach
    dist.init_process_group("mpi")
    dist.barrier()
    dist.destroy_process_group()
    done()


def test_an_address_that_all_reach() -> None:
    job.succeed(2, as_if_apart)


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the host's name, what that resolves to and the addresses of its interfaces."""
    from paddlempi.torch import store

    def put(resolved: list[str], interfaces: list[str]) -> list[str]:
        found = [(2, 1, 6, "", (address, 0)) for address in resolved]
        monkeypatch.setattr(socket, "gethostname", lambda: "node")
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        monkeypatch.setattr(store, "_interfaces", lambda: iter(interfaces))
        return list(store.candidates())

    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("PADDLEMPI_FILLED", raising=False)
    return put


def test_candidates(addresses: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # The name first, none twice, no loopback.
    assert addresses(["10.0.0.1"], ["127.0.0.1", "10.0.0.1", "172.17.0.1"]) == [
        "node",
        "10.0.0.1",
        "172.17.0.1",
    ]
    # Debian's /etc/hosts: to this host its name is a loopback, and so it says nothing of others.
    assert addresses(["127.0.1.1"], ["127.0.0.1", "10.0.0.1"]) == ["10.0.0.1"]
    assert addresses([], []) == []
    # The user's is before all; ours is not the user's.
    monkeypatch.setenv("MASTER_ADDR", "head")
    assert addresses(["10.0.0.1"], []) == ["head", "node", "10.0.0.1"]
    monkeypatch.setenv("PADDLEMPI_FILLED", "job|RANK=0 MASTER_ADDR=head")
    assert addresses(["10.0.0.1"], []) == ["node", "10.0.0.1"]


def test_the_interfaces_are_those_of_this_host() -> None:
    from paddlempi.torch import store

    assert "127.0.0.1" in list(store._interfaces())
