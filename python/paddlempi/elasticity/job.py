"""An elastic job, as one of its ranks sees it: :func:`elastic`.

The steps of a training are counted together. A step *counts* once all ranks of the world agree, at
its end, by eight bytes. If a rank dies, those that are left muster at the coordinator, make a new
world, and exchange their positions, which differ by one at most: some may know that the step
counts, others not. The furthest rank's state goes to all.

Everything that changes the world happens between two steps, in :meth:`Job.steps`. So the code of a
loop behind the step's block runs in the world of the step, or in one that is lost.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol

from .. import preemption
from .._exit import PREEMPTED
from ..collectives import all_gather_into_tensor, all_reduce
from ..errors import ArgumentError, Error, UnsupportedError
from ..group import (
    DEFAULT_TIMEOUT,
    destroy_process_group,
    get_rank,
    get_world_size,
    init_process_group,
    is_initialized,
)
from ..group_arguments import to_seconds
from ..startup.reform import generation, reform, revoke
from ..startup.rendezvous.stores import MemoryStore
from . import places
from .link import Link, LinkStore, World, watched
from .lost import StateLost, is_lost
from .parts import Part, part_of

__all__ = ["Front", "Job", "Plain", "Step", "elastic"]

_PATIENCE = 3
"""How often the same ranks try the same step, or the same world, before its error counts."""

_ALONE = World(-1, 0, 1, 1, (0,))

# The fields of the number that the ranks add up at the end of a step.
_LEAVES, _NEWCOMER, _ENDS = (1 << shift for shift in (0, 20, 40))
_FIELD = (1 << 20) - 1


class Front(Protocol):
    """What a framework does when the world changes."""

    def begin(self, alone: bool, timeout: float) -> None:
        """Make a world of this process alone, in which the program makes its objects.

        Args:
            alone: False: the world of all ranks, which a launcher has started that replaces none.
            timeout: of operations, in seconds.
        """

    def reformed(self, job: Job) -> None:
        """There is a new world; the parts have not been told yet."""

    def part_of(self, thing: Any) -> Part | None:
        """Return the part of an object of the framework; None if it is none."""

    def end(self) -> None:
        """End the world."""


class Plain:
    """What is done without a framework; a framework's front may build on it."""

    def begin(self, alone: bool, timeout: float) -> None:
        if alone:
            init_process_group(rank=0, world_size=1, store=MemoryStore(), timeout=timeout)
        else:
            # A call of MPI that nobody can leave would keep this rank from the next world.
            init_process_group(timeout=timeout, abort_on_death=False)

    def reformed(self, job: Job) -> None:
        pass

    def part_of(self, thing: Any) -> Part | None:
        return None

    def end(self) -> None:
        if is_initialized():
            destroy_process_group()


class Step:
    """One step, a context manager. ``number`` says which. ``counts`` is True once it counts."""

    def __init__(self, job: Job, number: int) -> None:
        self.number, self.counts, self.begun = number, False, False
        self._job = job

    def __enter__(self) -> Step:
        self.begun = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is not None:
            return self._job._broke(error)
        self.counts = self._job._agree()
        return False


class Job:
    """A training whose ranks may die, leave and come. See :func:`elastic`.

    Until :meth:`steps` this process is alone: ``rank`` is 0 and ``size`` 1.

    Thread-safety: the thread that has entered it.
    """

    def __init__(self, least: int, timeout: float, front: Front) -> None:
        self._least, self._timeout, self._front = least, timeout, front
        self._link: Link | None = None
        self._place = places.Place()
        self._world = _ALONE
        self._generation = 0
        self._given: World | None = None  # the first world, if this process is in it already
        self._parts: list[Part] = []
        self._on_reform: list[Callable[[Job], object]] = []
        self._on_preempted: list[Callable[[Job], object]] = []
        self._restore: Callable[[Job], int] | None = None
        self._done = 0  # steps that count
        self._inside = False  # a step has begun, and its body has not ended
        self._body_done = False  # it has ended, and whether it counts is not known
        self._torn = False  # a state was on its way to this rank
        self._fresh = True  # this process has not been in the world yet
        self._must_join = True  # before the next step
        self._leaves = False  # this rank, after this step
        self._ends = False  # all ranks do
        self._error: BaseException | None = None  # with which the last step was lost
        self._has_told = False  # that an exception ends this process
        self._tries = 0  # of the same ranks, without a step that counts

    # What a program asks

    @property
    def rank(self) -> int:
        return self._world.rank

    @property
    def size(self) -> int:
        return self._world.size

    @property
    def generation(self) -> int:
        """The number of the world, which ``info`` and traces have, too: 0 for its first one.

        Under ``run --elastic`` that is this process alone, and 1 is the first of all ranks.
        """
        return self._generation

    @property
    def done(self) -> int:
        """The number of steps that count, which is the number of the next one."""
        return self._done

    def attach(self, *things: Any) -> None:
        """Add what moves with the training: arrays, or a :class:`~.parts.Part`.

        All ranks attach the same things in the same order, before :meth:`steps`.

        Raises:
            DtypeError: a thing of which no part is known.
        """
        self._parts += [self._front.part_of(thing) or part_of(thing) for thing in things]

    @property
    def parts(self) -> tuple[Part, ...]:
        """What moves with the training, as it was attached."""
        return tuple(self._parts)

    def on_reform(self, callback: Callable[[Job], object]) -> Callable[[Job], object]:
        """Call ``callback(job)`` in every new world, when its ranks have the state."""
        self._on_reform.append(callback)
        return callback

    def on_preempted(self, callback: Callable[[Job], object]) -> Callable[[Job], object]:
        """Call ``callback(job)`` on all ranks when the job is asked to end: it can save."""
        self._on_preempted.append(callback)
        return callback

    def on_lost(self, restore: Callable[[Job], int]) -> Callable[[Job], int]:
        """Call ``restore(job)`` on all ranks if none has the state whole.

        It loads a checkpoint, and returns the number of the step to go on with.
        """
        self._restore = restore
        return restore

    def steps(self, count: int) -> Iterator[Step]:
        """Join the others, and yield the steps that are left of ``count``.

        A step that does not count comes again. When it ends, all ``count`` steps count on all
        ranks. Leave the loop by its end, or by an exception.

        Raises:
            PeerDiedError: the job cannot go on.
            SystemExit: with ``dist.PREEMPTED``: this rank, or the job, was asked to end, and has
                left in order.
        """
        while True:
            self._join_if_needed()
            if self._done >= count and self._is_over():
                return
            if self._done < count and self._begins():
                step = Step(self, self._done)
                yield step
                if not step.begun:
                    raise ArgumentError(f"steps: step {step.number} was not entered: with step:")

    # The life of a job

    def __enter__(self) -> Job:
        preemption.watch_preemption()
        self._place = places.find()
        self._front.begin(self._place.alone, self._timeout)
        self._generation = generation()
        self._link = self._place.link()
        if not self._place.alone:
            size = get_world_size()
            self._world = self._given = World(0, get_rank(), size, self._least, tuple(range(size)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        code = error.code if isinstance(error, SystemExit) else None
        in_order = error is None or (isinstance(error, SystemExit) and code in (None, 0, PREEMPTED))
        if not in_order or self._must_join:
            revoke("this rank ends")
        if self._link is not None:
            try:
                if in_order:
                    self._link.tell("leave", preempted=code == PREEMPTED)
                else:
                    self._tell_of(error, -1)
                self._link.close()
            except ConnectionError:
                pass
        self._front.end()

    def _tell_of(self, error: BaseException | None, step: int) -> None:
        """Tell the coordinator of an exception that ends this process."""
        if self._link is not None and not self._has_told:
            self._has_told = True
            self._link.tell("raised", step=step, kind=type(error).__name__, text=str(error)[:300])

    # A step

    def _begins(self) -> bool:
        """Whether all parts are ready for a step. Some communicate before it."""
        try:
            for part in self._parts:
                part.before()
        except Exception as error:
            if not self._broke(error):
                raise
            return False
        self._inside = True
        return True

    def _agree(self) -> bool:
        """Whether the step whose body has ended counts."""
        self._inside, self._body_done = False, True
        link = self._link
        mine = 0
        if link is not None:
            link.look()
            mine = _NEWCOMER * link.newcomer + _ENDS * link.asked
        # Where nobody says whether all are asked, one signal is for all.
        mine += (_LEAVES if self._place.tells else _ENDS) * preemption.asked()
        number = array("q", [mine])
        try:
            all_reduce(number)
        except Exception as error:
            if not self._broke(error):
                raise
            return False
        self._done, self._body_done, self._tries = self._done + 1, False, 0
        leaving, newcomers, ending = (number[0] // unit & _FIELD for unit in _UNITS)
        staying = self.size - leaving
        self._ends = bool(ending or (leaving and staying < max(self._world.least, 1)))
        self._leaves = leaving > 0 and preemption.asked() and not self._ends
        self._must_join = bool(leaving or newcomers) and not self._ends
        return True

    def _broke(self, error: BaseException) -> bool:
        """Whether an error is of a lost rank: the step comes again."""
        if not is_lost(error):
            self._tell_of(error, self._done)
            return False
        if self._link is None:
            if self._place.why:
                raise UnsupportedError(f"elastic: {self._place.why}") from error
            return False
        # What the error refers to is memory of the old world, and of the step.
        self._error = error.with_traceback(None)
        self._must_join = True
        revoke(f"a step was lost: {type(error).__name__}")
        return True

    # Between two steps

    def _join_if_needed(self) -> None:
        if self._ends:
            for callback in self._on_preempted:
                callback(self)
        if self._ends or self._leaves:
            sys.exit(PREEMPTED)
        while self._must_join:
            self._join()

    def _is_over(self) -> bool:
        """Whether all ranks know that the last step counts."""
        if self._link is None or self._link.finish():
            return True
        self._must_join = True
        return False

    def _join(self) -> None:
        """Join the next world, and take the state; or find out that this one is lost, too."""
        link, given, self._given = self._link, self._given, None
        if link is None or given is not None:
            world = given or _ALONE._replace(generation=0)
        else:
            revoke("the ranks muster")
            fixed = any(getattr(part, "fixed_size", False) for part in self._parts)
            world = link.muster(self._least, fixed, self._fresh)
        self._tries = self._tries + 1 if world.keys == self._world.keys else 0
        if self._tries >= _PATIENCE and self._error is not None:
            raise self._error
        self._world = world
        try:
            if link is not None and given is None:
                with watched(link, revoke):
                    reform(
                        world.rank,
                        world.size,
                        LinkStore(link),
                        timeout=self._timeout,
                        members=link.members(world),
                    )
                self._generation = generation()
            self._front.reformed(self)
            self._settle()
        except Exception as error:
            if link is None or (not isinstance(error, Error) and not is_lost(error)):
                raise
            self._error = error.with_traceback(None)
            return
        self._must_join = False
        if link is not None:
            link.tell("in", generation=world.generation, step=self._done)

    def _settle(self) -> None:
        """Find out which steps count, and take the state of a rank that has it."""
        if self._inside:
            made = [part.made() for part in self._parts if hasattr(part, "made")]
            if made and all(made):
                self._inside, self._body_done = False, True
        position = self._done + self._body_done
        whole = not self._torn and (not self._inside or all(p.whole() for p in self._parts))
        table = self._exchange(position, whole, self._fresh)
        old = [row for row in table if not row[2]] or table
        furthest = max(row[0] for row in [row for row in old if row[1]] or old)
        roots = [rank for rank, row in enumerate(table) if row in old and row[:2] == (furthest, 1)]
        behind = whole and self._inside and position < furthest
        if self._inside and position == furthest:
            for part in self._parts:
                part.back()
        if not behind:  # else, if no state comes, it repeats its own step: its parts know whether
            self._torn = not (whole and position == furthest and not self._fresh)
            self._inside = self._body_done = False
            self._done = furthest
        self._take(roots, furthest)
        self._inside = self._torn = self._fresh = False
        for callback in self._on_reform:
            callback(self)

    def _take(self, roots: list[int], furthest: int) -> None:
        """Take the state of the first of some ranks, which is that before the step ``furthest``."""
        for part in self._parts:
            part.reformed(self)
        try:
            if not roots:
                raise StateLost(f"elastic: step {furthest} was lost in the middle of a change")
            for part in self._parts:
                part.share(roots[0])
        except StateLost as error:
            self._done = self._restored(error)
        else:
            self._done = furthest
            for part in self._parts:
                earlier = part.settled() if hasattr(part, "settled") else None
                self._done = self._done if earlier is None else earlier

    def _exchange(self, *mine: int) -> list[tuple[int, ...]]:
        """Return the numbers of all ranks, by rank."""
        count = len(mine)
        told = array("q", bytes(8 * count * self.size))
        all_gather_into_tensor(told, array("q", mine))
        return [tuple(told[at : at + count]) for at in range(0, len(told), count)]

    def _restored(self, error: StateLost) -> int:
        """Have the program load a checkpoint; return the number of steps that count in it."""
        if self._restore is None:
            raise StateLost(f"{error}. Give job.on_lost a function that loads a checkpoint")
        step = int(self._restore(self))
        if len(set(self._exchange(step))) > 1:
            raise StateLost("elastic: the function of job.on_lost returned different numbers")
        return step


_UNITS = (_LEAVES, _NEWCOMER, _ENDS)


def elastic(min_ranks: int = 1, *, timeout: timedelta | float = DEFAULT_TIMEOUT) -> Job:
    """Return a job that goes on when ranks die, as a context manager.

    ::

        with paddlempi.elastic(min_ranks=2) as job:   # run -np 4 --elastic 2 train.py
            job.attach(weights)
            for step in job.steps(1000):
                with step:
                    train(step.number)

    Until ``job.steps`` the process is in a world of its own. There it joins the others, and has
    the state of the training. A death ends the block of a step: the world is made anew, and the
    same number comes again, or the next one, if some rank had finished it.

    Args:
        min_ranks: how many ranks the training needs. With fewer it waits for replacements, or ends.
        timeout: how long an operation waits for the other ranks, a timedelta or seconds.

    Raises:
        ArgumentError: a wrong ``min_ranks`` or ``timeout``; or the main thread did not call it.
    """
    return make(min_ranks, timeout, Plain())


def make(min_ranks: int, timeout: timedelta | float, front: Front) -> Job:
    """Return a job with the front of a framework. The arguments are those of :func:`elastic`."""
    if isinstance(min_ranks, bool) or not isinstance(min_ranks, int) or min_ranks < 1:
        raise ArgumentError(f"elastic: min_ranks={min_ranks!r}: it must be a whole number above 0")
    return Job(min_ranks, to_seconds(timeout, "elastic"), front)
