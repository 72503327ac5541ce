"""Init, destroy, groups and ranks, over a fake core."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import ModuleType
from typing import Any

import paddlempi as dist
import pytest
from api_fake import FakeCore
from paddlempi import _native
from paddlempi.errors import (
    AlreadyInitializedError,
    ArgumentError,
    DtypeError,
    NotInitializedError,
    NotMemberError,
    UnsupportedError,
)


def test_init_and_who_am_i(core: FakeCore) -> None:
    assert dist.is_initialized()
    assert (dist.get_rank(), dist.get_world_size()) == (1, 3)
    assert (dist.get_local_rank(), dist.get_local_size()) == (0, 2)
    assert dist.get_backend() == "mpi"
    assert dist.get_process_group_ranks() == [0, 1, 2]
    assert dist.group.WORLD is not None
    assert dist.group.WORLD.size() == 3
    context = dist.get_context()
    assert (context.root_rank, context.rank, context.size) == (0, 1, 3)
    assert (context.local_rank, context.local_size) == (0, 2)
    method, given = core.controls[0]
    assert method == "init"
    assert given["timeout"] == 1800.0
    assert given["mpi"] is None
    assert given["comm"] is None


def test_init_twice_and_again(core: FakeCore) -> None:
    with pytest.raises(AlreadyInitializedError):
        dist.init_process_group()
    dist.destroy_process_group()
    assert not dist.is_initialized()
    with pytest.raises(NotInitializedError):
        dist.get_rank()
    with pytest.raises(NotInitializedError):
        dist.get_context().rank  # noqa: B018
    dist.init_process_group("MPI", timeout=timedelta(seconds=5))
    assert core.controls[-1][1]["timeout"] == 5.0


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"backend": "nccl"}, ArgumentError, "backend='nccl'"),
        ({"backend": None}, ArgumentError, "backend=None"),
        ({"framework": "jax"}, ArgumentError, "one of paddle, torch"),
        ({"timeout": 0}, ArgumentError, "above 0"),
        ({"timeout": "1"}, DtypeError, "timedelta"),
        ({"comm": 5}, DtypeError, "mpi4py"),
    ],
)
def test_wrong_arguments_of_init(
    fresh_core: FakeCore, arguments: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        dist.init_process_group(**arguments)
    assert not dist.is_initialized()


def test_the_order_of_ranks_is_as_given(core: FakeCore) -> None:
    group = dist.new_group([2, 1], timeout=4)
    assert core.controls[-1] == ("new_group", {"ranks": [2, 1], "timeout": 4.0})
    assert (dist.get_rank(group), dist.get_world_size(group)) == (1, 2)
    assert dist.get_process_group_ranks(group) == [2, 1]
    assert dist.get_group_rank(group, 2) == 0
    assert dist.get_global_rank(group, 1) == 1
    with pytest.raises(ArgumentError, match="global_rank=0"):
        dist.get_group_rank(group, 0)
    with pytest.raises(ArgumentError, match="group_rank=2"):
        dist.get_global_rank(group, 2)
    dist.destroy_process_group(group)
    assert core.controls[-1] == ("destroy_group", {"group": 7})


def test_a_group_without_a_deadline_of_its_own(core: FakeCore) -> None:
    dist.new_group()
    assert core.controls[-1] == ("new_group", {"ranks": [0, 1, 2], "timeout": None})


def test_non_members(core: FakeCore) -> None:
    group = dist.new_group([0])
    assert group is dist.GroupMember.NON_GROUP_MEMBER
    assert dist.get_rank(group) == -1
    assert dist.get_world_size(group) == -1
    with pytest.raises(ArgumentError):
        dist.get_backend(group)
    with pytest.raises(NotMemberError):
        dist.new_subgroups(1, group)


@pytest.mark.parametrize(
    ("ranks", "kind", "text"),
    [
        ([], ArgumentError, "empty"),
        ([0, 3], ArgumentError, "3 is out of range"),
        ([-1], ArgumentError, "-1 is out of range"),
        ([1, 1], ArgumentError, "twice"),
        (["1"], DtypeError, "sequence of ranks"),
    ],
)
def test_wrong_ranks(core: FakeCore, ranks: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        dist.new_group(ranks)
    assert [method for method, _ in core.controls] == ["init"]


def test_subgroups(core: FakeCore) -> None:
    mine, all_of_them = dist.new_subgroups(1)
    assert dist.get_process_group_ranks(mine) == [1]
    assert len(all_of_them) == 3
    assert all_of_them[0] is dist.GroupMember.NON_GROUP_MEMBER
    with pytest.raises(ArgumentError, match="group_size=2"):
        dist.new_subgroups()  # the default is the local size, 2


def test_split_orders_by_key_and_rank(core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(code: int, group: int, send: Any, recv: Any) -> None:
        rows = [(1, 5, 9), tuple(send), (1, 5, -3)]
        recv[:] = type(recv)("q", [value for row in rows for value in row])

    monkeypatch.setattr(dist.group._native, "submit", submit)
    group = dist.split_group(5, 0)
    assert dist.get_process_group_ranks(group) == [2, 1, 0]
    assert dist.split_group(None) is dist.GroupMember.NON_GROUP_MEMBER
    with pytest.raises(ArgumentError, match="color"):
        dist.split_group(2**70)
    assert len(core.refusals) == 1


def test_a_free_threaded_python_is_refused(
    fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist.group._native, "_core", None)
    monkeypatch.setattr("sys.abiflags", "t")
    with pytest.raises(dist.errors.UnsupportedError, match="free-threaded"):
        dist.init_process_group()
    assert not dist.is_available()


@pytest.mark.parametrize("patched", ["threading", "socket", "select", "time"])
def test_what_gevent_has_replaced(patched: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkey = ModuleType("gevent.monkey")
    monkey.is_module_patched = lambda name: name == patched  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gevent.monkey", monkey)
    if patched == "time":  # it does no harm
        _native._check_threads()
    else:
        with pytest.raises(UnsupportedError, match=r"patch_all\(thread=False, socket"):
            _native._check_threads()
