"""The meeting of ranks over the stores of torch."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from meeting_ranks import Open, Rank, assert_one_world, ended
from paddlempi.errors import TimeoutError
from paddlempi.startup.rendezvous.stores import adapt


@pytest.fixture(params=["hash", "tcp", "file", "prefix"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return what opens a client of a store of torch, of each kind."""
    if request.param == "file":
        path = str(tmp_path / "store")
        return lambda rank, deadline: adapt(dist.FileStore(path, 3))
    if request.param == "hash":
        shared = dist.HashStore()
        return lambda rank, deadline: adapt(shared)
    limit = timedelta(seconds=20)
    served = dist.TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)
    prefix = dist.PrefixStore("outer", dist.PrefixStore("inner", served))
    store = served if request.param == "tcp" else prefix
    return lambda rank, deadline: adapt(store)


def test_twice_over_one_store(opener: Open) -> None:
    worlds = [assert_one_world(ended([Rank(opener, r, 3, 20) for r in range(3)])) for _ in range(3)]
    assert len(set(worlds)) == 3


def test_one_that_never_comes_is_named(opener: Open) -> None:
    for result in ended([Rank(opener, r, 3, 0.5) for r in (0, 2)], 10):
        assert isinstance(result, TimeoutError), result
        assert result.ranks == (1,)
