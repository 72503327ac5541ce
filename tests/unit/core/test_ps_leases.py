"""Tasks of a master that a fake answers for: what is done when it says no, or says nothing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from paddlempi import errors, ps
from ps_fake import PsCore, ps_core

__all__ = ["ps_core"]


class Master:
    """The control methods of tasks, over those of a PsCore. It deals four shards out.

    Attributes:
        said: what it was told of leases.
        fails: what it answers instead, once each.
        counts: whether a renewal counts.
    """

    def __init__(self, core: PsCore) -> None:
        self._others = core.control
        self._next = 0
        self.said: list[str] = []
        self.fails: list[Exception] = []
        self.counts = True

    def control(self, method: str, request: str) -> str:
        given = json.loads(request)
        if method == "ps_tasks_open":
            return '{"epoch": 0}'
        if method == "ps_tasks_next":
            if self._next == 4:
                return '{"over": true}'
            self._next += 1
            told = {"over": False, "epoch": 0, "shard": self._next - 1, "fence": 9, "lease": 1e-9}
            return json.dumps(told)
        if method == "ps_tasks_say":
            self.said.append(given["what"])
            if self.fails:
                raise self.fails.pop(0)
            return json.dumps({"counts": given["what"] != "renew" or self.counts})
        return self._others(method, request)


@pytest.fixture
def master(ps_core: PsCore, monkeypatch: pytest.MonkeyPatch) -> Master:
    made = Master(ps_core)
    monkeypatch.setattr(ps_core, "control", made.control)
    ps.init()
    return made


def test_a_task_whose_records_ended_early_is_not_done(master: Master) -> None:
    given: list[Any] = []
    for task in ps.tasks([[1, 2, 3]] * 4):
        for record in task:
            given.append(record)
            master.counts = len(given) != 5  # the second task's second record was its last
        if len(given) == 5:
            assert not task.done() and not task.progress()
            assert not task.fail() and not task.give_back()
            master.counts = True
    assert given == [1, 2, 3, 1, 2, 1, 2, 3, 1, 2, 3]
    assert master.said.count("done") == 3
    assert "return" not in master.said


DEAD = errors.PeerDiedError("the master has died")


@pytest.mark.parametrize("ends", ["done", "progress", "next", "each"])
def test_an_error_of_the_master_does_not_reach_a_push(master: Master, ends: str) -> None:
    """The push was applied: who tried it again would apply it twice."""
    table = ps.RemoteTable("t", 1, ps.SGD(1.0))
    pushes = {
        "one": lambda: table.push(np.array([1]), -np.ones((1, 1), np.float32)),
        "several": lambda: ps.push([(table, np.array([1]), -np.ones((1, 1), np.float32))]),
    }
    tasks = iter(ps.tasks([[1, 2]] * 4))
    task = next(tasks)
    records = iter(task)
    next(records)
    before = table.pull(np.array([1])).item()
    master.said.clear()
    master.fails.append(DEAD)
    for push in pushes.values():
        push()
    assert master.said == ["renew"]  # it is not asked in vain again
    assert table.pull(np.array([1])).item() == before + 2
    with pytest.raises(errors.PeerDiedError, match="the master has died"):
        if ends == "next":
            next(tasks)
        elif ends == "each":
            next(records)
        else:
            getattr(task, ends)()
    assert master.said == ["renew"]
    assert task.done()  # it was said once, and the master lives after all
    assert master.said == ["renew", "done"]


@pytest.mark.parametrize("ends", ["fail", "give_back"])
def test_what_ends_a_task_otherwise_asks_the_master_itself(master: Master, ends: str) -> None:
    table = ps.RemoteTable("t", 1, ps.SGD(1.0))
    tasks = iter(ps.tasks(4))
    task = next(tasks)
    master.fails.append(DEAD)
    table.push(np.array([1]), np.ones((1, 1), np.float32))
    assert getattr(task, ends)()
    assert master.said == ["renew", "return"]
