"""The order in which functions given to futures of collectives run.

Such a function may itself start collectives, and all ranks must start them in the same order. So it
must not matter when an operation happens to end. The futures of one :class:`Line` are completed one
after another, in the order in which their works were issued. What a function starts joins the line.

* The hook of a reducer of DDP has a line (:func:`in_order`). It is driven in the thread of the
  backward when the last bucket has been issued.
* Other collectives of a backward have a line that is driven when the backward ends.
* Elsewhere one thread completes futures (:class:`Runner`), those of each group in their order.

A program may block in a way that nobody sees, for instance with ``torch.futures.wait_all`` in a
hook. The thread of such a line does nothing any more, which :mod:`.blocked_threads` notices, and
the line is left to the runner.
"""

from __future__ import annotations

import bisect
import itertools
import queue
import threading
import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol

import torch
from torch.autograd import Variable

from .. import _daemons
from ..errors import Error, NotReadyError
from ..group import at_destroy
from .blocked_threads import Watched, watch

__all__ = ["Entry", "enter", "in_order", "next_number"]

LIMIT = 0.1
"""Seconds for which the end of a backward waits for a collective of which DDP knows nothing.

It may be one that another rank starts later than this backward. The runner then takes over.
"""

next_number = itertools.count().__next__
"""Numbers works in the order in which they are issued."""

_in_graph_task = torch._C._current_graph_task_id
_number_of = attrgetter("number")


class Issued(Protocol):
    """What a turn needs of a work (:mod:`.work`)."""

    _number: int
    _group: int

    def _settle(self, limit: float) -> None: ...

    def _when_done(self, call: Callable[[], None]) -> None: ...


class Entry:
    """A future that waits for its turn.

    Args:
        work: the work whose future it is.
        complete: completes the future of a work that has ended, and so runs its functions.
    """

    __slots__ = ("_complete", "_lock", "added", "group", "line", "number", "over", "work")

    def __init__(self, work: Issued, complete: Callable[[], None]) -> None:
        self.work: Issued | None = work  # None: the future is done, or a thread completes it
        self.number = work._number
        self.group = work._group
        self.line: Line | Runner | None = None
        self.over = False  # the runner was told that the work has ended
        self.added = False  # and tells its thread from now on
        self._complete: Callable[[], None] | None = complete
        self._lock = threading.Lock()

    def finish(self) -> None:
        """Complete the future, unless that was done or another thread does it."""
        with self._lock:
            complete, self._complete = self._complete, None
            self.work = None
        if complete is not None:
            complete()

    def run(self, limit: float = -1.0) -> bool:
        """Wait for the work and complete its future.

        Args:
            limit: seconds. Below 0: as long as it takes.

        Returns:
            False if the limit ran out.

        Raises:
            KeyboardInterrupt: Ctrl-C during the wait.
        """
        work = self.work
        if work is not None:
            try:
                work._settle(limit)
            except NotReadyError:
                return False
            except Error:
                pass  # the future gets it
            self.finish()
        return True

    def run_if_mine(self) -> None:
        """Do as :meth:`run` in a thread that would wait for itself otherwise."""
        if self.line is not None and self.line.is_served_by(threading.get_ident()):
            self.run()


class _Local(threading.local):
    line: Line | None = None
    """The line that works of this thread join: the thread is in a hook, or drives the line."""


_local = _Local()


class Line(Watched):
    """Entries that one thread completes in order when it is told to.

    Thread-safety: all methods may be called from any thread.

    Args:
        limit: seconds for which :meth:`drive` waits for one work. Below 0: as long as it takes.
    """

    def __init__(self, limit: float) -> None:
        super().__init__()
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        """Add an entry of this thread."""
        entry.line = self
        self.serve_here()
        with self._lock:
            bisect.insort(self._entries, entry, key=_number_of)
        watch(self)

    def drive(self) -> None:
        """Complete all futures in this thread, also those that their functions add."""
        before, _local.line = _local.line, self
        self.serve_here()
        try:
            while self._entries:
                entry = self._entries[0]
                if not entry.run(self._limit):
                    break
                self.step()
                with self._lock:
                    if entry in self._entries:
                        self._entries.remove(entry)
        finally:
            _local.line = before
            self.leave()

    def leave(self) -> None:
        """Leave what is left to the runner."""
        with self._lock:
            entries, self._entries = self._entries, []
        for entry in entries:
            runner.add(entry)


class Runner(Watched):
    """The thread that completes futures outside backwards.

    The futures of a group are completed in the order in which their works were issued. Groups do
    not wait for each other.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._groups: dict[int, list[Entry]] = {}
        self._over: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return sum(entry.over for entries in list(self._groups.values()) for entry in entries)

    def add(self, entry: Entry, now: bool = False) -> bool:
        """Complete the future of an entry when it is its turn.

        Args:
            entry: an entry.
            now: the caller completes the future if its turn has come.

        Returns:
            False if it has come, and ``now`` is set.
        """
        work, group = entry.work, entry.group
        if work is None:
            return True
        entry.line = self
        with self._lock:
            entries = self._groups.setdefault(group, [])
            bisect.insort(entries, entry, key=_number_of)

        def over() -> None:
            with self._lock:
                entry.over, added = True, entry.added
            if added:
                self._tell(group)

        work._when_done(over)
        with self._lock:
            entry.added = True
            if entry.over and now and len(entries) == 1:
                self._drop(group, entry)
                return False
        if entry.over:
            self._tell(group)
        return True

    def _tell(self, group: int) -> None:
        """Have the thread look at a group."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = _daemons.Daemon(self._run, "paddlempi-callbacks")
                self._thread.start()
        watch(self)
        self._over.put(group)

    def _run(self) -> None:
        self.serve_here()
        while self._thread is threading.current_thread():
            group = _daemons.idle(self._over.get)
            while (entry := self._first(group)) is not None:
                entry.finish()
                self.step()
                with self._lock:
                    self._drop(group, entry)
                del entry
                if self._thread is not threading.current_thread():
                    self._over.put(group)  # for the thread that has replaced this one
                    return

    def _first(self, group: int) -> Entry | None:
        with self._lock:
            entries = self._groups.get(group)
            return entries[0] if entries and entries[0].over else None

    def _drop(self, group: int, entry: Entry) -> None:
        entries = self._groups.get(group)
        if entries is not None and entry in entries:
            entries.remove(entry)
            if not entries:
                del self._groups[group]

    def leave(self) -> None:
        """Have another thread go on, because a function blocks this one."""
        with self._lock:
            self._thread = None
            for group, entries in list(self._groups.items()):
                if entries[0].work is None:  # its function is the one that blocks
                    self._drop(group, entries[0])
            groups = list(self._groups)
        for group in groups:
            self._tell(group)


runner = Runner()


# Backwards


class _End:
    """Drives a line when a backward ends. autograd keeps it until then."""

    __slots__ = ("__weakref__", "line", "queued")

    def __init__(self) -> None:
        self.line = Line(LIMIT)
        self.queued = False

    def queue(self) -> None:
        if not self.queued:  # not yet, or it has run
            Variable._execution_engine.queue_callback(self)
            self.queued = True

    def __call__(self) -> None:
        self.line.drive()
        self.queued = False

    def __del__(self) -> None:
        self.line.leave()  # an exception has ended the backward


_ends: weakref.WeakValueDictionary[int, _End] = weakref.WeakValueDictionary()
"""By the number of the backward (autograd's graph task)."""


def enter(work: Issued, complete: Callable[[], None]) -> Entry | None:
    """Have a future completed in its turn.

    Returns:
        The entry of the future; None if the turn has come, and ``complete`` has run.
    """
    entry = Entry(work, complete)
    line = _local.line
    if line is not None:
        line.add(entry)
        return entry
    number = _in_graph_task()
    if number >= 0:
        end = _ends.get(number)
        if end is None:
            end = _ends[number] = _End()
        end.queue()
        end.line.add(entry)
        return entry
    if runner.add(entry, now=True):
        return entry
    entry.finish()
    return None


_hooked: weakref.WeakSet[Line] = weakref.WeakSet()


def in_order(hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a hook of DDP whose futures are completed in order, after that of the last bucket.

    In a backward this is done in a final callback, which comes before DDP's own. In the first
    backward of a static graph the hooks themselves run in DDP's final callback.

    Args:
        hook: the hook of one reducer.
    """
    line = Line(-1.0)  # DDP waits for the futures too
    _hooked.add(line)

    def call(state: Any, bucket: Any) -> Any:
        if bucket.index() == 0:
            line.leave()  # what a backward left that an exception ended
        before, _local.line = _local.line, line
        try:
            future = hook(state, bucket)
        finally:
            _local.line = before
        if bucket.is_last() and len(line):
            if _in_graph_task() >= 0 and torch._C._current_autograd_node() is not None:
                Variable._execution_engine.queue_callback(line.drive)
            else:
                line.drive()
        return future

    return call


def _at_destroy() -> None:
    """Complete all futures: reading them raises."""
    for line in [*_hooked, *(end.line for end in list(_ends.values()))]:
        line.leave()


at_destroy(_at_destroy)
