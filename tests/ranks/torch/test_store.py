"""The address at which the default group's store is served, as if there were several hosts."""

from __future__ import annotations

import os

import pytest
import torch.distributed as dist
from paddlempi import _native, errors, group
from paddlempi.torch import store

pytestmark = pytest.mark.mpi(ranks=2)


@pytest.mark.usefixtures("no_world")
def test_an_address_that_all_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every rank is on a node of its own.
    monkeypatch.setattr(group, "get_local_size", lambda: 1)
    tried: list[str] = []
    reach = store._reach

    def counted(host: str, *rest: object) -> object:
        tried.append(host)
        return reach(host, *rest)

    monkeypatch.setattr(store, "_reach", counted)
    # There is no store at the first address.
    monkeypatch.setattr(store, "candidates", lambda one_host: iter(["100::1", "127.0.0.1"]))
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
    monkeypatch.setattr(store, "candidates", lambda one_host: iter(["127.0.0.1"]))

    def other(host: str, port: int, size: int, token: str, *rest: object) -> object:
        return reach(host, port, size, "other", *rest)

    monkeypatch.setattr(store, "_reach", other)
    try:
        dist.init_process_group("mpi")
    except dist.DistBackendError as error:
        assert isinstance(error, errors.LauncherError)
        for word in (f"rank {rank}", "127.0.0.1", "MASTER_ADDR"):
            assert word in str(error), error
    else:
        raise AssertionError("rank 1 took the store of another")
    assert not dist.is_initialized()
    monkeypatch.setattr(store, "_reach", reach)
    dist.init_process_group("mpi")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.usefixtures("no_world")
def test_an_interface_that_the_user_names() -> None:
    """The name counts on one node, too. If no interface has that name, all ranks raise."""
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
        raise AssertionError("an interface that is not there")
    del os.environ["PADDLEMPI_IFNAME"]
    assert _native.control("addresses", one_host=True)["addresses"] == ["127.0.0.1"]
    dist.init_process_group("mpi")
    dist.destroy_process_group()
