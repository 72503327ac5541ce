"""The coordinator of an elastic job: who is in the next world, and what the others are told."""

from __future__ import annotations

from typing import Any

import pytest
from paddlempi.elasticity.coordinator import Coordinator


class Job:
    """A coordinator, and what it has said to each process and on stderr."""

    def __init__(self, number: int, least: int = 1) -> None:
        self.said: dict[int, list[dict[str, Any]]] = {}
        self.lines: list[str] = []
        self.coordinator = Coordinator(
            least,
            lambda key, message: self.said.setdefault(key, []).append(message),
            self.lines.append,
        )
        for key in range(number):
            self.coordinator.started(key, f"rank {key}")

    def take(self, key: int, what: str, **more: Any) -> None:
        self.coordinator.take(key, {"say": what, **more})

    def ready(self, *keys: int, **more: Any) -> None:
        for key in keys:
            self.take(key, "ready", **more)

    def come_in(self, *keys: int, step: int = 0) -> None:
        for key in keys:
            self.take(key, "in", generation=self.coordinator.generation, step=step)

    def words(self, key: int) -> list[str]:
        """What a process was told since this was last asked."""
        return [message["say"] for message in self.said.pop(key, [])]

    def world(self, *keys: int) -> int:
        """The number of the world that these processes are told of, in the order of their ranks."""
        numbers = set()
        for rank, key in enumerate(keys):
            (message,) = [one for one in self.said.pop(key) if one["say"] == "world"]
            assert (message["rank"], message["size"], message["keys"]) == (
                rank,
                len(keys),
                list(keys),
            )
            numbers.add(message["generation"])
        (number,) = numbers
        return int(number)


def begun(number: int, least: int = 1) -> Job:
    """A job whose ranks are all in their first world."""
    job = Job(number, least)
    job.ready(*range(number))
    assert job.world(*range(number)) == 0
    job.come_in(*range(number))
    assert job.lines == []
    return job


def test_the_first_world_waits_for_all() -> None:
    job = Job(3)
    job.ready(2, 0)
    assert job.said == {}
    job.ready(1)
    assert job.world(0, 1, 2) == 0


def test_a_rank_dies_before_the_first_world() -> None:
    """It is not waited for, unless another one is to be started in its place."""
    job = Job(3)
    job.ready(0, 2)
    job.coordinator.expected = 1
    job.coordinator.ended(1, "rank 1 was killed")
    assert job.said == {}
    job.coordinator.started(7, "rank 1")
    job.coordinator.expected = 0
    job.ready(7)
    assert job.world(0, 2, 7) == 0


def test_the_survivors_go_on_in_their_order() -> None:
    job = begun(3)
    job.coordinator.ended(0, "rank 0 was killed")
    job.ready(2)
    assert job.said == {}
    job.ready(1)
    assert job.world(1, 2) == 1
    job.come_in(1, 2, step=9)
    (line,) = job.lines
    assert line.startswith("rank 0 was killed: 2 ranks go on with step 9 after ")


def test_a_newcomer_is_told_of_once_and_comes_last() -> None:
    job = begun(2)
    job.coordinator.started(5, "rank 2")
    job.ready(5)
    assert job.words(0) == job.words(1) == ["newcomer"]
    job.ready(1, 0)
    assert job.world(0, 1, 5) == 1
    job.come_in(0, 1, 5, step=4)
    assert job.lines[0].startswith("1 process has come: 3 ranks go on with step 4 after ")


def test_a_newcomer_that_still_imports_is_not_waited_for() -> None:
    job = begun(3)
    job.coordinator.ended(1, "rank 1 was killed")
    job.coordinator.started(5, "rank 1")
    job.ready(0, 2)
    assert job.world(0, 2) == 1


def test_fewer_than_it_needs_wait_for_a_newcomer_or_end() -> None:
    job = begun(3, least=3)
    job.coordinator.expected = 1
    job.coordinator.ended(1, "rank 1 was killed")
    job.ready(0, 2)
    assert job.said == {}
    job.coordinator.expected = 0
    job.coordinator.decide()
    assert job.words(0) == job.words(2) == ["stop"]
    assert job.lines == ["rank 1 was killed; 2 rank(s) live, and the job needs 3"]


def test_a_program_may_need_more_ranks_than_the_launcher_was_told() -> None:
    job = begun(3)
    job.coordinator.ended(0, "rank 0 was killed")
    job.ready(1, 2, least=3)
    assert job.words(1) == ["stop"]


def test_a_part_of_a_fixed_size_waits() -> None:
    job = begun(2)
    job.coordinator.ended(0, "rank 0 was killed")
    job.coordinator.started(4, "rank 0")
    job.ready(1, fixed=True)
    assert job.said == {}
    job.ready(4, fixed=True)
    assert job.world(1, 4) == 1


def test_a_death_while_they_meet_ends_the_meeting() -> None:
    """Nobody waits in the store for one that never comes; those that did not meet muster again."""
    job = begun(3)
    job.coordinator.ended(0, "rank 0 was killed")
    job.ready(1, 2)
    job.world(1, 2)
    job.take(1, "set", keys=["a"], values=["MQ=="])
    job.take(2, "get", keys=["a", "b"])
    assert job.said.pop(2) == [{"say": "values", "values": ["MQ==", ""]}]
    job.words(1)
    job.coordinator.ended(2, "rank 2 was killed")
    job.take(1, "get", keys=["a"])
    assert job.words(1) == ["lost"]
    job.ready(1)
    assert job.world(1) == 2
    job.take(1, "get", keys=["a"])
    assert job.said.pop(1) == [{"say": "values", "values": [""]}]
    job.come_in(1, step=3)
    assert job.lines[0].startswith(
        "rank 0 was killed; rank 2 was killed: 1 rank goes on with step 3"
    )


def test_one_that_gives_the_meeting_up_ends_it_for_all() -> None:
    job = begun(2)
    job.ready(0, 1)
    job.world(0, 1)
    job.ready(0)
    job.take(1, "get", keys=["a"])
    assert job.words(1) == ["lost"]


def test_swap_compares() -> None:
    job = begun(1)
    job.take(0, "swap", keys=["a"], values=["", "MQ=="])
    job.take(0, "swap", keys=["a"], values=["", "Mg=="])
    job.take(0, "delete", keys=["a"])
    job.take(0, "get", keys=["a"])
    answers = [one["values"][0] for one in job.said.pop(0)]
    assert answers == ["MQ==", "", "MQ==", ""]


def test_all_finish() -> None:
    job = begun(2)
    job.take(0, "finished")
    assert job.said == {}
    job.take(1, "finished")
    assert job.words(0) == job.words(1) == ["over"]
    job.take(0, "leave")
    job.take(1, "leave")
    job.coordinator.ended(0, "rank 0 ended")
    job.coordinator.ended(1, "rank 1 ended")
    assert job.coordinator.over and job.lines == []


def test_one_that_does_not_know_that_the_last_step_counts() -> None:
    """It has lost that step with a rank that died, and the others come back to tell it."""
    job = begun(3)
    job.take(0, "finished")
    job.coordinator.ended(1, "rank 1 was killed")
    job.ready(2)
    assert job.words(0) == ["muster"]
    job.ready(0)
    assert job.world(0, 2) == 1


def test_a_death_after_all_have_finished_makes_the_world_whole() -> None:
    job = begun(3)
    job.take(0, "finished")
    job.coordinator.ended(1, "rank 1 was killed")
    job.take(2, "finished")
    assert "muster" in job.words(0) + job.words(2)


def test_a_newcomer_of_a_training_that_is_over_is_not_needed() -> None:
    job = begun(1)
    job.coordinator.started(3, "rank 1")
    job.take(0, "finished")
    job.take(0, "leave")
    job.ready(3)
    assert set(job.words(3)) == {"ended"} and job.coordinator.over


def test_nobody_has_the_state_any_more() -> None:
    """A newcomer does not begin from the start, as if nothing had been."""
    job = begun(2)
    job.coordinator.started(3, "rank 2")
    job.ready(3)
    for key in (0, 1):
        job.coordinator.ended(key, f"rank {key} was killed")
    assert job.words(3) == ["stop"]
    assert "no process that lives has the state" in job.lines[0]


def test_newcomers_begin_if_nobody_had_begun() -> None:
    """All of the first world die before one of them is in it: nothing is lost."""
    job = Job(2)
    job.ready(0, 1)
    job.world(0, 1)
    job.coordinator.started(3, "rank 0")
    for key in (0, 1):
        job.coordinator.ended(key, f"rank {key} was killed")
    job.ready(3)
    assert job.world(3) == 1


def test_who_was_in_the_first_world_has_the_state() -> None:
    """All begin alike, and no step counts without all of them."""
    job = Job(2)
    job.ready(0, 1)
    job.world(0, 1)
    job.come_in(0)
    job.coordinator.ended(0, "rank 0 was killed")
    job.ready(1)
    assert job.world(1) == 1


def test_an_exception_that_comes_again_ends_the_job() -> None:
    job = begun(3)
    job.take(0, "raised", step=4, kind="ValueError", text="no")
    job.ready(1, 2)
    job.world(1, 2)
    job.come_in(1, 2, step=4)
    assert job.lines[0].startswith("rank 0 has raised ValueError in step 4: no: 2 ranks go on")
    job.take(1, "raised", step=5, kind="ValueError", text="no")
    assert not job.coordinator.stopped
    job.ready(2)
    job.world(2)
    job.take(2, "raised", step=5, kind="ValueError", text="no")
    assert job.coordinator.stopped == "the same exception has come again"


def test_one_leaves_in_order() -> None:
    job = begun(3)
    job.take(1, "leave", preempted=True)
    job.ready(0, 2)
    assert job.world(0, 2) == 1
    job.come_in(0, 2, step=6)
    assert job.lines[0].startswith("rank 1 was asked to end, and has left: 2 ranks go on")


def test_all_leave_because_too_few_would_be_left() -> None:
    """One was asked to end, and the others cannot go on: they have saved, and leave as well."""
    job = begun(2)
    for key in (1, 0):
        job.take(key, "leave", preempted=True)
        job.coordinator.ended(key, "it ended")
    assert job.coordinator.over and job.lines == []


def test_who_dies_last_has_not_left() -> None:
    job = begun(2)
    job.take(1, "leave", preempted=True)
    job.coordinator.ended(1, "it ended")
    job.coordinator.ended(0, "rank 0 was killed")
    assert not job.coordinator.over and "rank 0 was killed" in job.lines[0]


def test_the_job_is_asked_to_end() -> None:
    job = begun(2)
    job.coordinator.end_job()
    assert job.words(0) == job.words(1) == ["end"]
    for key in (0, 1):
        job.take(key, "leave", preempted=True)
        job.coordinator.ended(key, "it ended")
    assert job.coordinator.over and job.lines == []


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"say": "dance"},
        {"say": "get"},
        {"say": "set", "keys": ["a"], "values": []},
        {"say": "in"},
        {"say": "raised", "step": "x"},
        {"say": "get", "keys": 3},
    ],
)
def test_nonsense_is_an_error_of_the_caller(message: dict[str, Any]) -> None:
    job = begun(1)
    with pytest.raises((KeyError, ValueError, TypeError, IndexError)):
        job.coordinator.take(0, message)
