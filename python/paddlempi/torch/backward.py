"""Futures of collectives that a backward starts: the thread of the backward completes them.

DDP starts a collective for each bucket during the backward, and needs all of their futures when the
backward ends: its finalizer, a final callback of autograd, waits for them in C++. Before the first
collective of a backward, :func:`future_of` queues another final callback. It comes before DDP's,
which is queued after the last bucket. It waits for the collectives, so that this thread drives
them, and completes their futures. The functions given to ``then`` may start further collectives;
the callback goes on until none is left.

The callback does not run if the backward raised an exception, and it comes too late if a thread
waits for a future before: the finalizer of ``static_graph`` does, and hooks do. The thread of
futures then completes the futures, after 2 ms in which no thread drove them.

Futures of messages are never completed here: a message may wait for what the other rank does after
its backward.
"""

from __future__ import annotations

import collections
import weakref

import torch
from torch.autograd import Variable

from .. import future as core_future

__all__ = ["future_of"]

_LIMIT = 0.1
"""Seconds for which the callback waits for one collective; then the thread of futures takes over.

The limit matters if ranks start the collectives of several groups in different orders, and a
backward runs inside another one (re-entrant checkpoints). The inner callback could then wait for
ever for what another rank starts later.
"""


class _Callback:
    """The final callback of one backward. autograd keeps it until the backward has ended.

    Invariant: ``works`` have a future that is ``awaited``.
    """

    __slots__ = ("__weakref__", "queued", "works")

    def __init__(self) -> None:
        self.works: collections.deque[core_future.WithFuture] = collections.deque()
        self.queued = False

    def add(self, work: core_future.WithFuture) -> None:
        if not self.queued:  # not yet, or it has run
            Variable._execution_engine.queue_callback(self)  # type: ignore[no-untyped-call]
            self.queued = True
        self.works.append(work)

    def __call__(self) -> None:
        while self.works:
            if not core_future.complete(self.works.popleft(), _LIMIT):
                self.works.clear()
        self.queued = False


_callbacks: weakref.WeakValueDictionary[int, _Callback] = weakref.WeakValueDictionary()
"""By the number of the backward (autograd's graph task)."""


def future_of(work: core_future.WithFuture) -> core_future.Future:
    """Return the core's future of a collective.

    In a backward, the backward's thread completes the future; else the thread of futures does.
    """
    number = torch._C._current_graph_task_id()
    if number < 0:
        return core_future.of(work)
    callback = _callbacks.get(number)
    if callback is None:
        callback = _callbacks[number] = _Callback()
    callback.add(work)
    return core_future.of(work, awaited=True)
