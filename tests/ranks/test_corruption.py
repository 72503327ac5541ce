"""Outputs are corrupted on purpose, and the tests of the operations notice.

Each test of an operation runs as it is, with one tensor, over a library that is
sabotaged where everything goes through: it does not communicate, gets one element
wrong, or comes back on one rank before the others have come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import test_all_gather
import test_all_reduce
import test_all_to_all
import test_broadcast
import test_gather
import test_p2p
import test_reduce
import test_reduce_scatter
import test_scan
from paddlempi import ReduceOp, _native
from paddlempi._ops import ASYNC, Op
from tensors import STRIDED, NumpyKind

pytestmark = pytest.mark.mpi(min=2)

NO_COMMUNICATION, ONE_OFF, EARLY = "no communication", "one element off", "one rank reads early"

CHECKS: dict[str, Callable[..., None]] = {
    "all_reduce": test_all_reduce.test_all_reduce,
    "all_reduce_coalesced": test_all_reduce.test_coalesced,
    "broadcast": test_broadcast.test_broadcast,
    "reduce": test_reduce.test_reduce,
    "scan": test_scan.test_scan,
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


DEFAULTS = (0, 0, -1, -1, 0, -1.0, 1.0, None, None, -1, 0)
"""Of submit's arguments from the fifth on."""


class _Over(Exception):
    """Ends a test after its first operation, so that all ranks have made one each."""


class Saboteur:
    """What stands in the place of ``submit``."""

    def __init__(self, how: str, rank: int, early: int) -> None:
        self.how, self.rank, self.early = how, rank, early
        self.real = _native.submit
        self.calls = 0
        self.work = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        if self.calls > 1:
            raise _Over
        code, recv = arguments[0], arguments[3]
        answer = (arguments[13], 0, arguments[14]) if code == Op.SENDRECV else None
        if self.how == NO_COMMUNICATION:
            return answer
        if self.how == ONE_OFF:
            answer = self.real(*arguments)
            tensors = recv if isinstance(recv, list) else [recv] if recv is not None else []
            if code != Op.BROADCAST or arguments[6] != self.rank:
                for tensor in tensors[-1:]:
                    last = tuple(extent - 1 for extent in tensor.shape)
                    tensor[last] = tensor[last] == 0  # another value, whatever the dtype
            return answer
        if self.rank == self.early:
            filled = [*arguments, *DEFAULTS[len(arguments) - 4 :]]
            filled[5] = ASYNC
            self.work = self.real(*filled)
            return answer
        time.sleep(0.2)
        return self.real(*arguments)


@pytest.fixture
def one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test of an operation takes one tensor only."""

    def every(*_: Any) -> Iterator[tuple[str, Any]]:
        yield "float32", STRIDED

    for check in CHECKS.values():
        module = __import__(check.__module__)
        if hasattr(module, "every"):
            monkeypatch.setattr(module, "every", every)


def _noticed(
    dist: ModuleType, rank: int, size: int, check: Callable[..., None], saboteur: Any
) -> bool:
    """Whether the test failed on any rank."""
    given = {
        "dist": dist,
        "rank": rank,
        "size": size,
        "kind": NumpyKind(),
        "op": ReduceOp.SUM,
        "exclusive": False,
        "run": lambda function, *arguments: function(*arguments),
    }
    names = check.__code__.co_varnames[: check.__code__.co_argcount]
    found = 0
    if saboteur is not None:
        _native.submit = saboteur
    try:
        check(**{name: given[name] for name in names})
    except AssertionError:
        found = 1
    except _Over:
        pass
    finally:
        if saboteur is not None:
            _native.submit = saboteur.real
            if saboteur.work:
                _native.core().wait(saboteur.work, 30.0)
    flag = np.array([found])
    dist.all_reduce(flag, ReduceOp.MAX)
    return bool(flag[0])


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("how", [NO_COMMUNICATION, ONE_OFF, EARLY])
def test_noticed(
    dist: ModuleType, rank: int, size: int, one_case: None, name: str, how: str
) -> None:
    if how == EARLY:
        results = [
            _noticed(dist, rank, size, CHECKS[name], Saboteur(how, rank, early))
            for early in (0, size - 1)
        ]
    else:
        results = [_noticed(dist, rank, size, CHECKS[name], Saboteur(how, rank, 0))]
    assert any(results), f"{name} passes though there was {how}"


@pytest.mark.parametrize("name", CHECKS)
def test_without_sabotage(
    dist: ModuleType, rank: int, size: int, one_case: None, name: str
) -> None:
    assert not _noticed(dist, rank, size, CHECKS[name], None)
