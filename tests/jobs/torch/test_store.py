"""The address at which the default group's store is served, as if there were several hosts."""

from __future__ import annotations

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

    group.get_local_size = lambda: 1  # every rank is on a node of its own
    tried: list[str] = []
    reach = store._reach

    def counted(host: str, *rest: object) -> object:
        tried.append(host)
        return reach(host, *rest)

    store._reach = counted
    # There is no store at the first address.
    store.candidates = lambda one_host: iter(["100::1", "127.0.0.1"])
    dist.init_process_group("mpi")
    rank = dist.get_rank()
    assert tried == ([] if rank == 0 else ["100::1", "127.0.0.1"])
    assert os.environ["MASTER_ADDR"] == "127.0.0.1"
    shared = dist.distributed_c10d._get_default_store()
    shared.set(f"from {rank}", "x")
    assert shared.get(f"from {1 - rank}") == b"x"
    dist.barrier()
    dist.destroy_process_group()

    # The store that answers belongs to another job.
    store.candidates = lambda one_host: iter(["127.0.0.1"])
    store._reach = lambda host, port, size, token, *rest: reach(host, port, size, "other", *rest)
    try:
        dist.init_process_group("mpi")
    except dist.DistBackendError as error:
        assert isinstance(error, errors.LauncherError)
        for word in (f"rank {rank}", "127.0.0.1", "MASTER_ADDR"):
            assert word in str(error), error
    else:
        raise AssertionError("rank 1 took the store of another job")
    assert not dist.is_initialized()
    store._reach = reach
    dist.init_process_group("mpi")
    dist.barrier()
    dist.destroy_process_group()
    done()


def test_an_address_that_all_reach() -> None:
    job.succeed(2, as_if_apart)


def named_interface() -> None:
    """The name counts on one node, too. If no interface has that name, all ranks raise."""
    import os

    import paddlempi.torch  # noqa: F401
    import torch.distributed as dist
    from paddlempi import _native, errors
    from ranks_tools import done

    for wanted, found in ((None, "127.0.0.1"), ("lo", "127.0.0.1"), ("127.0.0.0/8", "127.0.0.1")):
        if wanted is not None:
            os.environ["PADDLEMPI_IFNAME"] = wanted
        dist.init_process_group("mpi")
        assert os.environ["MASTER_ADDR"] == found
        dist.barrier()
        dist.destroy_process_group()
    os.environ["PADDLEMPI_IFNAME"] = "nosuch"
    try:
        dist.init_process_group("mpi")
    except dist.DistBackendError as error:
        assert isinstance(error, errors.LauncherError)
        for word in ("rank 0 on", "PADDLEMPI_IFNAME=nosuch", "127.0.0.1"):
            assert word in str(error), error
    else:
        raise AssertionError("no error, although there is no such interface")
    del os.environ["PADDLEMPI_IFNAME"]
    assert _native.control("addresses", one_host=True)["addresses"] == ["127.0.0.1"]
    dist.init_process_group("mpi")
    dist.destroy_process_group()
    done()


def test_an_interface_that_the_user_names() -> None:
    job.succeed(2, named_interface)


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
