"""bench --calibrate, in one process: which groups there are, when a size ends, what is printed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from paddlempi.cli.bench import calibrate, calibrate_calls
from paddlempi.planner import here
from paddlempi.planner.machine import Collective, Compute, Machine, Range, Step


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([[0, 1]], [[[0, 1]]]),
        ([[0], [1]], [[(0, 1)]]),
        ([[0, 1], [2, 3]], [[[0, 1], [2, 3]], [(0, 2), (1, 3)], [[0, 1, 2, 3]]]),
    ],
)
def test_the_groups_of_a_mesh(nodes: Any, expected: Any) -> None:
    assert calibrate_calls._shapes(nodes) == expected


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """One rank, and a clock that stands still."""
    now = [0.0]
    monkeypatch.setattr(calibrate_calls.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(calibrate_calls.collectives, "barrier", lambda: None)
    monkeypatch.setattr(calibrate_calls, "slowest", list)
    yield now


@pytest.mark.parametrize(
    ("seconds", "tuned_after", "made", "count"),
    [
        (10, 0, 12, 8),  # four to warm up
        (10, 5, 12, 6),  # six of them until the core has chosen
        (10, 99, 14, 6),  # but not longer than a part of the time
        (0, 0, 10, 6),  # five calls count, whatever the time
        (1e6, 0, 1004, 1000),
        (1e6, 1e6, 1050, 1000),
    ],
)
def test_how_many_calls_a_size_has(
    clock: list[float], seconds: float, tuned_after: float, made: int, count: int
) -> None:
    numbers = []

    def call(number: int) -> tuple[float, float]:
        numbers.append(number)
        clock[0] += 1
        return 1.0, 0.5

    times = calibrate_calls._blocks(call, 2, seconds, lambda: len(numbers) > tuned_after)
    assert numbers == list(range(made))
    assert times.whole == [1.0] * count and times.caller == [0.5] * count
    assert times.ranges() == (Range(1.0, 1.0, 1.0), Range(0.5, 0.5, 0.5))


def test_a_size_that_is_there_counts_once(clock: list[float]) -> None:
    """In a large group small sizes are the same."""
    one = Range(1.0, 1.0, 1.0)
    rows = [Collective("all_gather", 4, 1, n, one, one) for n in (16, 16, 1024)]
    asked = []

    def run(seconds: float, row: Collective) -> Collective:
        asked.append(seconds)
        clock[0] += 10
        return row

    todo = [
        calibrate_calls.Task(str(row.bytes), weight, lambda s, row=row: run(s, row))
        for row, weight in zip(rows, (1.0, 1.0, 2.0), strict=True)
    ]
    shown: list[tuple[str, float]] = []
    show = lambda *told: shown.append(told)  # noqa: E731
    assert list(calibrate_calls.measure(todo, 25.0, show)) == [rows[0], rows[2]]
    assert shown == [("16", 0), ("16", 0.25), ("1024", 0.5)]
    assert asked == [25 / 4, 5, 5]  # what is left is shared


def test_the_name_of_an_mpi() -> None:
    version = "Open MPI v5.0.11, package: Open MPI\nident"
    assert here.mpi_name({"name": "Open MPI", "version": version}) == "Open MPI v5.0.11"
    assert here.mpi_name({"name": "MPICH", "version": "4.3.2"}) == "MPICH 4.3.2"
    assert here.mpi_name(None) == ""


def test_the_memory_of_this_node() -> None:
    assert 0 < here.resident() < min(calibrate._limits())


def test_what_is_printed() -> None:
    def spread(middle: float) -> Range:
        return Range(middle, middle, middle)

    zero = spread(1e-6)
    shapes = ((1, 2), (2, 1), (2, 2))
    machine = Machine(
        made="",
        version="",
        processor="",
        mpi="",
        cpus=2,
        memory=2,
        nodes=2,
        ranks=2,
        threads=1,
        rss=1,
        alone=Compute(spread(100e9), spread(20e9), spread(50)),
        together=Compute(spread(50e9), spread(10e9), spread(40)),
        collectives=tuple(
            Collective(operation, *shape, nbytes, spread(nbytes / 2e9), zero)
            for operation in ("all_reduce", "send")
            for shape in shapes
            for nbytes in (8, 64 << 20)
        ),
        steps=tuple(
            Step(kind, "m", 2, 2, 3, 9, spread(1.0), spread(1.1), spread(step), spread(0.4))
            for kind, step in (("ddp", 1.2), ("tp", 1.6))
        ),
    )
    lines = calibrate.summary(machine)
    assert [line.split(":")[0] for line in lines[:3]] == [
        *("a node (1x2)", "the network (2x1)", "the world (2x2)")
    ]
    assert lines[0].endswith("all_reduce 0.0 us of 8 bytes, 2.00 GB/s of 64 MiB")
    assert lines[4] == (
        "a rank computes, all ranks: 50.0 GFLOP/s, copies 10.0 GB/s, a step of mlp-16M in 25.0 ms"
    )
    hides = [line.partition("; ")[2] for line in lines[5:]]
    assert hides == [f"{part} % of 400.0 ms of 3 collectives hide" for part in (75, 0)]
