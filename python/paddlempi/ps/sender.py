"""Half-asynchronous training: pushes are queued, merged, and sent by a thread.

Mode "half_async" is that of Fluid's communicator: a push ends when its gradients are in the queue
of this trainer. The thread takes what has come meanwhile, ``merge`` pushes at most, adds the
gradients of a table up, and sends them as one push, which the servers apply at once. A full queue
makes the next push wait, so a trainer is never more than ``send_queue`` + ``merge`` pushes ahead of
what the servers have.

Formula: of the merged pushes *1..m* of a table the servers get one gradient, *g = g1 + ... + gm* in
the order of the pushes, and take one step of the optimizer with it. With SGD this is the same as
*m* steps but for rounding; optimizers with states take one step instead of *m*. With
``merge_by="mean"`` it is *g / m*, where *m* counts the pushes that have rows of the table.

What is refused together, and has changed nothing, is sent one by one: of twelve pushes one of which
is bad, eleven are applied.

Source: the design of Fluid's ``AsyncCommunicator`` (its ``send_queue_size``,
``max_merge_var_num``, and ``MergeAverage``).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any

from .. import _daemons, _native, memory
from .._ops import TableCall
from ..errors import Error

__all__ = ["Sender"]

_PUSH = int(TableCall.PUSH)

Entry = tuple[int, Any, Any, Any]
"""The number of a table, ids, gradients, and the learning rate or None: as the core takes them."""


class Sender:
    """The queue of a trainer, and its thread. All methods may be called from any thread.

    Args:
        send_queue: how many pushes wait at most.
        merge: how many pushes are sent as one, at most.
        merge_by: "sum" or "mean" of their gradients.
    """

    def __init__(self, send_queue: int, merge: int, merge_by: str = "sum") -> None:
        self._size, self._merge, self._mean = send_queue, merge, merge_by == "mean"
        self._waiting: deque[list[Entry]] = deque()
        # A signal handler may push while the thread that it interrupts holds the lock.
        self._changed = threading.Condition(threading.RLock())
        self._sending = False
        self._ended = False
        self._failed: BaseException | None = None  # the first failure that no call has raised
        self._more = 0  # failures after it
        self._pid = os.getpid()
        _daemons.Daemon(self._work, "paddlempi-sender").start()

    def push(self, entries: list[Entry]) -> None:
        """Put a push into the queue, with copies of its tensors. It waits while the queue is full.

        Raises:
            Error: what an earlier push has failed with. That push is lost; this one is in the
                queue all the same.
        """
        if self._pid != os.getpid():  # the core refuses it
            _native.load().tables(_PUSH, tuple(entries))
            return
        copies = [
            (number, _joined([ids]), _joined([gradients]), rate)
            for number, ids, gradients, rate in entries
        ]
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < self._size)
            self._waiting.append(copies)
            self._changed.notify_all()
            self._raise()

    def flush(self) -> None:
        """Wait until all pushes have been applied.

        Raises:
            Error: what a push has failed with. Those behind it are sent all the same.
        """
        if self._pid != os.getpid():
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._sending)
            self._raise()

    def end(self) -> None:
        """End the thread. Nothing waits."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _raise(self) -> None:
        failed, more = self._failed, self._more
        self._failed, self._more = None, 0
        if failed is None:
            return
        if isinstance(failed, Error):
            ranks, also = failed.ranks, f" (and {more} later ones)" if more else ""
            failed = type(failed)(f"a push that was queued has failed{also}: {failed}")
            failed.ranks = ranks
        raise failed

    def _work(self) -> None:
        while True:
            taken = _daemons.idle(self._take)
            if taken is None:
                return
            self._send(taken)
            with self._changed:
                self._sending = False
                self._changed.notify_all()

    def _send(self, pushes: list[list[Entry]]) -> None:
        """Send pushes as one. If all are refused, and nothing has changed, send them one by one."""
        apart = True
        try:
            entries = merged(pushes, mean=self._mean)
            apart = False
            _native.load().tables(_PUSH, tuple(entries))
        except BaseException as error:  # for the next call of the program
            if len(pushes) > 1 and (apart or _unchanged()):
                for one in pushes:
                    self._send([one])
                return
            with self._changed:
                if self._failed is None:
                    self._failed, self._more = error, len(pushes) - 1
                else:
                    self._more += len(pushes)

    def _take(self) -> list[list[Entry]] | None:
        """Wait for pushes, and take what there is; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if not self._waiting:
                return None
            taken = [self._waiting.popleft() for _ in range(min(self._merge, len(self._waiting)))]
            self._sending = True
            self._changed.notify_all()
            return taken


def _unchanged() -> bool:
    """Whether the last push has changed nothing on any server."""
    try:
        return not _native.control("ps_last_push")["changed"]
    except Exception:  # the job has ended
        return False


def merged(pushes: list[list[Entry]], *, mean: bool = False) -> list[Entry]:
    """Return one push in the place of several: of each table the ids and gradients in their order.

    The latest learning rate of a table counts.

    Args:
        pushes: what is merged.
        mean: divide the gradients of a table by the number of pushes that have rows of it.
    """
    of: dict[int, tuple[list[Any], list[Any], Any]] = {}
    for push in pushes:
        for number, ids, gradients, rate in push:
            all_ids, all_gradients, _ = of.get(number, ([], [], None))
            of[number] = ([*all_ids, ids], [*all_gradients, gradients], rate)
    entries: list[Entry] = []
    for number, (ids, gradients, rate) in of.items():
        together, parts = _behind(gradients), sum(len(one) > 0 for one in ids)
        if mean and parts > 1:
            together = together / parts
        entries.append((number, _behind(ids), together, rate))
    return entries


def _behind(tensors: list[Any]) -> Any:
    """Return tensors behind each other; one tensor as it is."""
    return tensors[0] if len(tensors) == 1 else _joined(tensors)


def _joined(tensors: list[Any]) -> Any:
    """Return tensors behind each other, in new memory."""
    return memory.describer(memory.framework_of(tensors[0])).joined(tensors)
