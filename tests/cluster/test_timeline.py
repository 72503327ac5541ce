"""Two hosts on one clock: the stamps of one are shifted before they are merged, by what is known.

Hosts of one machine share its clock, so the true offset is what was added.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import reports
from hosts import Hosts
from mpis import MPI
from paddlempi import trace
from paddlempi.trace import clock, report

STAMPS = ("submitted", "begun", "arrived", "waited", "ended")
RUNS = 200
MOST_ERROR = 100_000  # ns, with 100 blocking calls a second


def recorded(mpi: MPI, hosts: Hosts, place: Path, *how: str) -> trace.Timeline:
    program = [reports.HERE / "ranks_timeline.py", place, *how]
    result = mpi.run(hosts, reports.LAYOUTS["1 and 1"], program, timeout=60)
    assert result.code == 0 and not result.timed_out, str(result)
    return trace.load(place)


def shifted(timeline: trace.Timeline, offset: int, drift: float, since: int) -> trace.Timeline:
    """Return the timeline with a clock of rank 1 that is wrong."""
    o = timeline.operations.copy()
    mine = o["rank"] == 1
    for stamp in STAMPS:
        at = o[stamp][mine]
        wrong = at + offset + np.rint((at - since) * drift).astype(np.int64)
        o[stamp][mine] = np.where(at == 0, 0, wrong)
    return dataclasses.replace(timeline, operations=o, clocks=None)


def test_the_true_offset_lies_within_the_error(openmpi: MPI, hosts: Hosts) -> None:
    with reports.directory(hosts) as place:
        timeline = recorded(openmpi, hosts, place)
    assert {rank.host for rank in timeline.ranks.values()} == {"h1", "h2"}
    o = timeline.operations
    mine = o["submitted"][o["rank"] == 1]
    since, random = int(mine.min()), np.random.default_rng(0)
    errors = []
    for run in range(RUNS):
        offset, drift = int(random.uniform(-5e9, 5e9)), random.uniform(-50e-6, 50e-6)
        # Of other seconds of the recording each time, as of other recordings.
        begin = since + int(random.uniform(0, 1e9))
        some = dataclasses.replace(timeline, operations=o[o["submitted"] > begin])
        made = clock.align(shifted(some, offset, drift, since))
        true = np.linspace(begin, mine.max(), 20).astype(np.int64)
        wrong = true + offset + np.rint((true - since) * drift).astype(np.int64)
        shift = made.clocks.hosts[1].shift
        got = shift.of(wrong)
        assert np.all(np.abs(got - true) <= shift.error_at(got)), (run, offset, drift)
        errors.append(made.clocks.hosts[1].error)
    assert np.median(errors) <= MOST_ERROR


def test_a_rank_that_sleeps_on_another_host(openmpi: MPI, hosts: Hosts) -> None:
    with reports.directory(hosts) as place:
        timeline = recorded(openmpi, hosts, place, "late")
    since = int(timeline.operations["submitted"].min())
    made = report.make(shifted(timeline, 2_000_000_000, 30e-6, since))
    late = made.late[0]
    assert late.rank == 1
    assert abs(late.median - 5_000_000) <= 500_000
