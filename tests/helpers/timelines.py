"""Timelines of jobs that never ran: ranks on hosts whose clocks differ, late ranks, overlap."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from paddlempi.trace.model import ASYNC, OPERATION, Group, Names, Rank, Timeline

MS = 1_000_000  # nanoseconds
BEGAN = 1_700_000_000_000 * MS

NAMES = Names(
    operations=("barrier", "all_reduce", "all_gather", "all_to_all", "send", "recv", "sendrecv"),
    dtypes=("float32", "uint8"),
    reduce_ops=("SUM",),
    algorithms=("inline", "slices", "bounce"),
    outcomes=("ok", "timeout", "peer_died"),
)


@dataclasses.dataclass
class Job:
    """What a made-up job does. Times are nanoseconds.

    Attributes:
        hosts: how many ranks each host has.
        steps: how often the calls are repeated.
        calls: of a step: the operation, and its float32 elements.
        step: from one step to the next.
        noise: how unequally the ranks compute: the mean of an exponential distribution.
        latency: of a message to another host; on one host it is 1 us.
        late: what ranks sleep before the first call of each step.
        overlap: what a rank computes after it has submitted all calls of a step, before it waits;
            0: the calls are synchronous.
        move: what moving the data takes.
        offset, drift: of hosts: how far the clock is ahead at BEGAN, and how much faster it runs.
        algorithm: of all calls.
    """

    hosts: Sequence[int] = (1, 1)
    steps: int = 100
    calls: Sequence[tuple[str, int]] = (("all_reduce", 1000),)
    step: int = 10 * MS
    noise: int = MS // 5
    latency: int = 40_000
    late: Mapping[int, int] = dataclasses.field(default_factory=dict)
    overlap: int = 0
    move: int = 0
    offset: Mapping[int, int] = dataclasses.field(default_factory=dict)
    drift: Mapping[int, float] = dataclasses.field(default_factory=dict)
    algorithm: str = "inline"
    seed: int = 0

    def run(self) -> Timeline:
        """Return what a recording of all ranks has."""
        random = np.random.default_rng(self.seed)
        host = np.repeat(np.arange(len(self.hosts)), self.hosts)
        size = len(host)
        ready = BEGAN + MS + np.zeros((self.steps, size), np.int64)
        ready += self.step * np.arange(self.steps)[:, None]
        ready += random.exponential(self.noise, ready.shape).astype(np.int64)
        for rank, sleep in self.late.items():
            ready[:, rank] += sleep
        wire = np.where(host[:, None] == host, 1_000, self.latency)
        made = np.zeros((len(self.calls), self.steps, size), OPERATION)
        before = ready
        for number, (operation, count) in enumerate(self.calls):
            one = made[number]
            one["name"], one["count"] = NAMES.operations.index(operation), count
            one["nbytes"] = 4 * count
            one["seq"] = (np.arange(self.steps) * len(self.calls) + number + 1)[:, None]
            one["submitted"] = ready + 20_000 * number if self.overlap else before
            one["begun"] = one["submitted"] if self.overlap else before
            came = self._told(random, one["begun"], wire)
            one["arrived"] = np.where(came - one["begun"] < 20_000, 0, came)
            before = self._told(random, np.maximum(came, before), wire) + self.move
            one["ended"] = before
            if self.overlap:
                one["flags"] = ASYNC
                wait = np.maximum(ready + self.overlap, before - (before - ready - self.overlap))
                one["waited"] = np.where(wait < before, wait, 0)
        return self._timeline(made, host)

    def _told(self, random: Any, at: Any, wire: Any) -> Any:
        """When each rank has heard of all others what they do at ``at``."""
        took = wire + random.exponential(np.maximum(wire // 4, 1), (len(at), *wire.shape))
        took[:, np.arange(len(wire)), np.arange(len(wire))] = 0
        return (at[:, :, None] + took.astype(np.int64)).max(axis=1)

    def stamp(self, host: int, true: Any) -> Any:
        """Return what the clock of a host says at a true time; the first host has the true one."""
        true = np.asarray(true)
        after = true - BEGAN
        drift = np.rint(after * self.drift.get(host, 0.0)).astype(np.int64)
        return np.where(true == 0, 0, true + self.offset.get(host, 0) + drift)

    def _timeline(self, made: Any, host: Any) -> Timeline:
        size = len(host)
        for name, value in {
            "reduce": -1,
            "root": -1,
            "algorithm": NAMES.algorithms.index(self.algorithm),
            "peers": -1,
            "tags": -1,
        }.items():
            made[name] = value
        made["rank"] = np.arange(size)
        made["number"] = made["seq"]
        for rank in range(size):
            for stamp in ("submitted", "begun", "arrived", "waited", "ended"):
                made[stamp][:, :, rank] = self.stamp(host[rank], made[stamp][:, :, rank])
        operations = made.reshape(-1)
        operations = operations[np.argsort(operations["submitted"], kind="stable")]
        end = BEGAN + self.step * (self.steps + 1)
        ranks = {
            rank: Rank(
                rank=rank,
                size=size,
                host=f"h{host[rank] + 1}",
                boot=f"boot-{host[rank] + 1}",
                pid=1000 + rank,
                state="running",
                began=int(self.stamp(host[rank], BEGAN)),
                taken=int(self.stamp(host[rank], end)),
                lost=0,
                job="1f",
            )
            for rank in range(size)
        }
        return Timeline(ranks, (Group("a0", tuple(range(size))),), operations, NAMES)
