"""Random programs of messages in several threads, judged by MPI's rules of matching."""

from __future__ import annotations

import os
import random
import time
from types import ModuleType

import pytest
from matching import Class, Message, Receive, Run, content_of, judge, program_of

SECONDS = float(os.environ.get("MATCHING_SECONDS", "6"))


def test_random_programs(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)), timeout=30)
    until, count = time.monotonic() + SECONDS, 0
    seed: int | None = 0
    while seed is not None:
        seeds = [random.randrange(1 << 32) if time.monotonic() < until else None]
        dist.broadcast_object_list(seeds, 0)
        (seed,) = seeds
        if seed is not None:
            wrong: list[list[str]] = [[]] * size
            found = Run(dist, group, program_of(seed, size), rank, seed).carry_out()
            dist.all_gather_object(wrong, found[:3])
            assert not any(wrong), (seed, wrong)
            count += 1
    assert count > 1
    dist.destroy_process_group(group)


# What the judge lets pass and what it does not.
MESSAGES = [Message(i, 1, i // 2, 0, i % 2, 16, i % 2) for i in range(4)]


def receive(at: int, number: int, of: Class, over: int = 0, sent: int = 1) -> Receive:
    content = content_of(MESSAGES[number], sent).tobytes()
    return Receive(of, at, at + 1, over or at + 1, 1, content)


ALL, TAG_0 = Class(-1, -1, 16), Class(1, 0, 16)


@pytest.mark.parametrize(
    ("numbers", "times", "says"),
    [
        ([0, 1, 2, 3], [10, 20, 30, 40], ""),
        ([0, 2, 1, 3], [10, 20, 30, 40], ""),
        ([1, 0, 2, 3], [10, 20, 30, 40], "sent before it"),
        ([1, 0, 2, 3], [10, 10, 30, 40], ""),
        ([0, 1, 2, 2], [10, 20, 30, 40], "received before"),
        ([0, 1, 2], [10, 20, 30], "3 receives of 4"),
    ],
)
def test_the_judge(numbers: list[int], times: list[int], says: str) -> None:
    wrong = judge(MESSAGES, [receive(at, n, ALL) for n, at in zip(numbers, times, strict=True)])
    assert says in str(wrong)
    assert bool(says) == bool(wrong)


def test_the_judge_knows_what_a_receive_asks_for() -> None:
    receives = [receive(10, 1, ALL), receive(20, 0, TAG_0)]
    receives += [receive(30, 2, ALL), receive(40, 3, ALL)]
    assert judge(MESSAGES, receives)
    receives[0].of = Class(1, 1, 16)
    assert not judge(MESSAGES, receives)
    receives[1].of = Class(1, 1, 16)
    assert "got Message" in str(judge(MESSAGES, receives))


def test_the_judge_knows_what_was_there() -> None:
    """The first receive got what was sent after the second one had what it should have taken."""
    receives = [receive(10, 2, ALL, 60, sent=50), receive(20, 0, ALL, 21, sent=15)]
    receives += [receive(70, 1, ALL), receive(80, 3, ALL)]
    assert "which it had to take" in str(judge(MESSAGES, receives))
    receives[1].over = 51
    assert not judge(MESSAGES, receives)
