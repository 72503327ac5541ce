"""An operation under way, as torch sees it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch._C._distributed_c10d import Work as _Work

from .. import future as core_future
from .. import work as core_work
from .._ops import Op
from ..errors import ArgumentError

__all__ = ["DONE", "OperationWork", "Work"]

# torch's numbers of operations (c10d::OpType), which C++ alone has names for.
_OP_TYPES = {
    Op.BROADCAST: 0,
    Op.ALL_REDUCE: 1,
    Op.ALL_REDUCE_COALESCED: 2,
    Op.REDUCE: 3,
    Op.ALL_GATHER: 4,
    Op.GATHER: 7,
    Op.SCATTER: 8,
    Op.REDUCE_SCATTER: 9,
    Op.ALL_TO_ALL: 11,
    Op.SEND: 12,
    Op.RECV: 13,
    Op.BARRIER: 15,
}
_UNKNOWN = 100

_lock = threading.Lock()
"""Held while a work gets its future: it has one, whichever threads ask."""


class Work(_Work):  # type: ignore[misc]
    """What the process group's methods return: one or more operations of the core, as one.

    The tensors must not be written to (those received into not even read) before
    :meth:`wait` has returned or the future is done; on a device, by other streams than the one
    that was current then. Dropping a Work neither waits nor cancels.

    Thread-safety: all methods may be called from any thread; those that wait drop the GIL.

    Args:
        parts: the works of the core; empty where the operation is over.
        output: the tensors written to, what :meth:`result` gives.
        finish: what is left to do once the parts have ended well; called once.

    Source: :class:`torch.distributed.Work`.
    """

    _promise: Any = None

    def __init__(
        self,
        parts: Sequence[Any] = (),
        output: Sequence[Any] = (),
        finish: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._parts = parts
        self._output = output
        self._finish = finish
        self._finishing = threading.Lock()
        self._failed: BaseException | None = None

    @classmethod
    def joined(cls, works: Sequence[Work]) -> Work:
        """Several works as one."""
        if len(works) == 1:
            return works[0]
        return cls(works, [tensor for work in works for tensor in work._output])

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end. ``timeout``: None or not above 0, until the group's own deadline.

        Of CUDA tensors the host waits until the last copy or kernel is queued, and the current
        stream for that to end.

        Raises:
            NotReadyError: (a ``DistBackendError``) ``timeout`` ran out; the operation goes on.
            Error: what the operation ended with, in every call.
        """
        limit = timeout if timeout is not None and timeout.total_seconds() > 0 else None
        for part in self._parts:
            part.wait(limit)
        self._run_finish()
        if self._failed is not None:
            raise self._failed
        return True

    def synchronize(self) -> None:
        """The same as ``wait()``."""
        self.wait()

    def block_current_stream(self) -> None:
        """Make the current stream wait: ``wait()`` for CUDA tensors, nothing for the host's."""
        if _cuda_devices(self._output):
            self.wait()

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or not, on its device too. Does not wait."""
        if not all(part.is_completed() for part in self._parts):
            return False
        if all(part.is_success() for part in self._parts):
            self._run_finish()
        return True

    def is_success(self) -> bool:
        """Whether the operation has ended without an error. Does not wait."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The error that the operation ended with; None if it did not or is under way."""
        for part in self._parts:
            error: BaseException | None = part.exception()
            if error is not None:
                return error
        return self._failed

    def result(self) -> list[Any]:
        """The tensors written to. Waits for the end."""
        self.wait()
        return list(self._output)

    def source_rank(self) -> int:
        """The rank in the group of the sender that a receive was served by. Waits for the end.

        Raises:
            ArgumentError: the operation receives from no single rank.
        """
        if len(self._parts) != 1:
            raise ArgumentError("source_rank: several operations, or none, have no one source")
        rank: int = self._parts[0].source_rank()
        return rank

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Any:
        """A ``torch.futures.Future`` of :meth:`result`, completed without anybody's waiting.

        Its value, when it is read, raises what the operation ended with; so does ``wait()``.
        With CUDA tensors it is done when the last copy or kernel is queued; torch has the current
        streams of those who wait for it, and the streams of callbacks, wait for that.
        Functions given to ``then`` run in the thread that completes futures, or at once where
        the operation has ended.
        """
        with _lock:
            if self._promise is not None:
                return self._promise
            devices = _cuda_devices(self._output)
            # Without a GPU torch takes no devices.
            promise = self._promise = (
                torch.futures.Future(devices=devices) if devices else torch.futures.Future()
            )
        self._when_done(lambda: _complete(promise, self.result, devices))
        return promise

    def _when_done(self, call: Callable[[], None]) -> None:
        """Call it once when all parts have ended, in the thread of futures; now if they have."""
        left = len(self._parts)
        if not left:
            call()
            return
        lock = threading.Lock()

        def count() -> None:
            nonlocal left
            with lock:
                left -= 1
                if left:
                    return
            call()

        for part in self._parts:
            if isinstance(part, Work):
                part._when_done(count)
            else:
                part.get_future().add_done_callback(_once(count))

    def _get_op_type(self) -> int:
        """torch's number of the operation (``c10d::OpType``)."""
        if len(self._parts) != 1:
            return _UNKNOWN
        kind: int = self._parts[0]._get_op_type()
        return kind

    def _run_finish(self) -> None:
        if self._finish is None:
            return
        with self._finishing:
            finish = self._finish
            if finish is None:
                return
            try:
                finish()
            except Exception as error:
                self._failed = error
            self._finish = None  # last: a thread that sees this sees its effect


class OperationWork(core_work.WorkMethods, Work):
    """A Work that is one operation of the core; one object, for it is made in every call.

    Args:
        operation: the core's.
        code: what it is.
        output: the tensors written to.
    """

    _ranks = None
    _future = None
    _failed = None
    _tail = None

    def __init__(self, operation: Any, code: Op, output: Sequence[Any]) -> None:
        _Work.__init__(self)
        self._op = operation
        self._code = code
        self._output = output

    @property
    def _name(self) -> str:  # type: ignore[override]
        return self._code.label

    def wait(self, timeout: timedelta | None = None) -> bool:  # type: ignore[override]
        """As :meth:`Work.wait`."""
        seconds = -1.0 if timeout is None else timeout.total_seconds()
        operation = self._op
        operation.wait(seconds if seconds > 0 else -1.0)
        if operation.device:
            self._end_on_device().order()
        return True

    get_future = Work.get_future

    def _when_done(self, call: Callable[[], None]) -> None:
        if self._op.done:
            call()
        else:
            core_future.of(self).add_done_callback(_once(call))

    def _get_op_type(self) -> int:
        """torch's number of the operation (``c10d::OpType``)."""
        return _OP_TYPES.get(self._code, _UNKNOWN)


def _once(call: Callable[[], None]) -> Callable[[object], None]:
    """A callback that lets go of the function it has called: the future would keep it."""
    calls = [call]
    return lambda _: calls.pop()()


class _Done(Work):
    """The Work of a synchronous operation, the same for all: it holds nothing."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True."""
        return True


DONE = _Done()
"""What a synchronous operation returns: torch's wrapper only calls its ``wait``."""


class _Failure:
    """The value of a future that failed: whoever reads it gets the error.

    torch has no way to fail a future from Python. Its own ``set_exception`` makes the exception
    the value and has Python's readers raise it; C++ (DDP) would take it for a result.
    """

    __slots__ = ("_error",)

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def fail(self, *_: object) -> NoReturn:
        raise self._error

    __reduce_ex__ = fail  # C++ looks for tensors in a value by pickling it

    def __repr__(self) -> str:
        return repr(self._error)  # C++'s error says what cannot be cast to a tensor


def _cuda_devices(tensors: Sequence[Any]) -> list[Any]:
    """The CUDA devices of tensors, each once."""
    return list({tensor.device: None for tensor in tensors if tensor.is_cuda})


def _complete(promise: Any, result: Callable[[], list[Any]], devices: Sequence[Any]) -> None:
    """Complete a future with a result, or with the error that the result ends in.

    Args:
        devices: those of the result's tensors. torch has whoever takes the value wait for the
            streams that are current here: those of its pool, for everybody may use the default one.
    """
    with contextlib.ExitStack() as streams:
        for device in devices:
            streams.enter_context(torch.cuda.stream(torch.cuda.Stream(device)))
        try:
            tensors = result()
        except BaseException as error:  # whatever it is belongs to whoever asks for the value
            promise._set_unwrap_func(lambda value: value.fail())
            promise.set_result(_Failure(error))
        else:
            promise.set_result(tensors)
