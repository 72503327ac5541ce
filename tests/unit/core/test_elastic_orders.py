"""Elastic jobs in which everything happens in any order: a coordinator, and models of its ranks.

A model does what ``elasticity.job`` does, with one thing at a time that others can see. Chance says
who is next, and who is killed, leaves or is started. Nobody may wait for ever, no step that some
living rank knows to count may be taken back, and the training ends on all ranks or for a reason.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from paddlempi.elasticity.coordinator import Coordinator

STEPS = 4


class World:
    """What the members of a world have in common."""

    def __init__(self, keys: list[int]) -> None:
        self.keys = keys
        self.told: dict[int, tuple[int, bool]] = {}  # the position, and whether it is fresh
        self.entered: dict[int, int] = {}  # the step at whose end a rank is
        self.revoked = False


class Rank:
    """A process of the job."""

    def __init__(self, job: Job, key: int) -> None:
        self.job, self.key = job, key
        self.does = "import"
        self.inbox: list[dict[str, Any]] = []
        self.done, self.body, self.fresh, self.newcomer = 0, False, True, False
        self.world: World | None = None

    def say(self, what: str, **more: Any) -> None:
        self.job.coordinator.take(self.key, {"say": what, **more})

    def muster(self) -> None:
        if self.world is not None:
            self.world.revoked = True
        self.does, self.world, self.newcomer = "muster", None, False
        self.say("ready")

    def can(self) -> bool:
        """Whether it does not wait."""
        if self.does in ("muster", "finish"):
            return bool(self.inbox)
        if self.does == "agree":
            return self.broken() or self.all_entered()
        return True  # in the meeting it asks the store, again and again

    def broken(self) -> bool:
        return self.world.revoked or any(key not in self.job.ranks for key in self.world.keys)

    def all_told(self) -> bool:
        return self.world.told.keys() == set(self.world.keys)

    def all_entered(self) -> bool:
        entered = [self.world.entered.get(key, -1) for key in self.world.keys]
        return all(step >= self.done for step in entered)

    def go(self) -> None:
        """Do the next thing."""
        for message in self.inbox:
            if message["say"] in ("stop", "ended"):
                self.job.end(self.key)
                return
            self.newcomer |= message["say"] == "newcomer"
        messages = [one for one in self.inbox if one["say"] != "newcomer"]
        self.inbox.clear()
        getattr(self, f"_{self.does}")(messages[-1] if messages else None)

    def _import(self, _: Any) -> None:
        self.muster()

    def _muster(self, message: Any) -> None:
        if message is None or message["say"] != "world":
            return
        number = message["generation"]
        self.number = number
        self.world = self.job.worlds.setdefault(number, World(message["keys"]))
        self.world.told[self.key] = (self.done + self.body, self.fresh)
        self.does = "meet"

    def _meet(self, message: Any) -> None:
        """Only the store says that somebody is gone."""
        if (message is not None and message["say"] == "lost") or self.job.draw.random() < 0.02:
            self.muster()  # by chance also for a reason of its own
        elif self.all_told() and message is not None:
            told = self.world.told.values()
            before = [at for at, fresh in told if not fresh]
            assert before or not self.job.counted, "it begins anew, as if nothing had been"
            self.done = max(before or [0])
            self.body, self.does = False, "told"
        else:
            self.say("get", keys=["meeting"])

    def _told(self, _: Any) -> None:
        """It takes the state from the others, all of whom have to be there."""
        if self.broken():
            self.muster()
            return
        self.fresh, self.does = False, "step"
        self.say("in", generation=self.number, step=self.done)
        assert self.done >= self.job.known, "a step was taken back"

    def _step(self, _: Any) -> None:
        if self.done >= STEPS:
            self.does = "finish"
            self.say("finished")
        elif self.broken():
            self.muster()
        else:
            self.body, self.does = True, "agree"
            self.world.entered[self.key] = self.done
            if self.newcomer:
                self.world.newcomer = True

    def _agree(self, _: Any) -> None:
        entered = self.all_entered()
        if entered and (not self.broken() or self.job.draw.random() < 0.5):
            self.done, self.body, self.does = self.done + 1, False, "step"
            self.job.counted = max(self.job.counted, self.done)
            if getattr(self.world, "newcomer", False):
                self.muster()
        else:
            self.muster()

    def _finish(self, message: Any) -> None:
        if message is not None and message["say"] == "over":
            self.does = "leave"
        elif message is not None and message["say"] == "muster":
            self.muster()

    def _leave(self, _: Any) -> None:
        assert self.done == STEPS
        self.job.finished += 1
        self.say("leave")
        self.job.end(self.key)


class Job:
    """A job, which chance drives."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.coordinator = Coordinator(1, self.send, lambda line: None)
        self.ranks: dict[int, Rank] = {}
        self.worlds: dict[int, World] = {}
        self.finished = self.count = self.killed = self.counted = 0
        self.kills, self.starts = self.draw.randint(0, 4), self.draw.randint(0, 4)
        for _ in range(self.draw.randint(1, 4)):
            self.start()

    @property
    def known(self) -> int:
        """How many steps count, as far as a living rank knows that was in a world."""
        return max([rank.done for rank in self.ranks.values() if not rank.fresh] or [0])

    def send(self, key: int, message: dict[str, Any]) -> None:
        if key in self.ranks:
            self.ranks[key].inbox.append(message)

    def start(self) -> None:
        self.count += 1
        self.ranks[self.count] = Rank(self, self.count)
        self.coordinator.started(self.count, f"rank {self.count}")

    def end(self, key: int) -> None:
        del self.ranks[key]
        self.coordinator.ended(key, f"rank {key} has ended")

    def run(self) -> None:
        for _ in range(5000):
            if not self.ranks:
                return
            able = [rank for rank in self.ranks.values() if rank.can()]
            if self.kills and self.draw.random() < 0.05:
                self.kills, self.killed = self.kills - 1, self.killed + 1
                self.end(self.draw.choice(list(self.ranks)))
            elif self.starts and self.draw.random() < 0.05 and not self.coordinator.stopped:
                self.starts -= 1
                self.start()
            elif able:
                self.draw.choice(able).go()
            else:
                waits = {key: rank.does for key, rank in self.ranks.items()}
                raise AssertionError(f"all wait for ever: {waits}")
        raise AssertionError("it goes round and round")


@pytest.mark.parametrize("part", range(4))
def test_any_order(part: int) -> None:
    finished = 0
    for seed in range(400 * part, 400 * part + 400):
        job = Job(seed)
        try:
            job.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        why = job.coordinator.stopped
        lost = "no process that lives has the state" in why or job.killed == job.count
        assert job.finished or lost, f"seed {seed}: {why}"
        finished += bool(job.finished)
    assert finished > 280
