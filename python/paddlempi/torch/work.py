"""Works as torch sees them: what the process group's methods return."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch._C._distributed_c10d import Work as _Work

from .. import future as core_future
from .. import work as core_work
from .._ops import Op
from ..errors import ArgumentError, Error
from . import backward, callback_order

__all__ = ["DONE", "OperationWork", "Work"]

# torch's numbers of operations (c10d::OpType). Only C++ has names for them.
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
"""Held while a work gets its future. Several threads may ask for it, and all get the same one."""


class Promise(torch.futures.Future):  # type: ignore[misc]
    """A future of torch that a thread completes itself where it would otherwise wait for itself.

    Args:
        work: the work whose future it is; or the work of the future that ``then`` was called of.
        devices: the CUDA devices of the work's tensors.
    """

    def __init__(self, work: Work, devices: list[Any]) -> None:
        torch._C.Future.__init__(self, devices)
        self._work = weakref.ref(work)
        self._devices = devices

    def wait(self) -> Any:
        """Wait for the value and return it, or raise what the operation ended with."""
        work = None if super().done() else self._work()
        if work is not None:
            work._complete_future()
        return super().wait()

    def value(self) -> Any:
        """Return the value of a future that is done, or raise what the operation ended with."""
        self._look()
        return super().value()

    def done(self) -> bool:
        """Whether the value is there. Does not wait."""
        self._look()
        return bool(super().done())

    def _look(self) -> None:
        """Complete the future if its work has ended and only this thread would do it, later."""
        work = None if super().done() else self._work()
        if work is not None and work._entry is not None and work.is_completed():
            work._entry.run_if_mine()

    def then(self, callback: Callable[[Any], Any]) -> Any:
        """Return a future of ``callback(self)``, which is called when this future is done."""
        work = self._work()
        if work is None:  # it has ended
            return super().then(callback)
        chained = Promise(work, self._devices)

        def call(_: Any) -> None:
            try:
                value = callback(self)
            except Error as error:  # of the work: it stays what it is
                _fail(chained, error)
            except BaseException as error:  # torch makes it a RuntimeError, with these words
                failed = RuntimeError(
                    "Got the following error when running the callback: "
                    f"{type(error).__name__}: {error}"
                )
                failed.__cause__ = error
                _fail(chained, failed)
            else:
                chained.set_result(value)

        self.add_done_callback(call)
        return chained


class Work(_Work):  # type: ignore[misc]
    """One or more operations of the core as one work.

    Until :meth:`wait` has returned or the future is done, the caller must not write to the tensors
    of the operation, nor read the tensors that it writes to. After that, CUDA tensors may be used
    on the stream that was current in :meth:`wait`, and on streams that wait for it. Dropping a Work
    neither waits nor cancels.

    Thread-safety: all methods may be called from any thread. Those that wait drop the GIL.

    Args:
        parts: the works of the operations; empty if the work has ended.
        output: the tensors written to, which :meth:`result` returns.
        finish: called once, when all parts have ended without an error.

    Source: :class:`torch.distributed.Work`.
    """

    _promise: Any = None
    _entry: callback_order.Entry | None = None

    def __init__(
        self,
        parts: Sequence[Any] = (),
        output: Sequence[Any] = (),
        finish: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._number = callback_order.next_number()
        self._parts = parts
        self._output = output
        self._finish = finish
        self._finishing = threading.Lock()
        self._failed: BaseException | None = None

    @classmethod
    def joined(cls, works: Sequence[Work]) -> Work:
        """Return one work for several."""
        if len(works) == 1:
            return works[0]
        return cls(works, [tensor for work in works for tensor in work._output])

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the work has ended.

        With CUDA tensors the host waits until the last copy or kernel is queued, and the current
        stream waits until that has ended.

        Args:
            timeout: how long to wait. None, or not above 0: until the operation ends, at the
                latest at its own deadline.

        Returns:
            True.

        Raises:
            NotReadyError: (a ``DistBackendError``) ``timeout`` ran out; the operation goes on.
            Error: the error that the operation ended with; the same in every call.
        """
        limit = timeout if timeout is not None and timeout.total_seconds() > 0 else None
        for part in self._parts:
            part.wait(limit)
        self._run_finish()
        if self._failed is not None:
            raise self._failed
        return True

    def synchronize(self) -> None:
        """Do the same as ``wait()``."""
        self.wait()

    def block_current_stream(self) -> None:
        """Call ``wait()`` if there are CUDA tensors, else do nothing."""
        if _cuda_devices(self._output):
            self.wait()

    def is_completed(self) -> bool:
        """Whether the work has ended, with or without an error, also on its device.

        Does not wait.
        """
        if not all(part.is_completed() for part in self._parts):
            return False
        if all(part.is_success() for part in self._parts):
            self._run_finish()
        return True

    def is_success(self) -> bool:
        """Whether the work has ended without an error. Does not wait."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The error that the work ended with; None if there is none or it has not ended."""
        for part in self._parts:
            error: BaseException | None = part.exception()
            if error is not None:
                return error
        return self._failed

    def result(self) -> list[Any]:
        """Wait and return the tensors written to."""
        self.wait()
        return list(self._output)

    def source_rank(self) -> int:
        """Wait for a receive to end and return the sender's rank in the group.

        Raises:
            ArgumentError: the work is no single receive.
        """
        if len(self._parts) != 1:
            raise ArgumentError(
                f"source_rank: this work has {len(self._parts)} operations; it must be one receive"
            )
        rank: int = self._parts[0].source_rank()
        return rank

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Any:
        """Return a ``torch.futures.Future`` of :meth:`result`. It is completed when the work ends.

        If the work ends with an error, ``wait()`` and ``value()`` of the future raise it. With CUDA
        tensors the future is done when the last copy or kernel is queued. torch makes the current
        stream of a thread that waits for the future, and the streams of callbacks, wait for that
        copy or kernel. Functions given to ``then`` run at once if the future is done. Otherwise
        they run in one thread, those of the collectives of a group in the order in which the
        collectives were issued; in a backward they run in its thread (:mod:`.callback_order`).
        """
        with _lock:
            if self._promise is not None:
                return self._promise
            devices = _cuda_devices(self._output)
            promise = self._promise = Promise(self, devices)

        def complete() -> None:
            _complete(promise, self.result, devices)

        if not self._is_collective():
            self._when_done(complete)
        elif backward.asked_by_engine():
            self._when_done(complete, awaited=True)
        else:
            self._entry = callback_order.enter(self, complete)
        return promise

    @property
    def _group(self) -> int:
        """The number of the group of a collective."""
        return self._parts[0]._group if self._parts else 0

    def _is_collective(self) -> bool:
        return all(part._is_collective() for part in self._parts)

    def _settle(self, limit: float) -> None:
        """Wait until all parts have ended on the host, each up to ``limit`` seconds if not below 0.

        Raises:
            NotReadyError: the limit ran out.
            Error: what a part ended with.
        """
        for part in self._parts:
            part._settle(limit)

    def _when_done(self, call: Callable[[], None], awaited: bool = False) -> None:
        """Have ``call`` called once, when all parts have ended; now if they have.

        It is called in the core's thread of futures, or in this one.

        Args:
            call: the function.
            awaited: the end of the backward that runs waits for the parts and calls it, if the
                thread of futures has not done that.
        """
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
            part._when_done(count, awaited)

    def _complete_future(self) -> None:
        """Wait, and complete the future on this thread, if this thread was going to do that."""
        if self._entry is not None:
            self._entry.run_if_mine()
        for part in self._parts:
            part._complete_future()

    def _get_op_type(self) -> int:
        """Return torch's number of the operation (``c10d::OpType``)."""
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
            self._finish = None  # last: a thread that sees None also sees what finish did


class OperationWork(core_work.WorkMethods, Work):
    """A Work of one operation of the core.

    It is one object instead of a Work with a part, because every asynchronous call makes one.

    Args:
        operation: the core's ``_core.Operation``.
        code: which operation it is.
        output: the tensors written to.
        group: the core's number of the group.
    """

    _ranks = None
    _future = None
    _failed = None
    _tail = None

    def __init__(self, operation: Any, code: Op, output: Sequence[Any], group: int) -> None:
        _Work.__init__(self)
        self._number = callback_order.next_number()
        self._op = operation
        self._code = code
        self._output = output
        self._gid = group

    @property
    def _name(self) -> str:  # type: ignore[override]
        return self._code.label

    def wait(self, timeout: timedelta | None = None) -> bool:  # type: ignore[override]
        """Do as :meth:`Work.wait`."""
        seconds = -1.0 if timeout is None else timeout.total_seconds()
        operation = self._op
        operation.wait(seconds if seconds > 0 else -1.0)
        if operation.device:
            self._end_on_device().order()
        return True

    result = Work.result
    get_future = Work.get_future

    @property
    def _group(self) -> int:
        return self._gid

    def _is_collective(self) -> bool:
        return self._code.trait.collective

    def _settle(self, limit: float) -> None:
        self._op.wait(limit)

    def _when_done(self, call: Callable[[], None], awaited: bool = False) -> None:
        when_over = backward.when_over if awaited else core_future.when_over
        if self._op.done or not when_over(self._op, _Ending(call)):
            call()

    def _complete_future(self) -> None:
        if self._entry is not None:
            self._entry.run_if_mine()
        core_future.end(self._op, -1.0)

    def _get_op_type(self) -> int:
        """Return torch's number of the operation (``c10d::OpType``)."""
        return _OP_TYPES.get(self._code, _UNKNOWN)


class _Ending:
    """A function to call when an operation has ended."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __call__(self) -> None:
        self._call()

    def abandon(self, error: Exception) -> None:
        """Call the function as well. Where it waits for the operation, it gets an error."""
        self._call()


class _Done(Work):
    """The Work of all synchronous operations. It has no tensors."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return True."""
        return True


DONE = _Done()
"""The Work that a synchronous operation returns. torch's wrapper calls only its ``wait``."""


class _Failure:
    """The value of a future that has failed. Reading it raises the error, in Python and in C++.

    torch cannot fail a future from Python. Its ``set_exception`` makes the exception the value of
    the future, which Python's readers raise, but which C++ (DDP) takes for a result. C++ does one
    of two things with a value that is no tensor. Where it wants tensors in it, it pickles it, and
    makes a RuntimeError of an exception. So it finds a tensor, every use of which raises the error
    as it is. Where it wants a tensor, it tells that it has none, with the value's text: that raises
    it.

    Args:
        error: with which the future fails.
        devices: of the future. With CUDA's, torch looks for the tensors' memory, and this has none.
    """

    __slots__ = ("_devices", "_error")

    def __init__(self, error: BaseException, devices: Sequence[Any]) -> None:
        self._error, self._devices = error, devices

    def fail(self) -> NoReturn:
        raise self._error

    def __reduce_ex__(self, _: object) -> Any:
        if self._devices:
            raise self._error
        return list, ([_FailedTensor(self._error)],)

    def __repr__(self) -> str:
        raise self._error


class _FailedTensor(torch.Tensor):  # type: ignore[misc]
    """A tensor without memory, of which every use by torch raises an error."""

    _error: BaseException

    @staticmethod
    def __new__(cls, error: BaseException) -> _FailedTensor:
        made: _FailedTensor = torch.Tensor._make_wrapper_subclass(cls, (0,), dtype=torch.float32)
        made._error = error
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        raise next(one for one in args if isinstance(one, cls))._error


def _cuda_devices(tensors: Sequence[Any]) -> list[Any]:
    """Return the CUDA devices of tensors, without repetition."""
    return list({tensor.device: None for tensor in tensors if tensor.is_cuda})


def _complete(promise: Any, result: Callable[[], list[Any]], devices: Sequence[Any]) -> None:
    """Complete a future with what ``result()`` returns, or with the error that it raises.

    Args:
        promise: the future.
        result: returns the tensors.
        devices: the devices of the tensors. torch makes the readers of the future wait for the
            streams that are current here. These are streams of torch's pool, because the default
            stream has work of others.
    """
    with contextlib.ExitStack() as streams:
        for device in devices:
            streams.enter_context(torch.cuda.stream(torch.cuda.Stream(device)))
        try:
            tensors = result()
        except BaseException as error:  # for the reader of the future
            _fail(promise, error)
        else:
            promise.set_result(tensors)


def _fail(promise: Any, error: BaseException) -> None:
    """End a future with an error."""
    promise._set_unwrap_func(lambda value: value.fail())
    promise.set_result(_Failure(error, promise._devices))
