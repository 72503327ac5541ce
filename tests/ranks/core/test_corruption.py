"""Sabotaged operations: the tests of the operations must notice every kind of sabotage.

The test of every operation runs unchanged, with one tensor, but ``submit``, which all operations
pass through, is replaced. The replacement does not communicate, makes one element wrong, or
returns on one rank before the operation is over. The first two kinds of sabotage are tried once
more with every dtype, in the world and in a group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import test_all_gather
import test_all_reduce
import test_all_to_all
import test_barrier
import test_broadcast
import test_gather
import test_p2p
import test_reduce
import test_reduce_scatter
import test_scan
from paddlempi import ReduceOp, _native
from paddlempi._ops import ASYNC, Op
from ranks_tools import skip_over_nodes
from tensors import NAMES, STRIDED, Layout, NumpyKind

# The tests themselves are tested here, so one MPI and two numbers of ranks suffice.
pytestmark = pytest.mark.mpi(ranks=[2, 3])

NO_COMMUNICATION, ONE_OFF, EARLY = "no communication", "one element off", "one rank reads early"

CHECKS: dict[str, Callable[..., None]] = {
    "all_reduce": test_all_reduce.test_all_reduce,
    "all_reduce_coalesced": test_all_reduce.test_coalesced,
    "broadcast": test_broadcast.test_broadcast,
    "reduce": test_reduce.test_reduce,
    "scan": test_scan.test_scan,
    "exscan": test_scan.test_scan,
    "all_gather": test_all_gather.test_all_gather,
    "all_gather_into_tensor": test_all_gather.test_into_tensor,
    "all_gather uneven": test_all_gather.test_uneven,
    "gather": test_gather.test_gather,
    "scatter": test_gather.test_scatter,
    "reduce_scatter": test_reduce_scatter.test_list,
    "reduce_scatter_tensor": test_reduce_scatter.test_tensor,
    "all_to_all": test_all_to_all.test_list,
    "all_to_all_single": test_all_to_all.test_single,
    "sendrecv": test_p2p.test_sendrecv,
}


class _Over(Exception):
    """Ends a test after its first operations, so that all ranks have called equally many."""


class Saboteur:
    """A replacement of ``submit`` that does ``how`` wrong."""

    def __init__(self, how: str, rank: int, early: int, operations: int = 1) -> None:
        self.how, self.rank, self.early, self.operations = how, rank, early, operations
        self.real = _native.submit
        self.calls = 0
        self.work: Any = None

    def __call__(self, *arguments: Any, **fields: Any) -> Any:
        self.calls += 1
        if self.calls > self.operations:
            raise _Over
        code, recv = arguments[0], arguments[3]
        answer = None
        if code == Op.SENDRECV:
            answer = (fields["peer2"], 0, fields["tag2"])
        elif code == Op.RECV:
            answer = (fields["peer"], 0, fields["tag"])
        if self.how == NO_COMMUNICATION:
            return answer
        if self.how == ONE_OFF:
            answer = self.real(*arguments, **fields)
            tensors = recv if isinstance(recv, list) else [recv] if recv is not None else []
            if code != Op.BROADCAST or fields["root"] != self.rank:
                for tensor in tensors[-1:]:
                    last = tuple(extent - 1 for extent in tensor.shape)
                    tensor[last] = tensor[last] == 0  # a different value in every dtype
            return answer
        if self.rank == self.early:
            reduce_op = arguments[4] if len(arguments) > 4 else 0
            self.work = self.real(*arguments[:4], reduce_op, ASYNC, **fields)
            return answer
        time.sleep(0.1)
        return self.real(*arguments, **fields)


@pytest.fixture
def one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test of an operation takes only one tensor."""

    def every(*_: Any) -> Iterator[tuple[str, Any]]:
        yield "float32", STRIDED

    for check in CHECKS.values():
        module = __import__(check.__module__)
        if hasattr(module, "every"):
            monkeypatch.setattr(module, "every", every)


def _outcome(
    dist: ModuleType,
    rank: int,
    size: int,
    name: str,
    saboteur: Saboteur | None,
    group: Any = None,
) -> tuple[bool, bool]:
    """Return whether the test failed on any rank, and whether any rank called an operation.

    ``size`` may be smaller than the world. Then only the first ``size`` ranks run the test.
    """
    check = CHECKS[name]
    given = {
        "dist": dist if group is None else _Within(dist, group),
        "rank": rank,
        "size": size,
        "kind": NumpyKind(),
        "op": ReduceOp.SUM,
        "exclusive": name == "exscan",
        "run": lambda function, *arguments: function(*arguments),
    }
    names = check.__code__.co_varnames[: check.__code__.co_argcount]
    found = 0
    if saboteur is not None:
        _native.submit = saboteur
    try:
        if rank < size:
            check(**{argument: given[argument] for argument in names})
    except AssertionError:
        found = 1
    except _Over:
        pass
    finally:
        if saboteur is not None:
            _native.submit = saboteur.real
            if saboteur.work is not None:
                saboteur.work.wait(30.0)
    flags = np.array([found, saboteur.calls if saboteur is not None else 0])
    dist.all_reduce(flags, ReduceOp.MAX)
    return bool(flags[0]), bool(flags[1])


class _Within:
    """The library with its functions bound to a group."""

    def __init__(self, dist: ModuleType, group: Any) -> None:
        self._dist, self._group = dist, group

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(self._dist, name), group=self._group)


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("how", [NO_COMMUNICATION, ONE_OFF, EARLY])
def test_noticed(
    dist: ModuleType, rank: int, size: int, one_case: None, name: str, how: str
) -> None:
    ranks = (0, size - 1) if how == EARLY else (0,)
    results = [_outcome(dist, rank, size, name, Saboteur(how, rank, early))[0] for early in ranks]
    assert any(results), f"{name} passes though there was {how}"


@pytest.mark.parametrize("name", CHECKS)
def test_without_sabotage(
    dist: ModuleType, rank: int, size: int, one_case: None, name: str
) -> None:
    assert not _outcome(dist, rank, size, name, None)[0]


BIG = Layout("big", (6, 7), (16, 2), 1, 94)


@pytest.mark.mpi(ranks=3)
@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("how", [NO_COMMUNICATION, ONE_OFF])
def test_every_dtype_and_kind_of_group(
    dist: ModuleType,
    rank: int,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    how: str,
) -> None:
    check, dtype = CHECKS[name], ""
    module = __import__(check.__module__)

    def every(_: Any, among: Sequence[str] = NAMES) -> Iterator[tuple[str, Any]]:
        if dtype in among:
            yield dtype, BIG

    takes_all = "every" in check.__code__.co_names
    if takes_all:
        monkeypatch.setattr(module, "every", every)
    some = size - 1  # in order, because the tests expect that
    group = dist.new_group(range(some))
    tried = 0
    for kind, members in ((None, size), (group, some)):
        for dtype in NAMES if takes_all else ["its own"]:
            noticed, called = _outcome(dist, rank, members, name, Saboteur(how, rank, 0), kind)
            assert noticed or not called, f"{name} of {dtype} on {members} ranks: {how}"
            tried += called
    assert tried >= (2 * len(NAMES) * 3 // 5 if takes_all else 2)
    if rank < some:
        dist.destroy_process_group(group)


@pytest.mark.parametrize("how", [NO_COMMUNICATION, ONE_OFF])
def test_messages(
    dist: ModuleType, rank: int, monkeypatch: pytest.MonkeyPatch, one_case: None, how: str
) -> None:
    monkeypatch.setitem(CHECKS, "send and recv", test_p2p.test_ring)
    monkeypatch.setattr(test_p2p, "every", lambda _: [("float32", STRIDED)])
    # Two ranks only, because a rank whose test fails would not send on to a third rank.
    saboteur = Saboteur(how, rank, 0, operations=2)
    assert _outcome(dist, rank, 2, "send and recv", saboteur)[0]


def test_a_barrier_that_does_not_wait(
    dist: ModuleType, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_over_nodes("the clocks of nodes differ")
    real = _native.submit

    def submit(code: int, *arguments: Any, **fields: Any) -> Any:
        return None if code == Op.BARRIER else real(code, *arguments, **fields)

    monkeypatch.setattr(_native, "submit", submit)
    with pytest.raises(AssertionError):
        test_barrier.test_no_rank_leaves_before_the_last_has_come(
            dist, rank, size, lambda function: function()
        )
