"""The shards of a data set, which a master deals out to the trainers.

One rank has the role ``master``. All trainers call :func:`tasks` with the same files or ranges, and
each then iterates over the shards that it gets::

    ps.init("trainer:3,pserver:2,master:1", mode="async")
    files = ps.tasks(sorted(Path("clicks").glob("*.csv")), shuffle=True, seed=7)
    for epoch in range(3):
        for task in files:
            with open(task.value) as lines:
                for line in task.each(lines):
                    train(line)

A shard is leased. If its trainer dies, or makes no progress for longer than the lease, another
trainer gets it. So each record of an epoch is used at least once, and exactly once if no trainer
dies, fails, or stops for longer than a lease.

``gocore/ps/master`` has the rules of the queue; ``docs/ps.md`` is its page.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from numbers import Integral
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, TypeVar

from .. import _native
from ..errors import ArgumentError, DtypeError, Error
from ..group_arguments import to_seconds
from .config import from_zero
from .session import as_trainer

__all__ = ["FailedTask", "Task", "Tasks", "note_progress", "tasks"]

_Record = TypeVar("_Record")

_PARTS = 4
"""A lease is renewed when a part of it has passed."""


class FailedTask(NamedTuple):
    """A shard that was tried too often."""

    epoch: int
    number: int
    value: Any
    rank: int
    """The trainer that had it last."""
    reason: str


class Task:
    """A shard that this trainer has, on a lease.

    It ends when :class:`Tasks` is asked for the next one, by :meth:`done`, :meth:`fail` or
    :meth:`give_back`, or with the ``with`` statement: an exception in its block is a failure.

    Attributes:
        number: of the shard, from 0.
        epoch: from 0. In sync mode it may be the one before that of the loop: another trainer has
            completed early, and this one gets what that has left.
        value: what :func:`tasks` was given for it.
    """

    def __init__(self, of: Tasks, number: int, epoch: int, value: Any, told: Any) -> None:
        self.number, self.epoch, self.value = number, epoch, value
        self._of = of
        self._fence: int = told["fence"]
        self._every: float = told["lease"] / _PARTS
        self._due = time.monotonic() + self._every
        self._ended = False
        self._counts = True
        self._kept: Error | None = None  # of the renewal in a push: for the next call of the task

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the numbers of a range, or the items of a list, and note the progress."""
        if not isinstance(self.value, (range, list, tuple)):
            raise DtypeError(
                f"ps.Task: its value {self.value!r:.100} has no records: read them, as in "
                "`for record in task.each(open(task.value))`"
            )
        return self.each(self.value)

    def each(self, records: Iterable[_Record]) -> Iterator[_Record]:
        """Iterate over records that the caller has read from the shard, and note the progress.

        It ends early if the lease has run out and another trainer has had the shard since: that one
        does all of it. Then this task is not done, whatever is called. A lease that has run out
        while nobody else took the shard lasts again.
        """
        for record in records:
            if not self.progress():
                return
            yield record

    def progress(self) -> bool:
        """Note that this trainer makes progress. It renews the lease when a quarter has passed.

        Each push notes it too, so also the steps of optimizers. The push was applied whatever the
        master says, so an error of the master is raised by the next call of the task, not by it.

        Returns:
            False if the lease has run out and the shard was leased again or was tried too often, or
            the queue restored: what this trainer does with it no longer counts.
        """
        self._raise_kept()
        return self._renew()

    def _renew(self) -> bool:
        if not self._ended and self._counts and time.monotonic() >= self._due:
            self._counts = self._say("renew")
            self._due = time.monotonic() + self._every
        return self._counts

    def _note_push(self) -> None:
        """Renew the lease, and keep an error."""
        if self._kept is None:
            try:
                self._renew()
            except Error as error:
                self._kept = error

    def _raise_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            raise kept

    def done(self) -> bool:
        """Say that all of the shard was used. Once is enough.

        Returns:
            Whether it counts: False if the shard was leased again meanwhile.
        """
        self._raise_kept()
        return self._end("done")

    def fail(self, reason: str = "") -> bool:
        """Say that the shard cannot be used. Another trainer tries it, ``retries`` times in all.

        In sync mode it is left out of its epoch at once: nobody but this trainer would get it, and
        would take more steps than the others.

        Args:
            reason: for :meth:`Tasks.failed`: 500 bytes at most are kept.

        Returns:
            Whether it counts: False if the lease has run out, or the task has ended.
        """
        if not isinstance(reason, str):
            raise DtypeError(f"ps.Task.fail: reason={reason!r} is no text")
        return self._end("return", reason or "fail() gave no reason")

    def give_back(self) -> bool:
        """Let another trainer have the shard. It does not count as a failure.

        Returns:
            Whether it counts: False if the lease has run out, or the task has ended.
        """
        return self._end("return")

    def _end(self, what: str, reason: str = "") -> bool:
        if self._ended:
            return self._counts and what == "done"
        self._ended = True
        _held.discard(self)
        if not self._counts:  # its records may have ended early
            return False
        try:
            self._counts = self._say(what, reason)
        except BaseException:
            self._ended = False  # a further call says it again
            raise
        return self._counts

    def _say(self, what: str, reason: str = "") -> bool:
        counts: bool = _native.control(
            "ps_tasks_say",
            name=self._of.name,
            epoch=self.epoch,
            shard=self.number,
            fence=self._fence,
            what=what,
            reason=reason,
        )["counts"]
        return counts

    def __enter__(self) -> Task:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.done()
        elif isinstance(error, Exception):
            self.fail(f"{type(error).__name__}: {error}")
        else:  # Ctrl-C, or the end of the program: not the fault of the shard
            self.give_back()

    def __repr__(self) -> str:
        return f"<ps.Task {self.number} of {self._of.name!r}, epoch {self.epoch}: {self.value!r}>"

    def __reduce__(self) -> NoReturn:
        raise ArgumentError(
            "ps.Task: it stays in its trainer: give the workers of a DataLoader task.value"
        )


_held: set[Task] = set()
"""The tasks that this process has."""


def _after_fork() -> None:
    """Have each task ask at its next record, which is a ForkError: its parent has the lease."""
    for task in _held:
        task._due = 0.0


os.register_at_fork(after_in_child=_after_fork)


def note_progress() -> None:
    """Note the progress of all tasks that this process has: a push was applied. It cannot fail."""
    for task in tuple(_held):
        task._note_push()


class Tasks:
    """The shards of a data set that this trainer gets. :func:`tasks` makes it.

    Iterating gives the tasks of one epoch, and ends when all of its shards are done or have failed;
    in sync mode, when this trainer has done those that were dealt to it. Each further iteration is
    the next epoch. Asking for the next task ends the one before as done, unless its records have
    ended early (:meth:`Task.each`). A loop that is left early gives its task back.

    Attributes:
        name: the name of the data set.
        epoch: the next one that is iterated over, or the one that is.

    Thread-safety: one thread iterates; all others may call the methods of its tasks.
    """

    def __init__(self, name: str, shards: _Shards, epoch: int, restores: int) -> None:
        self.name, self.epoch = name, epoch
        self._shards = shards
        self._restores = restores

    def __len__(self) -> int:
        """The number of shards."""
        return len(self._shards)

    def __iter__(self) -> Iterator[Task]:
        session = as_trainer("ps.tasks")
        if self._restores != session.restores:
            self._restores, self.epoch = session.restores, self._shards.open(self.name)
        return self._tasks(self.epoch)

    def _tasks(self, epoch: int) -> Iterator[Task]:
        while True:
            told = _native.control("ps_tasks_next", name=self.name, epoch=epoch)
            if told["over"]:
                self.epoch = epoch + 1
                return
            number: int = told["shard"]
            task = Task(self, number, told["epoch"], self._shards[number], told)
            _held.add(task)
            try:
                yield task
            except GeneratorExit:
                with contextlib.suppress(Error):  # this trainer has completed, or the master died
                    task.give_back()
                raise
            if self._restores != as_trainer("ps.tasks").restores:
                _held.discard(task)
                raise ArgumentError(
                    f"ps.tasks {self.name!r}: ps.restore was called inside the loop: the queue is "
                    "that of the cut now; begin a new loop"
                )
            task.done()

    def failed(self) -> list[FailedTask]:
        """The shards that were tried too often: of this epoch, and the latest of those before."""
        told = _native.control("ps_stats").get("master") or {"queues": []}
        return [
            FailedTask(
                one["epoch"], one["shard"], self._shards[one["shard"]], one["rank"], one["reason"]
            )
            for queue in told["queues"]
            if queue["name"] == self.name
            for one in queue["failed"]
        ]

    def __repr__(self) -> str:
        return f"<ps.Tasks {self.name!r}: {len(self)} shards, epoch {self.epoch}>"

    def __reduce__(self) -> NoReturn:
        raise ArgumentError(
            "ps.Tasks: it stays in its trainer: give the workers of a DataLoader the values"
        )


class _Shards:
    """The values of the shards, and what the master is told of them."""

    def __init__(self, given: Any, size: int | None, settings: dict[str, Any]) -> None:
        self._of: Sequence[Any] = given if isinstance(given, range) else list(given)
        self._size = size
        digest = hashlib.blake2b(repr(size).encode(), digest_size=16)
        for item in (self._of,) if isinstance(given, range) else self._of:
            digest.update(f"{_plain(item)}\n".encode(errors="surrogateescape"))
        self._settings = {**settings, "shards": len(self), "digest": digest.hexdigest()}

    def __len__(self) -> int:
        return -(-len(self._of) // self._size) if self._size else len(self._of)

    def __getitem__(self, number: int) -> Any:
        if self._size is None:
            return self._of[number]
        return self._of[number * self._size : (number + 1) * self._size]

    def open(self, name: str) -> int:
        """Make the queue on the master, unless another trainer has; return its epoch."""
        epoch: int = _native.control("ps_tasks_open", name=name, **self._settings)["epoch"]
        return epoch


def _plain(item: Any) -> str:
    """A text that is the same on all trainers for the same item."""
    if isinstance(item, os.PathLike):
        item = os.fspath(item)
    if isinstance(item, (list, tuple)):
        return f"({','.join(map(_plain, item))})"
    if isinstance(item, Integral) and not isinstance(item, bool):  # NumPy's too
        item = int(item)
    if isinstance(item, (str, bytes, int, float, range)):
        return repr(item)
    raise DtypeError(
        f"ps.tasks: {item!r:.100} is no file and no range: shards are texts, paths, bytes, "
        "numbers, ranges, or lists of them"
    )


def tasks(
    shards: Iterable[Any] | int,
    *,
    size: int | None = None,
    name: str = "tasks",
    shuffle: bool = False,
    seed: int = 0,
    lease: timedelta | float = 60.0,
    retries: int = 3,
) -> Tasks:
    """Share the files or ranges of a data set out among the trainers, by the master.

    All trainers call it with the same arguments; it does not wait for the others. In async mode
    whoever asks first gets the next shard. In sync mode shards are dealt by rank and round: the
    *k*-th of an epoch is for trainer *k* modulo the number of trainers, so the same seed gives the
    same order in every run; those of a trainer that completes are dealt to the others, which get
    them in the loop they are in or wait for.

    Args:
        shards: files (texts or paths), bytes, numbers, ranges or lists of them, one for each
            shard; a range; or a number *n*, for ``range(n)``.
        size: so many items are one shard: of a range a range, of others a list. None: each item is
            a shard of its own.
        name: that of the data set. A job may have 64.
        shuffle: whether the order of the shards is another one in each epoch, by ``seed``.
        seed: a number from 0.
        lease: how long a trainer may have a shard without progress (:meth:`Task.progress`):
            a timedelta or seconds, 0.1 at least.
        retries: how often a shard is tried again after a failure, or after a lease that has run
            out. Then it is left out of its epoch (:meth:`Tasks.failed`). In sync mode a shard that
            fails is left out at once, so that trainers have as many shards as were dealt to them.

    Returns:
        What the trainer iterates over. A queue that exists, of a cut or of an earlier call, goes on
        where it is.

    Raises:
        NotInitializedError: before :func:`init`.
        ArgumentError: this rank does not train, no rank is a master, there are more than 2**24
            shards, or an argument is out of its limits.
        DtypeError: an argument is of a wrong type.
        MismatchError: another trainer has given other arguments for the name.
        PeerDiedError: the master has died.
        ForkError: in a worker of a DataLoader that was forked: give workers ``task.value``.
    """
    session = as_trainer("ps.tasks")
    if not isinstance(name, str):
        raise DtypeError(f"ps.tasks: name={name!r} is no text")
    if size is not None:
        try:
            size = operator.index(size)
        except TypeError:
            raise DtypeError(f"ps.tasks: size={size!r} is no integer") from None
        if size < 1:
            raise ArgumentError(f"ps.tasks: size={size} is below 1")
    if isinstance(shards, Integral) and not isinstance(shards, bool):
        shards = range(from_zero("ps.tasks", "shards", shards))
    if isinstance(shards, (str, bytes)) or not isinstance(shards, Iterable):
        raise DtypeError(f"ps.tasks: shards={shards!r:.100} are neither files nor ranges")
    settings = {
        "shuffle": bool(shuffle),
        "seed": from_zero("ps.tasks", "seed", seed),
        "lease": to_seconds(lease, "ps.tasks", "lease"),
        "retries": from_zero("ps.tasks", "retries", retries),
    }
    found = _Shards(shards, size, settings)
    return Tasks(name, found, found.open(name), session.restores)
