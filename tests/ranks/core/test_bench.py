"""What ``python -m paddlempi bench`` does when a contender is wrong, or fails on one rank."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from paddlempi import _native
from paddlempi.cli.bench import collectives, contenders, report, threads
from paddlempi.cli.bench.operations import OPERATIONS
from ranks_tools import raises

pytestmark = pytest.mark.mpi(ranks=2)


def test_wrong_results(dist: ModuleType, rank: int) -> None:
    """A contender that is wrong now and then, on one rank, is an error on all."""
    tensors = contenders.Framework("numpy", "float32")
    (ours,), _ = contenders.make(["paddlempi"], "all_reduce", tensors)
    made = {"calls": 0}

    def bind(operation: Any, send: Any, recv: Any) -> Callable[[], None]:
        def call() -> None:
            made["calls"] += 1
            dist.all_reduce(recv.array)
            if made["calls"] == 15 and rank == 1:
                recv.array[3] += 1

        return call

    def measure(same_buffer: bool, late: int) -> list[str]:
        made["calls"] = -late
        shown: list[str] = []
        plan = collectives.Plan([64], 40, 4, same_buffer)
        fake = contenders.Contender("fake", bind)
        collectives.measure_these(
            OPERATIONS["all_reduce"],
            [ours, fake],
            tensors,
            plan,
            lambda rows: shown.extend(row.contender for row in rows),
            lambda what, part: None,
        )
        return shown

    message = "fake: all_reduce of 64 bytes gave a wrong result on rank 1"
    with raises(collectives.WrongResultError, message, "1 of 16 elements differ, first element 3"):
        measure(False, 0)
    with raises(collectives.WrongResultError, message):
        measure(True, 0)
    assert measure(False, 10_000) == ["paddlempi", "fake"]
    assert made["calls"] < 0


@pytest.mark.usefixtures("dist")
def test_absent_contenders(rank: int) -> None:
    """A contender that fails on one rank is left out on all."""
    tensors = contenders.Framework("numpy", "float32")
    (ours,), _ = contenders.make(["paddlempi"], "broadcast", tensors)

    def bind(operation: Any, send: Any, recv: Any) -> Callable[[], None]:
        if rank == 1:
            raise NotImplementedError("not for this dtype\nand more")
        return lambda: None

    rows: list[str] = []
    absent = collectives.measure_these(
        OPERATIONS["broadcast"],
        [ours, contenders.Contender("fake", bind, checked=False)],
        tensors,
        collectives.Plan([8, 16], 4, 0),
        lambda found: rows.extend(row.contender for row in found),
        lambda what, part: None,
    )
    assert absent == {"fake": "NotImplementedError: not for this dtype"}
    assert rows == ["paddlempi"] * 2


@pytest.mark.usefixtures("dist")
def test_several_numbers_of_threads(rank: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A time and that of a copy for each number; afterwards it is as before."""
    before = _native.control("info")["threads"]
    chosen = argparse.Namespace(operations=["all_reduce", "barrier"], threads=[1, 3])
    plan = collectives.Plan([8, 1 << 19], 20, 1)
    tensors = contenders.Framework("numpy", "float32", "mapped")
    rows, absent = threads.measure(chosen, plan, tensors, report.Bar(2))
    assert not absent
    assert [(row.bytes, row.threads) for row in rows] == [
        *((size, count) for size in (8, 1 << 19, 0) for count in (1, 3)),
    ]
    assert all((row.copy_us or 0) > 0 for row in rows[:4])
    assert rows[4].copy_us is None
    assert _native.control("info")["threads"] == before
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert (["524288", "3"] in [line[:2] for line in lines]) == (rank == 0)
    if rank == 0:
        assert lines[-1][:2] == ["0", "3"] and lines[-1][3:5] == ["-", "-"]
