"""Sabotaged results: the checks of every operation must notice every kind of sabotage.

Every ``check_...`` function runs as in its own test, but ``submit``, which all operations pass
through, is replaced. The replacement flips one bit of what one rank receives, or communicates
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import test_all_gather
import test_all_reduce
import test_all_to_all
import test_broadcast
import test_gather
import test_objects
import test_p2p
import test_reduce
import test_reduce_scatter
import test_sparse
import torch
from paddlempi import _native
from paddlempi._ops import ASYNC, Op
from tensors import DTYPES, HOWS, MATRIX, NUMBERS, STRIDED, Layout, Team, bits

# The tests themselves are tested here, so two numbers of ranks suffice.
pytestmark = [
    pytest.mark.mpi(ranks=[2, 3]),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:Sparse"),
]

Check = Callable[[Team, str, str, Layout], None]

REDUCING: list[Check] = [
    test_all_reduce.check_all_reduce,
    test_all_reduce.check_coalesced,
    test_all_reduce.check_list,
    test_reduce.check_reduce,
    test_reduce_scatter.check_list,
    test_reduce_scatter.check_uneven,
    test_reduce_scatter.check_tensor,
    test_reduce_scatter.check_coalesced,
]
MOVING: list[Check] = [
    test_broadcast.check_broadcast,
    test_all_gather.check_all_gather,
    test_all_gather.check_uneven,
    test_all_gather.check_into_tensor,
    test_all_gather.check_coalesced,
    test_all_gather.check_lists,
    test_gather.check_gather,
    test_gather.check_gather_single,
    test_gather.check_scatter,
    test_all_to_all.check_list,
    test_all_to_all.check_uneven_list,
    test_all_to_all.check_single,
    test_all_to_all.check_splits,
]
MESSAGES: list[Check] = [test_p2p.check_ring, test_p2p.check_batch]
SPARSE = [test_sparse.check_all_reduce, test_sparse.check_broadcast, test_sparse.check_all_gather]


def name(check: Any) -> str:
    return f"{check.__module__}.{check.__name__}" if callable(check) else str(check)


class Over:
    """A work that was over at once."""

    done, error, source, device, tensors = True, None, -1, 0, None

    def wait(self, timeout: float = -1.0) -> None:
        pass

    def test(self) -> bool:
        return True

    def notify(self, context: object, late: bool = False) -> bool:
        return False


class Saboteur:
    """A replacement of ``submit`` that flips one bit if ``flips`` is set."""

    def __init__(self, rank_in_group: int, flips: bool) -> None:
        self.rank, self.flips = rank_in_group, flips
        self.real = _native.submit
        self.spoiled = False
        self.kept: list[Any] = []

    def __call__(self, *arguments: Any, **fields: Any) -> Any:
        code, send, recv = arguments[0], arguments[2], arguments[3]
        if code == Op.SEND:  # spoil the message for its receiver
            if self.flips and self._worth(send):
                send = send.clone()
                self.kept.append(send)
                self._flip(send)
            return self.real(*arguments[:2], send, *arguments[3:], **fields)
        if code == Op.RECV:
            return self.real(*arguments, **fields)
        asked = _is_asynchronous(arguments)
        answer = self.real(*arguments[:5], **fields)
        last = recv[-1] if isinstance(recv, list) else recv
        reads = code == Op.BROADCAST and fields["root"] == self.rank
        if self.flips and last is not None and not reads and self._worth(last):
            self._flip(last)
        return Over() if asked else answer

    def _worth(self, tensor: Any) -> bool:
        """Return whether to spoil a tensor: not sizes and indices of sparse tensors or objects."""
        return bool(tensor.dtype != torch.int64 and tensor.numel())

    def _flip(self, tensor: Any) -> None:
        whole = bits(tensor)
        place = tuple(extent // 2 for extent in whole.shape)
        if whole.dtype == torch.uint8 and len(whole) > 200:
            place = (40,)  # of a pickled object: a letter of its first text
        whole[place] = whole[place] ^ 1
        self.spoiled = True


def _is_asynchronous(arguments: tuple[Any, ...]) -> bool:
    return len(arguments) > 5 and bool(arguments[5] & ASYNC)


def silence(*arguments: Any, **fields: Any) -> Any:
    """A replacement of ``submit`` that communicates nothing."""
    return Over() if _is_asynchronous(arguments) else None


def outcome(dist: ModuleType, submit: Any, call: Callable[[], None]) -> Any:
    """Return two lists: on which ranks a bit was flipped, and which ranks noticed."""
    real, noticed = _native.submit, False
    _native.submit = submit
    try:
        call()
    except AssertionError:
        noticed = True
    finally:
        _native.submit = real
    flags = torch.zeros(2, dist.get_world_size(), dtype=torch.int32)
    flags[0, dist.get_rank()] = int(getattr(submit, "spoiled", False))
    flags[1, dist.get_rank()] = int(noticed)
    dist.all_reduce(flags)
    return flags.tolist()


def groups(dist: ModuleType, teams: list[Team]) -> list[Team | None]:
    """Return the world, and the group without rank 0 (None on rank 0) if it has several members."""
    size = dist.get_world_size()
    some = [team for team in teams if team.ranks == tuple(range(1, size))]
    return [teams[0]] if size == 2 else [teams[0], some[0] if some else None]


def spoil(dist: ModuleType, team: Team | None, call: Callable[[Team], None]) -> None:
    """Flip a bit on every rank in turn. That rank must notice it, and no other rank."""
    spoiled = 0
    for victim in range(dist.get_world_size()):
        saboteur = Saboteur(team.rank if team else -1, dist.get_rank() == victim)
        flipped, noticed = outcome(dist, saboteur, lambda: None if team is None else call(team))
        assert noticed == flipped, f"bits flipped on {flipped}, noticed on {noticed}"
        spoiled += sum(flipped)
    assert spoiled


@pytest.mark.parametrize("check", REDUCING + MOVING, ids=name)
def test_every_dtype(dist: ModuleType, teams: list[Team], check: Check) -> None:
    for dtype in NUMBERS if check in REDUCING else DTYPES:
        if dtype != "int64":
            spoil(dist, teams[0], lambda t, d=dtype: check(t, "sync", d, STRIDED))


@pytest.mark.parametrize("check", REDUCING + MOVING, ids=name)
@pytest.mark.parametrize("how", HOWS)
def test_every_way(dist: ModuleType, teams: list[Team], check: Check, how: str) -> None:
    for team in groups(dist, teams):
        spoil(dist, team, lambda t: check(t, how, "float32", MATRIX))


@pytest.mark.parametrize("check", MESSAGES, ids=name)
@pytest.mark.parametrize("how", HOWS)
def test_messages(dist: ModuleType, teams: list[Team], check: Check, how: str) -> None:
    for dtype in ("float32", "bool", "bfloat16", "int8"):
        for victim in range(dist.get_world_size()):
            saboteur = Saboteur(teams[0].rank, dist.get_rank() == victim)
            flipped, noticed = outcome(
                dist, saboteur, lambda d=dtype: check(teams[0], how, d, STRIDED)
            )
            assert sum(flipped) == 1 and sum(noticed) and not noticed[victim]


@pytest.mark.parametrize("check", SPARSE, ids=name)
@pytest.mark.parametrize("how", HOWS)
def test_sparse_tensors(dist: ModuleType, teams: list[Team], check: Any, how: str) -> None:
    for dtype in ("float32", "bool", "bfloat16"):
        spoil(dist, teams[0], lambda t, d=dtype: check(t, how, d))


@pytest.mark.parametrize("check", test_objects.CHECKS, ids=name)
def test_objects_too(dist: ModuleType, teams: list[Team], check: Any) -> None:
    spoiled = 0
    for victim in range(dist.get_world_size()):
        saboteur = Saboteur(teams[0].rank, dist.get_rank() == victim)
        flipped, noticed = outcome(dist, saboteur, lambda: check(teams[0]))
        assert bool(sum(noticed)) == bool(sum(flipped))
        spoiled += sum(flipped)
    assert spoiled


@pytest.mark.parametrize("check", REDUCING + MOVING, ids=name)
@pytest.mark.parametrize("how", HOWS)
def test_nothing_communicated(dist: ModuleType, teams: list[Team], check: Check, how: str) -> None:
    for dtype in ("float32", "uint8"):
        _, noticed = outcome(dist, silence, lambda d=dtype: check(teams[0], how, d, MATRIX))
        assert sum(noticed), "passes though nothing was communicated"
