"""Prepared calls: an operation whose arguments are given once and that is carried out many times.

A program that makes the same call again and again, for instance the ``all_reduce`` of one number
in every step of a solver, prepares it::

    call = dist.prepare("all_reduce", residual, op=dist.ReduceOp.MAX)
    while residual[0] > 1e-6:
        residual[0] = step()
        call()  # as dist.all_reduce(residual, op=dist.ReduceOp.MAX)

A call does the same as the plain function, and raises the same errors. It takes less time, because
the arguments are checked once.

* **Local.** :func:`prepare` sends nothing and waits for nobody. The other members need not prepare
  their calls: a prepared call meets plain ones. This differs from MPI, where ``MPI_Allreduce_init``
  is collective.
* **One at a time.** Between :meth:`PreparedCall.start` and :meth:`PreparedCall.wait` a call cannot
  be made again. Several prepared calls may be under way at the same time, also of one tensor if
  each only reads it.
* **Order.** A prepared collective takes its place among the collectives of its group when it is
  called or started.
* **Tensors.** The call holds its tensors, and uses their memory as it is at each call. A tensor
  that has another number of elements or another dtype than when the call was prepared raises
  ``ArgumentError`` or ``DtypeError``, and the other members get ``RefusedError``. A tensor in CUDA
  memory is used on the stream that is current at the call.

Source: ``MPI_Allreduce_init``, ``MPI_Start`` and ``MPI_Wait`` of MPI-4.1, section 6.13.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _native, collectives, p2p
from .errors import ArgumentError
from .group_arguments import to_seconds
from .rank_list import group_of
from .work import Tail

__all__ = ["PreparedCall", "prepare"]

_FUNCTIONS: dict[str, Callable[..., object]] = {
    name: getattr(collectives, name)
    for name in collectives.__all__
    if name != "monitored_barrier"  # it meets by messages, and is no operation of the core
} | {name: getattr(p2p, name) for name in ("irecv", "isend", "recv", "send", "sendrecv")}
"""What can be prepared."""

_preparing = threading.Lock()
"""Held while the core prepares the next call of this thread."""


class PreparedCall:
    """A call that :func:`prepare` has made.

    ``call()`` carries the operation out and returns when it is over: what the plain function
    returns, so the sender of a message for a receive, else None. :meth:`start` and :meth:`wait`
    are the same in two steps. In between the program must not touch the tensors, as with
    ``async_op=True``.

    The call keeps its tensors alive until it is freed: by :meth:`free`, at the end of a ``with``
    statement, or when the last reference to it is dropped. An operation that is under way then
    goes on, and keeps the tensors as long as it needs them.

    Thread-safety: all methods may be called from any thread. A call that another thread is inside
    raises ``ArgumentError``.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        # The class of the core, from which the subclass is made; see capi/prepared.c.
        name: str
        operation: Any
        written: Any
        source: int

        def __call__(self) -> Any: ...
        def finish(self, timeout: float) -> Any: ...

        def start(self) -> None:
            """Begin the operation and return at once.

            Raises:
                ArgumentError: it was started before, and :meth:`wait` has not ended it; or it was
                    freed; or a tensor has another length than when it was prepared.
                Error: as the plain function with ``async_op=True``.
            """

        def free(self) -> None:
            """Drop the tensors. Later calls raise ``ArgumentError``."""

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Wait until what :meth:`start` has begun has ended. The call can then be made again.

        With tensors in device memory it waits until the last copy or kernel is queued, and the
        stream that is current in this thread waits for that.

        Args:
            timeout: how long to wait, a timedelta or seconds. None: until the operation ends.
                The group's deadline ends it at the latest.

        Returns:
            True.

        Raises:
            ArgumentError: nothing was started, or an earlier ``wait`` has ended it.
            NotReadyError: ``timeout`` ran out. The operation goes on; wait again.
            Error: the error that the operation ended with.
            KeyboardInterrupt: Ctrl-C during the wait. The operation goes on.
        """
        on_device = self.finish(-1.0 if timeout is None else to_seconds(timeout, "wait"))
        if on_device is not None:
            Tail(on_device).order()
        return True

    def is_completed(self) -> bool:
        """Whether nothing is under way: :meth:`wait` would return at once. Does not wait.

        If an operation has ended, :meth:`wait` must follow before the next :meth:`start`.
        """
        operation = self.operation
        return operation is None or bool(operation.test())

    def result(self) -> list[Any]:
        """Wait as :meth:`wait` does and return the tensors written to, in the caller's order."""
        self.wait()
        written = self.written
        if written is None:
            return []
        return list(written) if isinstance(written, tuple) else [written]

    def source_rank(self) -> int:
        """The global rank from which the last message came.

        Raises:
            ArgumentError: the operation receives no message, or has received none yet.
        """
        if self.source < 0:
            raise ArgumentError(f"source_rank: {self.name} has no source")
        return self.source

    def __enter__(self) -> PreparedCall:
        return self

    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.free()

    def __repr__(self) -> str:
        return f"<PreparedCall {self.name}, {'idle' if self.operation is None else 'started'}>"


@functools.cache
def _class(core: Any) -> type:
    """Return PreparedCall with what the core gives it."""
    attributes = {"__slots__": ("__weakref__",), "__module__": __name__}
    return type("PreparedCall", (PreparedCall, core.prepared_type()), attributes)


def prepare(name: str, *args: Any, **kwargs: Any) -> PreparedCall:
    """Prepare a call that is made again and again.

    It is local: it sends nothing, and the other members need not prepare their calls.

    Args:
        name: the function: one of :mod:`paddlempi.collectives` except ``monitored_barrier``, or
            ``"send"``, ``"recv"``, ``"isend"``, ``"irecv"``, ``"sendrecv"``. The names with *i*
            mean the same as those without.
        args, kwargs: the arguments of the function, without ``async_op``. A list of tensors is
            copied, its tensors are not. With ``rank_list`` the first use of the lists makes the
            group, which is collective.

    Returns:
        The call; None, after a warning, if this rank is no member of the group.

    Raises:
        ArgumentError: there is no such function; or what the function raises for its arguments.
        Error: what the function raises before it sends anything. The other members learn nothing
            of it.
    """
    function = _FUNCTIONS.get(name) if isinstance(name, str) else None
    if function is None:
        raise ArgumentError(
            f"prepare: {name!r} cannot be prepared: give one of {', '.join(sorted(_FUNCTIONS))}"
        )
    import inspect  # which `import paddlempi` need not pay for

    given = inspect.signature(function).bind(*args, **kwargs).arguments
    if given.get("async_op", False) is not False:
        raise ArgumentError(f"prepare: {name} is prepared without async_op: the call has start()")
    if given.get("rank_list") is not None:
        given["group"] = group_of(given.pop("rank_list"), name, given.get("group"))
    ranks = getattr(given.get("group"), "_ranks", None)
    core = _native.core()
    with _preparing:
        core.prepare_next(_class(core))
        try:
            function(**given)
        finally:
            call: PreparedCall = core.prepared(ranks)
    return call
