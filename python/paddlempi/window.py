"""Windows: memory of every rank that all ranks of a group read, write and update.

The rank whose memory it is takes no part. On a node the ranks work in each other's memory. Between
nodes they send messages, which the target's progress thread carries out, also while the target
computes. Both ways change an element by the same atomic instructions, so no update is lost::

    counter = paddlempi.Window(1, dtype="int64")
    mine = counter.fetch_and_op(1, rank=0)  # a number that no other rank gets

Ranks are ranks of the window's group. Offsets count elements of the window's dtype, and tensors
have that dtype. A tensor that is given to a call may be used again when the call returns.

* ``put`` and ``accumulate`` may return before they are done at the target. :meth:`Window.flush`
  waits for that. On a node they are done at once.
* The accesses of one rank to another are done in their order. ``accumulate``, ``get_accumulate``,
  ``fetch_and_op`` and ``compare_and_swap`` are atomic for every element, whichever ranks use it. A
  ``put`` or ``get`` is not: who reads at the same time may see a part of it.
* An access raises the errors of :mod:`paddlempi.collectives` about dead ranks, ranks that have
  left, the group's deadline and Ctrl-C. After that nothing is written into memory of this rank. At
  the target a ``put`` or ``accumulate`` that raised may still happen, until the window is freed.

Thread-safety: all methods may be called from any thread. Locks belong to a rank, not to a thread.
"""

from __future__ import annotations

import numbers
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any, ClassVar

from . import _native, errors, memory, window_proxy
from ._ops import DTYPE_BY_NAME, Op
from .arguments import refuse
from .errors import ArgumentError, Error, GroupDestroyedError, NotMemberError, RefusedError
from .group import ProcessGroup, at_destroy, members
from .group_arguments import to_seconds
from .reduce_op import SUM
from .tensor_types import Tensor

__all__ = ["Window", "WindowOp"]

# PMPI_WINDOW_* of pmpi.h
_PUT, _GET, _ACCUMULATE, _GET_ACCUMULATE = 1, 2, 3, 4
_FLUSH, _FENCE, _SIGNAL, _WAIT_SIGNAL, _LOCK, _LOCK_SHARED, _UNLOCK, _FREE = range(6, 14)
_ALL = -(2**31)

_kept: dict[int, Any] = {}
"""The memory of windows that have not ended, or that another rank may still use, by number. So a
program that drops a window without freeing it does not give the memory back."""


class WindowOp(int):
    """A way to combine elements that only windows have. :class:`Window` has all of them."""

    _name: str

    def __new__(cls, code: int, name: str) -> WindowOp:
        self = super().__new__(cls, code)
        self._name = name
        return self

    def __repr__(self) -> str:
        return f"Window.{self._name}"

    __str__ = __repr__

    def __reduce__(self) -> tuple[object, ...]:
        return (WindowOp, (int(self), self._name))


class Window:
    """Memory of every rank of a group that all of them access.

    Making a window is collective over the group, and so are :meth:`fence` and :meth:`free`. As a
    context manager, a window is freed at the end, unless an exception goes out.

    Args:
        tensor_or_shape: this rank's memory: a shape, whose elements are 0 at first; or a contiguous
            tensor in this rank's heap (:func:`paddlempi.empty`), which stays in use until the
            window is freed. A torch tensor may be moved into the heap. The sizes of the ranks may
            differ.
        dtype: the dtype of the elements, the same on all ranks; a name, or a dtype of a framework,
            whose tensor :attr:`local` is then. None: that of the tensor, or ``"float32"``.
        group: the group; None is the world.
        timeout: how long the call waits for the other ranks, a timedelta or seconds. None: as long
            as the group's operations.

    Raises:
        ArgumentError: the tensor is not contiguous or not aligned, a shape is wrong, or ``dtype``
            is not the tensor's.
        UnsupportedError: the tensor is in no heap, or in device memory.
        MismatchError: the ranks have different dtypes; or they called something else.
        NotMemberError: this rank is no member of ``group``.
    """

    __slots__ = (
        "__weakref__",
        "_atomic",
        "_call",
        "_code",
        "_number",
        "_shapes",
        "dtype",
        "group",
        "local",
    )

    REPLACE: ClassVar[WindowOp] = WindowOp(101, "REPLACE")
    """The new element is the given one."""
    NO_OP: ClassVar[WindowOp] = WindowOp(102, "NO_OP")
    """The element stays: :meth:`fetch_and_op` and :meth:`get_accumulate` read it atomically."""
    LAND: ClassVar[WindowOp] = WindowOp(103, "LAND")
    """1 if both are not 0, else 0. For bool and integers, like the next two."""
    LOR: ClassVar[WindowOp] = WindowOp(104, "LOR")
    """1 unless both are 0."""
    LXOR: ClassVar[WindowOp] = WindowOp(105, "LXOR")
    """1 if one of the two is 0, and not both."""

    def __init__(
        self,
        tensor_or_shape: Tensor | int | Sequence[int],
        dtype: Any = None,
        group: ProcessGroup | None = None,
        *,
        timeout: timedelta | float | None = None,
    ) -> None:
        self._number = 0
        self.group = group
        who = members(group)
        if who._rank < 0:
            raise NotMemberError("Window: this rank does not belong to the given group")
        try:
            seconds = -1.0 if timeout is None else to_seconds(timeout, "Window")
            self.local = _memory_of(tensor_or_shape, dtype)
        except Error as error:
            refuse(Op.ALL_GATHER, group, error)
        core = _native.core()
        self._call = core.window
        self._atomic = core.window_atomic
        number = core.window_new(self.local, who._id, seconds)
        self._number = number
        _kept[number] = self.local
        info = _native.control("window_info", window=number)
        self.dtype: str = info["dtype"]
        self._code = int(DTYPE_BY_NAME[self.dtype])
        self._shapes = tuple(tuple(shape or ()) for shape in info["shapes"])

    def rank(self) -> int:
        """This process's rank in the window's group."""
        return members(self.group)._rank

    def size(self) -> int:
        """The number of ranks of the window's group."""
        return len(self._shapes)

    def shape_of(self, rank: int) -> tuple[int, ...]:
        """The shape of a rank's memory.

        Raises:
            errors.IndexError: ``rank`` is no rank of the group.
        """
        if not 0 <= rank < len(self._shapes):
            raise errors.IndexError(
                f"Window.shape_of: rank={rank!r} is no rank of the window's group, which has "
                f"ranks 0 to {len(self._shapes) - 1}"
            )
        return self._shapes[rank]

    # Elements

    def put(self, x: Tensor, rank: int, offset: int = 0) -> None:
        """Copy a tensor into a rank's memory, from element ``offset`` on.

        Raises:
            ArgumentError: ``rank`` is no rank of the group, or the elements are not all within its
                memory.
            DtypeError: ``x`` has another dtype than the window, or is no tensor.
        """
        self._call(_PUT, self._number, rank, offset, x, None)

    def get(self, out: Tensor, rank: int, offset: int = 0) -> None:
        """Copy elements of a rank's memory, from ``offset`` on, into a tensor.

        The errors are those of :meth:`put`.
        """
        self._call(_GET, self._number, rank, offset, None, out)

    def accumulate(self, x: Tensor, rank: int, op: int = SUM, offset: int = 0) -> None:
        """Combine a rank's elements, from ``offset`` on, with those of a tensor. Each is atomic.

        Args:
            x: any shape.
            rank: whose elements.
            op: a ``ReduceOp`` but for AVG and PREMUL_SUM, or one of this class.
            offset: the first element.

        The errors are those of :meth:`put`, and DtypeError if ``op`` is not defined for the dtype.
        """
        self._call(_ACCUMULATE, self._number, rank, offset, x, None, op)

    def get_accumulate(
        self, x: Tensor, out: Tensor, rank: int, op: int = SUM, offset: int = 0
    ) -> None:
        """Do as :meth:`accumulate`, and fill ``out`` with the elements as they were before."""
        self._call(_GET_ACCUMULATE, self._number, rank, offset, x, out, op)

    def fetch_and_op(self, value: Any, rank: int, op: int = SUM, index: int = 0) -> Any:
        """Combine one element of a rank with a number, and return the element before.

        Returns:
            A Python number: bool, int, float or complex.

        The errors are those of :meth:`accumulate`, and ArgumentError if ``value`` does not fit
        into an element.
        """
        return self._atomic(self._number, self._code, rank, index, value, op)

    def compare_and_swap(self, expected: Any, value: Any, rank: int, index: int = 0) -> Any:
        """Store ``value`` in one element of a rank if that is ``expected``, bit for bit.

        Returns:
            The element before, as :meth:`fetch_and_op` does. It is ``expected`` if the value was
            stored.
        """
        return self._atomic(self._number, self._code, rank, index, value, 0, expected)

    # Order

    @contextmanager
    def lock(self, rank: int, shared: bool = False) -> Iterator[None]:
        """Hold the lock of a rank's memory inside a ``with`` block.

        The lock excludes other ranks that take it, and no accesses. At its end the block flushes.

        Args:
            rank: whose lock.
            shared: other ranks may hold it too, if they want it shared.

        Raises:
            ArgumentError: this rank holds the lock already.
            TimeoutError: another rank held the lock until the group's deadline.
            PeerDiedError: the rank that holds the lock has died.
        """
        self._call(_LOCK_SHARED if shared else _LOCK, self._number, rank)
        try:
            yield
        finally:
            self._call(_UNLOCK, self._number, rank)

    @contextmanager
    def lock_all(self) -> Iterator[None]:
        """Hold the locks of all ranks, shared, inside a ``with`` block; see :meth:`lock`."""
        self._call(_LOCK_SHARED, self._number, _ALL)
        try:
            yield
        finally:
            self._call(_UNLOCK, self._number, _ALL)

    def flush(self, rank: int | None = None) -> None:
        """Return when this rank's accesses to a rank are done there. None: to all ranks.

        It raises the error of an access that failed at the target.
        """
        self._call(_FLUSH, self._number, _ALL if rank is None else rank)

    def fence(self) -> None:
        """Return when all ranks have called it, and the accesses of all before it are done.

        It is a collective of the group.
        """
        self._call(_FENCE, self._number, 0)

    def signal(self, rank: int) -> None:
        """Give a rank a signal, after this rank's accesses to it before."""
        self._call(_SIGNAL, self._number, rank)

    def wait_signal(self, rank: int, timeout: timedelta | float | None = None) -> None:
        """Take one signal of a rank. Wait until there is one.

        What the rank put into this rank's memory before is there then.

        Args:
            rank: who gives the signal.
            timeout: how long to wait, a timedelta or seconds. None: as long as the group's
                operations.

        Raises:
            TimeoutError: there was no signal until then. None is lost.
        """
        seconds = -1.0 if timeout is None else to_seconds(timeout, "Window.wait_signal")
        self._call(_WAIT_SIGNAL, self._number, rank, 0, None, None, 0, seconds)

    # The end

    def free(self, timeout: timedelta | float | None = None) -> None:
        """End the window on all ranks together. The second call does nothing.

        What this rank has begun is done before. Afterwards no rank touches the memory. After an
        error the window has ended on this rank, unless the error says that a rank refused.

        Args:
            timeout: how long to wait for the other ranks, a timedelta or seconds. None: as long as
                the group's operations.

        Raises:
            ArgumentError: this rank holds a lock. The window goes on, on all ranks.
        """
        if self._number == 0:
            return
        seconds = -1.0 if timeout is None else to_seconds(timeout, "Window.free")
        try:
            self._call(_FREE, self._number, 0, 0, None, None, 0, seconds)
        except (ArgumentError, RefusedError):
            raise
        except GroupDestroyedError:
            self._over()  # destroy_process_group has ended the window
        except BaseException:
            self._over()
            raise
        else:
            self._over()

    def _over(self) -> None:
        number, self._number = self._number, 0
        _give_back(number)

    def __enter__(self) -> Window:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.free()

    def __repr__(self) -> str:
        if self._number == 0:
            return "Window(freed)"
        return f"Window({self.dtype}, shapes={list(self._shapes)})"

    # Elements by their place

    def __getitem__(self, rank: int) -> window_proxy.Proxy:
        """Return a proxy of a rank's memory, which is indexed as an array is."""
        return window_proxy.Proxy(self, rank)

    def __setitem__(self, rank: int, value: Any) -> None:
        """Put into all elements of a rank."""
        window_proxy.assign(self, rank, value)

    # For proxies and fronts. A target is (rank, offset, shape, strides), in elements: offset is
    # that of the first one. The tensors have as many elements, in row-major order.

    def _put_at(
        self, x: Any, rank: int, offset: int, shape: Sequence[int], strides: Sequence[int]
    ) -> None:
        self._call(_PUT, self._number, rank, offset, x, None, 0, -1.0, shape, strides)

    def _get_at(
        self, out: Any, rank: int, offset: int, shape: Sequence[int], strides: Sequence[int]
    ) -> None:
        self._call(_GET, self._number, rank, offset, None, out, 0, -1.0, shape, strides)

    def _accumulate_at(
        self, x: Any, rank: int, op: int, offset: int, shape: Sequence[int], strides: Sequence[int]
    ) -> None:
        self._call(_ACCUMULATE, self._number, rank, offset, x, None, op, -1.0, shape, strides)

    def _get_accumulate_at(
        self,
        x: Any,
        out: Any,
        rank: int,
        op: int,
        offset: int,
        shape: Sequence[int],
        strides: Sequence[int],
    ) -> None:
        self._call(_GET_ACCUMULATE, self._number, rank, offset, x, out, op, -1.0, shape, strides)

    def _map(self, rank: int) -> Any:
        """Return bytes over a rank's memory where this process maps it, else None.

        The memory stays mapped as long as the bytes are referenced. After the window has ended they
        show what the rank uses that memory for.
        """
        import ctypes  # not at import

        reply = _native.control("window_map", window=self._number, rank=rank)
        if not reply["address"]:
            return None
        array = (ctypes.c_ubyte * reply["bytes"]).from_address(reply["address"])
        kept = self.local if rank == self.rank() else None
        weakref.finalize(array, _unmap, self._number, rank, kept).atexit = False
        return array


def _memory_of(given: Any, dtype: Any) -> Any:
    """Return the tensor of a window. It raises an :class:`Error` if the arguments are wrong."""
    if isinstance(given, (list, tuple, numbers.Integral)):
        framework = str(dtype).partition(".")[0]
        return memory.zeros(
            given,  # type: ignore[arg-type]
            "float32" if dtype is None else dtype,
            framework if framework in ("torch", "paddle") else "numpy",
        )
    if dtype is not None:
        wanted, found = (
            memory.name_of_dtype("Window", kind)
            for kind in (dtype, getattr(given, "dtype", "uint8"))
        )
        if wanted != found:
            raise ArgumentError(f"Window: dtype={dtype!r}, and the tensor is of {found}")
    describer = import_module(f".tensors.{memory.framework_of(given)}", __package__)
    promote = getattr(describer, "promote", None)
    if promote is not None:
        promote(given)
    return given


def _unmap(number: int, rank: int, kept: object) -> None:
    del kept
    if not _native.load().forked():
        _native.control("window_unmap", window=number, rank=rank)


def _give_back(number: int) -> None:
    if not _native.control("window_in_use", window=number)["in_use"]:
        _kept.pop(number, None)


def _ended() -> None:
    for number in list(_kept):
        _give_back(number)


at_destroy(_ended)
