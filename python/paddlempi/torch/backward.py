"""Backwards of torch: who calls in them, and who completes the futures that C++ asks for.

C++ leaves no frame. If autograd's engine calls a method of this front, the innermost frame outside
the front (:func:`outside`) is that of the function that runs the backward. If a hook calls, it is
the hook's.

The thread of a backward completes the futures for which C++ asks in it. DDP starts a collective for
each bucket during the backward, and needs all of their futures when the backward ends: its
finalizer, a final callback of autograd, waits for them in C++. Before the first collective of a
backward, :func:`when_over` queues another final callback. It comes before DDP's, which is queued
after the last bucket. It waits for the collectives, so that this thread drives them, and completes
their futures.

The callback does not run if the backward raised an exception, and it comes too late if a thread
waits for a future before: the finalizer of ``static_graph`` does. The thread of futures then
completes the futures, after 2 ms in which no thread drove them. No function of Python waits for
such a future, so it does not matter when and where it is completed. The futures of hooks in Python
are those of :mod:`.callback_order`.
"""

from __future__ import annotations

import collections
import sys
import weakref
from types import FrameType
from typing import Any

import torch
from torch.autograd import Variable
from torch.autograd.graph import _engine_run_backward

from .. import future as core_future

__all__ = ["BACKWARD", "asked_by_engine", "outside", "when_over"]

_in_graph_task = torch._C._current_graph_task_id

BACKWARD = _engine_run_backward.__code__
"""The code of the function of torch that runs a backward."""

_LIMIT = 0.1
"""Seconds for which the callback waits for one collective; then the thread of futures takes over.

The limit matters if ranks start the collectives of several groups in different orders, and a
backward runs inside another one (re-entrant checkpoints). The inner callback could then wait for
ever for what another rank starts later.
"""


def outside() -> FrameType | None:
    """Return the innermost frame of this thread that is not of this front; None: there is none.

    A thread of the engine, which computes the gradients of a GPU, has none.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__package__", "") == __package__:
        frame = frame.f_back
    return frame


def asked_by_engine() -> bool:
    """Whether C++ asks for a future in a backward. Functions of Python are not given to it."""
    if _in_graph_task() < 0:
        return False
    frame = outside()
    return frame is None or frame.f_code is BACKWARD


class _Callback:
    """The final callback of one backward. autograd keeps it until the backward has ended."""

    __slots__ = ("__weakref__", "operations", "queued")

    def __init__(self) -> None:
        self.operations: collections.deque[Any] = collections.deque()
        self.queued = False

    def add(self, operation: Any) -> None:
        if not self.queued:  # not yet, or it has run
            Variable._execution_engine.queue_callback(self)
            self.queued = True
        self.operations.append(operation)

    def __call__(self) -> None:
        operations = self.operations
        while operations:
            if not core_future.end(operations.popleft(), _LIMIT):
                operations.clear()
        self.queued = False


_callbacks: weakref.WeakValueDictionary[int, _Callback] = weakref.WeakValueDictionary()
"""By the number of the backward (autograd's graph task)."""


def when_over(operation: Any, ending: core_future.Ending) -> bool:
    """Do as the core's ``when_over`` with a collective.

    If a backward has started it, the backward's thread calls ``ending``.
    """
    number = _in_graph_task()
    if number < 0:
        return core_future.when_over(operation, ending)
    callback = _callbacks.get(number)
    if callback is None:
        callback = _callbacks[number] = _Callback()
    callback.add(operation)
    return core_future.when_over(operation, ending, awaited=True)
