"""``trace report`` over jobs that never ran: who is late, what a step is, what is hidden."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import timelines
from paddlempi.trace import clock, findings, measure, report, report_text
from paddlempi.trace.model import MESSAGE, Timeline
from timelines import MS, Job

LARGE = 6_000_000  # float32


def told(made: report.Report) -> dict[str, findings.Finding]:
    return {finding.kind: finding for finding in findings.of(made)}


def changed(timeline: Timeline, rank: int, **values: Any) -> dict[int, Any]:
    return {**timeline.ranks, rank: dataclasses.replace(timeline.ranks[rank], **values)}


@pytest.mark.parametrize(
    "job",
    [
        Job(hosts=(4,)),
        Job(hosts=(4,), calls=(("all_reduce", 9), ("all_reduce", LARGE), ("all_gather", 7))),
        # All buckets of a step are late at once, which is late once.
        Job(hosts=(4,), calls=(("all_reduce", LARGE),) * 3, overlap=9 * MS, move=3 * MS),
        Job(hosts=(2, 2), offset={1: 10_000 * MS}, drift={1: 30e-6}, algorithm="slices"),
        # The clocks are known to 2 ms only, but who has waited how long is known.
        Job(hosts=(2, 2), offset={1: 10_000 * MS}, drift={1: 30e-6}),
    ],
    ids=["one call", "three calls", "overlap", "hosts", "hosts that are known badly"],
)
def test_a_rank_that_sleeps_5_ms_a_step_is_named(job: Job) -> None:
    made = report.make(dataclasses.replace(job, step=40 * MS, late={2: 5 * MS}).run())
    worst = made.late[0]
    assert worst.rank == 2
    assert worst.median == pytest.approx(5 * MS, abs=MS // 2)
    assert worst.share == 1.0
    assert all(other.total < worst.total / 20 for other in made.late[1:])
    finding = told(made)["late"]
    assert finding.ranks == (2,)
    assert "Rank 2" in finding.text and "5.0 ms late" in finding.text and finding.advice
    if not job.overlap:
        assert made.ranks[2].cost == pytest.approx(3 * 100 * 5 * MS, rel=0.1)


def test_a_rank_that_is_late_in_some_steps() -> None:
    job = Job(hosts=(3,), steps=200, calls=(("all_reduce", 9), ("barrier", 0)))
    timeline = job.run()
    o = timeline.operations
    moved = (o["seq"] - 1) // 2 % 5 == 0
    for stamp in ("submitted", "begun"):
        o[stamp][moved & (o["rank"] == 1) & (o["seq"] % 2 == 1)] += 4 * MS
    late = moved & (o["seq"] % 2 == 1)
    o["ended"][late] += 4 * MS
    o["arrived"][late & (o["rank"] != 1)] = o["ended"][late & (o["rank"] != 1)]
    o["arrived"][late & (o["rank"] == 1)] = 0
    for stamp in ("submitted", "begun", "ended"):
        o[stamp][moved & (o["seq"] % 2 == 0)] += 4 * MS
    o["arrived"][moved & (o["seq"] % 2 == 0)] = 0
    finding = told(report.make(timeline))["late"]
    assert finding.ranks == (1,)
    assert "late in 20%" in finding.text and "4.1 ms" in finding.text


def test_ranks_that_are_late_in_turns() -> None:
    made = report.make(Job(hosts=(4,), noise=2 * MS).run())
    assert "turns" in told(made) and "late" not in told(made)


def test_the_times_of_a_kind() -> None:
    made = report.make(Job(hosts=(2,), noise=1_000, calls=(("all_reduce", LARGE),), move=MS).run())
    [kind] = made.kinds
    assert (kind.operation, kind.dtype, kind.calls) == ("all_reduce", "float32", 100)
    assert (kind.least, kind.most) == (4 * LARGE, 4 * LARGE)
    assert [part.rank for part in kind.parts] == [0, 1]
    assert kind.parts[0].nbytes == 100 * 4 * LARGE
    assert kind.mean("moved") == pytest.approx(100 * MS, rel=0.02)
    assert kind.mean("waited") < 5 * MS
    assert kind.rate == pytest.approx(4 * LARGE / MS, rel=0.02)
    assert kind.hidden == pytest.approx(0.0, abs=0.05), "its caller did nothing else"
    finding = told(made)["network"]
    assert "the memory of the node is the limit" in finding.text
    assert "async_op=True" in finding.advice


@pytest.mark.parametrize("overlap, hidden", [(1 * MS, 0.25), (3 * MS, 0.75), (30 * MS, 1.0)])
def test_the_hidden_share(overlap: int, hidden: float) -> None:
    job = Job(hosts=(2,), noise=1_000, calls=(("all_reduce", LARGE),), move=4 * MS, overlap=overlap)
    timeline = job.run()
    if hidden == 1.0:  # as of works that have ended before anybody waits; others have been awaited
        timeline.operations["waited"][timeline.operations["seq"] == 1] = timelines.BEGAN + 4 * MS
    made = report.make(timeline)
    assert made.kinds[0].hidden == pytest.approx(hidden, abs=0.03)
    assert ("hidden" in told(made)) == (hidden == 1.0)


def test_what_is_hidden_is_not_known_without_the_stamp() -> None:
    """Dumps of older releases do not say when callers began to wait."""
    timeline = Job(hosts=(2,), calls=(("all_reduce", LARGE),), move=MS, overlap=MS // 2).run()
    timeline.operations["waited"] = 0
    made = report.make(timeline)
    assert made.kinds[0].hidden is None
    assert made.ranks[0].part.exposed is None
    assert not {"hidden", "network"} & told(made).keys()


def test_a_transfer_that_nobody_takes_further_is_not_hidden() -> None:
    """It lies about while the caller computes, and moves once the caller waits."""
    job = Job(hosts=(2,), noise=1_000, calls=(("all_reduce", LARGE),) * 2, step=40 * MS)
    timeline = dataclasses.replace(job, move=2 * MS, overlap=10 * MS).run()
    o = timeline.operations
    second = o["seq"] % 2 == 0
    o["ended"][~second] += 10 * MS  # the first one of a step lies for 10 ms
    o["waited"][~second] = o["submitted"][~second] + 10 * MS
    o["ended"][second] = o["ended"][~second] + 2 * MS
    o["waited"][second] = o["ended"][~second]
    assert report.make(timeline).kinds[0].hidden == pytest.approx(0.0, abs=0.05)


def test_many_tiny_calls() -> None:
    job = Job(hosts=(2,), calls=(*(("all_reduce", 4),) * 30, ("barrier", 0)), noise=1_000)
    finding = told(report.make(dataclasses.replace(job, move=30_000).run()))["tiny"]
    assert "31 calls a step" in finding.text and "all_reduce_coalesced" in finding.advice


def test_shares_that_differ_by_rank() -> None:
    timeline = Job(hosts=(4,), calls=(("all_to_all", LARGE),), move=2 * MS).run()
    o = timeline.operations
    o["count"][o["rank"] == 3] *= 2
    o["nbytes"][o["rank"] == 3] *= 2
    o["count"] = o["count"] // 2 * 2
    kinds = {part.rank: k for k in report.make(timeline).kinds for part in k.parts}
    assert kinds[3].imbalance == 0.0, "it is of another class of sizes"
    o["nbytes"][o["rank"] == 3] = round(4 * LARGE * 1.3)
    finding = told(report.make(timeline))["imbalance"]
    assert finding.ranks == (3,) and "21% more bytes" in finding.text
    o["count"] = -1  # the signature tells no length: one class
    o["nbytes"] = LARGE * np.where(o["rank"] == 3, 80, 4)
    assert report.make(timeline).kinds[0].imbalance == pytest.approx(80 / 23 - 1)


def test_nothing_stands_out() -> None:
    assert list(told(report.make(Job(hosts=(2,), noise=1_000).run()))) == ["fine"]


def period_of(timeline: Timeline) -> measure.Period | None:
    return measure.period(clock.align(timeline), 0)


def test_a_step_is_what_repeats() -> None:
    calls = (("all_reduce", 9), ("all_reduce", 9), ("all_gather", 3), ("all_reduce", 70))
    timeline = Job(hosts=(2,), calls=calls, steps=50).run()
    found = period_of(timeline)
    assert found is not None
    assert (found.calls, found.first, found.steps) == (4, 1, 50)
    assert found.time == pytest.approx(10 * MS, rel=0.05)
    # A program begins with something else, and the recording in the middle of a step.
    o = timeline.operations
    o["name"][o["seq"] <= 6] = 0
    found = period_of(dataclasses.replace(timeline, operations=o[o["seq"] > 2]))
    assert found is not None
    assert (found.calls, found.first % 4) == (4, 1)
    assert found.first <= 9


def test_a_step_of_equal_calls_is_found_by_its_pauses() -> None:
    found = period_of(Job(hosts=(2,), calls=(("all_reduce", 9),) * 5, steps=50).run())
    assert found is not None
    assert (found.calls, found.first) == (5, 1)


def test_calls_that_do_not_repeat_have_no_step() -> None:
    timeline = Job(hosts=(2,), steps=60, late={1: 5 * MS}).run()
    o = timeline.operations
    o["count"] = o["seq"] ** 2
    o["nbytes"] = 4 * o["count"]
    made = report.make(timeline)
    assert made.steps == ()
    assert made.late[0].rank == 1
    assert made.late[0].median == pytest.approx(5 * MS, abs=MS // 2)
    assert "60 of 60 calls" in told(made)["late"].text


def test_messages_have_kinds_of_their_own() -> None:
    timeline = Job(hosts=(2,)).run()
    o = timeline.operations
    send = o["seq"] % 2 == 0
    o["name"][send] = timelines.NAMES.operations.index("send")
    o["flags"][send], o["seq"][send] = MESSAGE, -1
    kinds = {kind.operation: kind for kind in report.make(timeline).kinds}
    assert kinds["send"].is_message and kinds["send"].calls == 100
    assert kinds["all_reduce"].calls == 50


def test_what_is_missing_comes_first() -> None:
    timeline = Job(hosts=(3,), steps=30).run()
    o = timeline.operations
    died = (o["rank"] == 1) & (o["seq"] == 30)
    o["ended"][died], o["arrived"][died], o["outcome"][died] = 0, 0, -1
    o["outcome"][(o["rank"] != 1) & (o["seq"] == 30)] = timelines.NAMES.outcomes.index("peer_died")
    ranks = changed(timeline, 1, state="ended", ended=timelines.BEGAN + 400 * MS)
    ranks[0] = dataclasses.replace(ranks[0], lost=10)
    for rank, one in ranks.items():
        ranks[rank] = dataclasses.replace(one, size=4)
    made = report.make(
        dataclasses.replace(timeline, ranks=ranks, warnings=["x.json was cut, and is left out"])
    )
    text = report_text.as_text(made)
    head = text[: text.index("What stands out:")]
    assert "3 of 4 ranks" in head
    assert "DIED: rank 1 (process 1001 on h1) in all_reduce, as ranks 0 and 2 say." in head
    assert "MISSING: rank 3: it was not recorded" in head
    assert "LOST: 10 operations" in head and "rank 0" in head
    assert "x.json was cut, and is left out" in head


def test_a_rank_without_operations() -> None:
    timeline = Job(hosts=(2,)).run()
    o = timeline.operations
    ranks = changed(timeline, 1, problem="process 7: permission denied")
    made = report.make(dataclasses.replace(timeline, operations=o[o["rank"] == 0], ranks=ranks))
    assert made.absent == {1: "process 7: permission denied"}
    assert made.late == ()
    empty = report.make(dataclasses.replace(timeline, operations=o[:0]))
    assert empty.kinds == () and "Nothing stands out" in report_text.as_text(empty)


def test_the_text_has_80_columns_and_json_has_all() -> None:
    job = Job(
        hosts=(2, 2),
        calls=(("all_reduce", 9), ("all_reduce", LARGE), ("barrier", 0)),
        late={3: 5 * MS},
        offset={1: 20 * MS},
        step=40 * MS,
        move=MS,
    )
    made = report.make(job.run())
    text = report_text.as_text(made)
    assert max(map(len, text.splitlines())) <= 80
    assert "all_reduce float32" in text and "22.9 MiB" in text
    assert "Host h2: -20.0" in text
    data = json.loads(report_text.as_json(made))
    assert data["late"][0]["rank"] == 3
    assert data["findings"][0]["kind"] == "late"
    assert {kind["operation"] for kind in data["kinds"]} == {"all_reduce", "barrier"}
    assert data["clocks"][1]["error_ns"] < 100_000
    assert data["steps"][0]["calls"] == 3
    assert data["ranks"][3]["part"]["rank"] == 3


def test_the_arrays_are_by_row_and_by_collective() -> None:
    timeline = clock.align(Job(hosts=(2,), late={1: 5 * MS}).run())
    times, came = measure.times(timeline), measure.arrivals(timeline)
    assert len(times) == len(timeline.operations)
    assert len(came) == 100 and set(came["rank"].tolist()) == {1}
    first = timeline.operations["rank"] == 0
    assert np.median(times["waited"][first]) == pytest.approx(5 * MS, rel=0.1)
    assert (times["waited"][~first] < MS).all()


@pytest.mark.parametrize(
    "ns, text", [(3, "3 ns"), (5_000_000, "5.0 ms"), (2_500, "2.5 us"), (1.5e9, "1.5 s")]
)
def test_times_as_people_read_them(ns: float, text: str) -> None:
    assert findings.shown(ns) == text


def test_numbers_that_cannot_be() -> None:
    """A part may come from anywhere: it takes no more time or memory than it has operations."""
    timeline = Job(hosts=(1, 1), steps=40, late={1: 5 * MS}).run()
    o = timeline.operations
    most = np.iinfo(np.int64).max
    o["seq"][-20:] = most - np.arange(20)[::-1] // 2
    o["submitted"][0], o["begun"][4], o["ended"][6] = 1, most, most
    o["nbytes"][3], o["count"][3] = most, most
    made = report.make(timeline)
    assert {late.rank for late in made.late} == {0, 1}
    assert json.loads(report_text.as_json(made))["size"] == 2
    assert report_text.as_text(made)
