"""One clock for several hosts: the true offset lies within the error that is stated."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import timelines
from paddlempi.trace import bounds, clock
from paddlempi.trace.model import MESSAGE, OPERATION, Timeline
from timelines import MS, Job


def outside(job: Job, made: Timeline, host: int) -> float:
    """Return how far the worst stamp is from the truth, in errors: right is at most 1."""
    true = timelines.BEGAN + MS + np.linspace(0, job.step * job.steps, 101).astype(np.int64)
    shift = made.clocks.hosts[host].shift
    got = shift.of(job.stamp(host, true))
    return float((np.abs(got - true) / shift.error_at(got)).max())


def test_the_offset_lies_within_the_error_in_200_of_200_runs() -> None:
    errors = []
    for seed in range(200):
        random = np.random.default_rng(seed)
        job = Job(
            steps=300,  # 3 s of 100 calls a second
            offset={1: int(random.uniform(-5e9, 5e9))},
            drift={1: random.uniform(-50e-6, 50e-6)},
            late={1: 5 * MS} if seed % 4 == 0 else {},
            algorithm="slices" if seed % 4 == 0 else "inline",
            seed=seed,
        )
        made = clock.align(job.run())
        assert outside(job, made, 1) <= 1.0, seed
        found = made.clocks.hosts[1]
        assert found.problem == ""
        assert abs(found.drift_ppm + job.drift[1] * 1e6) < 60
        errors.append(found.error)
    assert max(errors) < 100_000, "40 us to the other host"


def test_the_error_grows_where_one_host_always_comes_last() -> None:
    """Nothing that the first host does is then seen on the second one before it comes."""
    late = Job(late={1: 5 * MS}, offset={1: 70 * MS})
    made = clock.align(late.run())
    assert outside(late, made, 1) <= 1.0
    assert 1 * MS < made.clocks.hosts[1].error < 4 * MS
    # With data that follows the arrival it is seen.
    moving = clock.align(dataclasses.replace(late, algorithm="slices").run())
    assert moving.clocks.hosts[1].error < 100_000


def test_operations_are_shifted_and_ordered() -> None:
    job = Job(hosts=(2, 2), offset={1: 3_000 * MS}, noise=1_000)
    made = clock.align(job.run())
    o = made.operations
    assert np.all(np.diff(o["submitted"]) >= 0)
    assert np.ptp(o["begun"][o["seq"] == 50]) < 1 * MS
    assert np.all(o["arrived"][o["arrived"] > 0] > timelines.BEGAN)
    assert abs(made.ranks[3].began - timelines.BEGAN) < 1 * MS
    assert clock.align(made) is made
    assert (o["waited"] == 0).all(), "what has not come stays so"


def test_moments_that_are_nearer_than_the_error_are_not_ordered() -> None:
    made = clock.align(Job(hosts=(2, 1)).run())
    at, error = timelines.BEGAN + 300 * MS, made.clocks.hosts[1].error
    later = at + np.array([1, round(error) // 2, 2 * round(error)])
    assert clock.ordered(made, 0, at, 2, later).tolist() == [0, 0, -1]
    assert clock.ordered(made, 2, later, 0, at).tolist() == [0, 0, 1]
    assert clock.ordered(made, 0, at, 1, later).tolist() == [-1, -1, -1], "they share a clock"


def test_hosts_that_share_no_collective_are_compared_over_a_third() -> None:
    job = Job(hosts=(1, 1, 1), offset={1: 5 * MS, 2: 900 * MS}, drift={2: 20e-6})
    timeline = job.run()
    o = timeline.operations
    # Even calls are of the ranks 0 and 1, odd ones of 1 and 2.
    odd = o["seq"] % 2 == 1
    kept = (odd & (o["rank"] > 0)) | (~odd & (o["rank"] < 2))
    o["group"] = odd
    groups = tuple(dataclasses.replace(timeline.groups[0], key=key) for key in "ab")
    made = clock.align(dataclasses.replace(timeline, operations=o[kept], groups=groups))
    assert made.clocks.hosts[2].via == ("h1", "h2", "h3")
    assert outside(job, made, 2) <= 1.0
    assert made.clocks.hosts[2].error > made.clocks.hosts[1].error
    assert "over h2" in made.clocks.sentences()[1]


def test_ten_hosts() -> None:
    job = Job(hosts=(1,) * 10, offset={h: h * 7 * MS for h in range(1, 10)})
    made = clock.align(job.run())
    assert all(outside(job, made, host) <= 1.0 for host in range(1, 10))


def test_a_host_without_a_bound_is_said_to_have_none() -> None:
    timeline = Job(hosts=(1, 1)).run()
    alone = timeline.operations[timeline.operations["rank"] == 0]
    made = clock.align(dataclasses.replace(timeline, operations=alone))
    assert made.clocks.hosts[1].error == math.inf
    assert "taken as it is" in made.warnings[0]
    assert "may be off by any time" in made.clocks.sentences()[0]
    assert clock.ordered(made, 0, 0, 1, 10**15) == 0
    assert json.loads(json.dumps(made.clocks.hosts[1].as_dict()))["error_ns"] is None


def test_a_clock_that_steps() -> None:
    job = Job(steps=1000)
    timeline = job.run()
    o = timeline.operations
    for stamp in ("submitted", "begun", "arrived", "ended"):
        moved = (o["rank"] == 1) & (o[stamp] > timelines.BEGAN + 5_000 * MS)
        o[stamp][moved] += 40 * MS
    made = clock.align(timeline)
    [warning] = made.warnings
    assert "no line fits its clock" in warning or "steps by" in warning
    shift = made.clocks.hosts[1].shift
    for true, step in ((timelines.BEGAN + 2_000 * MS, 0), (timelines.BEGAN + 8_000 * MS, 40 * MS)):
        got = int(shift.of(np.array([true + step]))[0])
        assert abs(got - true) <= shift.error_at(np.array([got]))[0] < 200_000


def test_a_wrong_stamp_spoils_a_moment_only() -> None:
    job = Job(steps=1000, offset={1: 30 * MS})
    timeline = job.run()
    o = timeline.operations
    row = np.flatnonzero((o["rank"] == 1) & (o["seq"] == 500))[0]
    o["begun"][row] += 400 * MS
    made = clock.align(timeline)
    assert "no line fits its clock" in made.warnings[0]
    assert outside(job, made, 1) <= 1.0
    begin = timelines.BEGAN + 2_000 * MS
    assert made.clocks.hosts[1].shift.error_at(np.array([begin]))[0] < 100_000


def test_a_long_recording_is_fitted_in_windows() -> None:
    """Over 5 minutes the drift changes, by the temperature, and no line fits all of it."""
    job = Job(steps=3000, step=100 * MS, offset={1: MS})
    timeline = job.run()
    o = timeline.operations

    def bent(stamps: Any) -> Any:
        after = (stamps - timelines.BEGAN) / 1e9
        return np.where(stamps == 0, 0, stamps + (after**2 * 1.0).astype(np.int64))  # 90 us

    mine = o["rank"] == 1
    for stamp in ("submitted", "begun", "arrived", "ended"):
        o[stamp][mine] = bent(o[stamp][mine])
    made = clock.align(timeline)
    shift = made.clocks.hosts[1].shift
    true = timelines.BEGAN + np.linspace(MS, 300_000 * MS, 500).astype(np.int64)
    got = shift.of(bent(job.stamp(1, true)))
    assert np.all(np.abs(got - true) <= shift.error_at(got))
    assert made.clocks.hosts[1].error < 100_000


def messages(pairs: int, back: bool, first: int = 1) -> Timeline:
    """Two hosts with an offset of 10 ms, that exchange messages and have no collective."""
    job = Job(steps=1, offset={1: 10 * MS})
    timeline = job.run()
    made = np.zeros(2 * pairs, OPERATION)
    made["group"], made["seq"], made["flags"], made["algorithm"] = 0, -1, MESSAGE, -1
    for i in range(pairs):
        sender = i % 2 if back else 0
        at = timelines.BEGAN + (i + 1) * MS
        for row, rank, name, begin, end in (
            (2 * i, sender, "send", at, at + 5_000),
            (2 * i + 1, 1 - sender, "recv", at - 20_000, at + 60_000),
        ):
            one = made[row]
            one["rank"], one["name"] = rank, timelines.NAMES.operations.index(name)
            one["number"], one["peers"] = first + i, (1 - rank, -1)
            for stamp, value in (("submitted", begin), ("begun", begin), ("ended", end)):
                one[stamp] = job.stamp(rank, value)
    return dataclasses.replace(timeline, operations=made)


def test_messages_bound_clocks_too() -> None:
    made = clock.align(messages(40, back=True))
    found = made.clocks.hosts[1]
    assert found.bounds == 40
    assert abs(found.offset + 10 * MS) <= found.error < 100_000


def test_messages_that_may_be_others_do_not() -> None:
    """One way only bounds one side; and the n-th send is the n-th receive of a whole recording."""
    for made in (messages(40, back=False), messages(40, back=True, first=2)):
        assert clock.align(made).clocks.hosts[1].error == math.inf


def test_clocks_survive_json() -> None:
    made = clock.align(Job(offset={1: 3 * MS}).run())
    one = made.clocks.hosts[1]
    again = clock.Clock.from_dict(json.loads(json.dumps(one.as_dict())))
    assert again.offset == one.offset and again.via == one.via
    assert again.error == pytest.approx(one.error, abs=1)


@pytest.mark.parametrize(
    "change", [{"at": [0.0, 0.0]}, {"offset": [1.0]}, {"at": [0.0, math.inf]}, {"error": "x"}]
)
def test_a_shift_that_is_none(change: dict[str, Any]) -> None:
    data = bounds.Shift.none(5, 10).as_dict()
    with pytest.raises(ValueError):
        bounds.Shift.from_dict({**data, **change})


def test_shifts_one_after_the_other() -> None:
    first = bounds.Shift(100, 10, np.array([0.0, 1e6]), np.array([0.0, 50.0]), np.array([1.0, 2.0]))
    second = bounds.Shift(0, -7, np.array([0.0, 2e6]), np.array([3.0, 9.0]), np.array([4.0, 4.0]))
    both = first.then(second)
    stamps = np.array([0, 100, 400_000, 1_000_100])
    assert np.all(np.abs(both.of(stamps) - second.of(first.of(stamps))) <= 1)
    assert both.error_at(both.of(stamps[1:])) == pytest.approx([5.0, 5.4, 6.0], abs=0.01)
