"""Who is measured: paddlempi, the same in the usual way or over plain MPI, mpi4py, gloo."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import paddlempi

from ... import _native, group, p2p
from ...errors import ArgumentError
from .operations import storage
from .sampling import Call

__all__ = ["Buffer", "Contender", "Framework", "front", "make", "pair", "plain_group", "stop"]

_MESSAGES = ("sendrecv", "pingpong")  # they have no algorithms


class Buffer(NamedTuple):
    """A tensor of the framework, and its memory as an array of NumPy."""

    tensor: Any
    array: Any


@dataclass(frozen=True)
class Contender:
    """One way to carry out the operations.

    Attributes:
        bind: takes the name of an operation, the send side and the receive side (None for a side
            that has no elements); returns the function that carries it out.
        path: returns the algorithm that the last collective took, or "".
        way: the same, as exactly as the core says it.
        algorithm: what ``path`` must return, or the contender is not what its name says; "": any.
        checked: its results are compared with what they must be.
    """

    name: str
    bind: Callable[[str, Buffer | None, Buffer | None], Call]
    path: Callable[[], str] = lambda: ""
    way: Callable[[], str] = lambda: ""
    algorithm: str = ""
    checked: bool = True


class Framework:
    """Makes tensors, and groups of the framework's own functions.

    Attributes:
        memory: "ordinary", or "mapped" for tensors in the heap (:func:`paddlempi.empty`).
        calls: an object with the functions of ``torch.distributed``, for this framework's tensors.
        front: the module ``bench`` of the framework's front; None for NumPy.
    """

    def __init__(self, name: str, dtype: str, memory: str = "ordinary") -> None:
        self.name, self.dtype, self.memory = name, dtype, memory
        self.front: Any = None
        self._group: tuple[Any, int] | None = None
        self.calls: Any = paddlempi
        if name != "numpy":
            self.front = front(name)
            self.calls = self.front.calls

    def empty(self, count: int) -> Buffer:
        """Make a tensor of ``count`` elements, whose values are undefined."""
        if self.front is not None:
            if self.memory == "mapped":
                tensor = paddlempi.empty(count, self.dtype, self.name)
            else:
                tensor = self.front.empty(count, self.dtype)
            return Buffer(tensor, _array_at(self.front.address(tensor), count, self.dtype))
        import numpy as np

        empty = paddlempi.empty if self.memory == "mapped" else np.empty
        if self.dtype != "bfloat16":
            array = empty(count, self.dtype)
            return Buffer(array, array)
        try:
            import ml_dtypes
        except ImportError as error:
            raise ArgumentError(
                "bench: NumPy has no bfloat16 without the package ml_dtypes; install it, or take "
                "--framework torch"
            ) from error
        array = empty(count, ml_dtypes.bfloat16)
        return Buffer(array, array.view(np.uint16))

    def group(self) -> tuple[Any, int]:
        """Return the group of the contender paddlempi, as :meth:`new_group` does.

        It is not the default group, because every contender is given a group to be called alike.
        """
        if self._group is None:
            self._group = self.new_group()
        return self._group

    def new_group(self) -> tuple[Any, int]:
        """Make a group of all ranks. Return it, and the number of its group in the core."""
        if self.front is not None:
            made: tuple[Any, int] = self.front.new_group()
            return made
        ours = group.new_group(range(group.get_world_size()))
        return ours, ours._id


_started: dict[str, Any] = {}


def front(name: str) -> Any:
    """Return the module ``bench`` of a framework's front. Collective: it makes the default group.

    Raises:
        ArgumentError: the framework is not installed.
    """
    if name not in _started:
        warnings.filterwarnings("ignore", message="No ccache found")  # Paddle's; harmless here
        try:
            found: Any = importlib.import_module(f"paddlempi.{name}.bench")
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            wheel = "paddlepaddle" if name == "paddle" else name
            raise ArgumentError(f"bench needs {name}: pip install {wheel}") from error
        found.start()
        _started[name] = found
    return _started[name]


def stop() -> None:
    """Destroy the groups of all frameworks, and the world. Collective."""
    for name in ("torch", "paddle"):  # Paddle ends the world with its default group
        if name in _started:
            _started.pop(name).stop()
    if group.is_initialized():
        group.destroy_process_group()


def _array_at(address: int, count: int, dtype: str) -> Any:
    """Return the memory at an address as an array of the bits of ``dtype``."""
    import ctypes

    import numpy as np

    kind = storage(dtype)
    memory = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(memory, kind)


def make(
    names: Sequence[str], operation: str, tensors: Framework
) -> tuple[list[Contender], dict[str, str]]:
    """Make the contenders of one operation. Collective over the world.

    Args:
        names: of ``_MAKERS``, in the order of the table.
        operation: the name of the operation that they are made for.
        tensors: the framework of the tensors.

    Returns:
        The contenders, and for others the reason why they cannot take part.
    """
    made, absent = [], {}
    for name in names:
        found = _MAKERS[name](operation, tensors)
        if isinstance(found, str):
            absent[name] = found
        else:
            made.append(found)
    return made, absent


def _ours(operation: str, tensors: Framework) -> Contender:
    return _by(tensors, "paddlempi", operation, *tensors.group())


def _again(operation: str, tensors: Framework) -> Contender:
    """The control: paddlempi once more, so that equal things are compared too."""
    return _by(tensors, "paddlempi again", operation, *tensors.group())


_NO_MPI = "this job runs without MPI"


def _without_mpi() -> bool:
    return bool(_native.control("info")["transport"] != "mpi")


def plain_group(of: Any, *operations: str) -> tuple[Any, int] | str:
    """Make a group whose operations are plain MPI's, or say why there is none. Collective.

    Args:
        of: a ``Framework``, or the module ``bench`` of a framework's front.
        operations: those that are forced to MPI.
    """
    if _without_mpi():
        return _NO_MPI
    with _set("PADDLEMPI_ALGO", ",".join(f"{operation}:mpi" for operation in operations)):
        made: tuple[Any, int] = of.new_group()
        return made


def _plain_mpi(operation: str, tensors: Framework) -> Contender | str:
    if operation in _MESSAGES:
        return "the way of messages cannot be chosen"
    made = plain_group(tensors, operation)
    if isinstance(made, str):
        return made
    return replace(_by(tensors, "mpi", operation, *made), algorithm="mpi")


def _usual(operation: str, tensors: Framework) -> Contender | str:
    """The way that a group takes which does not measure its ways."""
    if operation in _MESSAGES:
        return "messages have one way"
    with _set("PADDLEMPI_TUNE", "off"):
        made = tensors.new_group()
    return _by(tensors, "usual", operation, *made)


@contextmanager
def _set(variable: str, value: str) -> Iterator[None]:
    before = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def _by(tensors: Framework, name: str, operation: str, of: Any, number: int) -> Contender:
    """Return a contender of ours, on a group that has a number in the core."""

    def bind(operation: str, send: Buffer | None, recv: Buffer | None) -> Call:
        return _bound(tensors.calls, operation, send and send.tensor, recv and recv.tensor, of)

    def told(*keys: str) -> str:
        info = {} if operation in _MESSAGES else _native.control("group_info", group=number)
        return str(next(filter(None, map(info.get, keys)), ""))

    return Contender(name, bind, partial(told, "algorithm"), partial(told, "way", "algorithm"))


def _gloo(operation: str, tensors: Framework) -> Contender | str:
    """gloo, in the framework of the tensors; for NumPy's in torch, on the same memory."""
    if tensors.name == "paddle" and operation == "sendrecv":
        return "irecv waits for the message in Paddle's gloo, so an exchange would hang"
    try:
        over = tensors.front or front("torch")
    except ArgumentError as error:
        return str(error)
    made = over.gloo()
    if isinstance(made, str):
        return made

    def bind(operation: str, send: Buffer | None, recv: Buffer | None) -> Call:
        if tensors.front is not None:
            s, r = send and send.tensor, recv and recv.tensor
        else:
            s, r = (side and over.of_array(side.array, tensors.dtype) for side in (send, recv))
        return _bound(over.calls, operation, s, r, made)

    return Contender("gloo", bind)


def _mpi4py(operation: str, tensors: Framework) -> Contender | str:
    if _without_mpi():
        return _NO_MPI
    try:
        import mpi4py
    except ImportError:
        return "mpi4py is not installed"
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return f"mpi4py cannot be imported: {error}"
    # Another library in the same process would not know that MPI was started.
    if not MPI.Is_initialized():
        return f"mpi4py uses another MPI than paddlempi: {MPI.Get_library_version().strip()}"
    if tensors.dtype in ("float16", "bfloat16"):
        return f"MPI has no {tensors.dtype}"
    comm = MPI.COMM_WORLD
    rank, n = comm.rank, comm.size
    after, before = (rank + 1) % n, (rank - 1) % n

    def bind(operation: str, send: Buffer | None, recv: Buffer | None) -> Call:
        s, r = send and send.array, recv and recv.array
        root = rank == 0
        calls: dict[str, Call] = {
            "all_reduce": partial(comm.Allreduce, MPI.IN_PLACE, r),
            "reduce_scatter": partial(comm.Reduce_scatter_block, s, r),
            "all_gather": partial(comm.Allgather, s, r),
            "broadcast": partial(comm.Bcast, r, 0),
            "reduce": partial(comm.Reduce, MPI.IN_PLACE, r)
            if root
            else partial(comm.Reduce, r, None),
            "gather": partial(comm.Gather, s, r if root else None),
            "scatter": partial(comm.Scatter, s if root else None, r),
            "all_to_all": partial(comm.Alltoall, s, r),
            "sendrecv": partial(comm.Sendrecv, s, after, 0, r, before, 0),
            "pingpong": _to_and_fro(partial(comm.Send, s), partial(comm.Recv, r)),
            "barrier": comm.Barrier,
        }
        return calls[operation]

    return Contender("mpi4py", bind)


def _memcpy(operation: str, tensors: Framework) -> Contender | str:
    """A copy of the larger side by every rank: what moving these bytes once costs."""
    import numpy as np

    if operation == "barrier":
        return "a barrier moves nothing"

    def bind(operation: str, send: Buffer | None, recv: Buffer | None) -> Call:
        larger = max((side.array for side in (send, recv) if side is not None), key=len)
        to = np.empty_like(larger)
        return lambda: np.copyto(to, larger)

    return Contender("memcpy", bind, checked=False)


_MAKERS: dict[str, Callable[[str, Framework], Contender | str]] = {
    "paddlempi": _ours,
    "usual": _usual,
    "mpi": _plain_mpi,
    "mpi4py": _mpi4py,
    "gloo": _gloo,
    "paddlempi again": _again,
    "memcpy": _memcpy,
}


# The function of torch.distributed, and which sides it gets in front of the root.
_FUNCTIONS = {
    "all_reduce": ("all_reduce", "r"),
    "reduce_scatter": ("reduce_scatter_tensor", "rs"),
    "all_gather": ("all_gather_into_tensor", "rs"),
    "broadcast": ("broadcast", "r0"),
    "reduce": ("reduce", "r0"),
    "gather": ("gather", "sp0"),
    "scatter": ("scatter", "rp0"),
    "all_to_all": ("all_to_all_single", "rs"),
    "barrier": ("barrier", ""),
}


def _bound(dist: Any, operation: str, s: Any, r: Any, of: Any) -> Call:
    """Return a call of ``torch.distributed``'s function of that operation.

    Args:
        dist: the module that has the function: torch.distributed, or an object with the same names.
        operation: a name of ``OPERATIONS``.
        s, r: the tensors of the send and the receive side.
        of: the group.
    """
    rank, n = group.get_rank(), group.get_world_size()
    if operation == "sendrecv":
        return _both_ways(dist, s, (rank + 1) % n, r, (rank - 1) % n, of)
    if operation == "pingpong":
        return _to_and_fro(partial(dist.send, s, group=of), partial(dist.recv, r, group=of))
    name, order = _FUNCTIONS[operation]
    parts: list[Any] | None = None
    if "p" in order and rank == 0:
        whole = r if operation == "gather" else s
        share = len(whole) // n
        parts = [whole[i * share : (i + 1) * share] for i in range(n)]
    sides = {"s": s, "r": r, "p": parts, "0": 0}
    return partial(getattr(dist, name), *(sides[letter] for letter in order), group=of)


def _both_ways(dist: Any, s: Any, after: int, r: Any, before: int, of: Any) -> Call:
    if dist is paddlempi:
        return partial(p2p.sendrecv, s, after, r, before, of)

    def exchange() -> None:
        received = dist.irecv(r, before, group=of)
        sent = dist.isend(s, after, group=of)
        received.wait()
        sent.wait()

    return exchange


def pair() -> tuple[int, int]:
    """Return the ranks of a pingpong: rank 0, and the first of another node, or else rank 1."""
    node = _native.control("info")["node"]
    return 0, next((rank for rank, of_rank in enumerate(node) if of_rank != node[0]), 1)


def _to_and_fro(send: Callable[[int], object], receive: Callable[[int], object]) -> Call:
    """Return this rank's part of a pingpong, by functions that take the other rank."""
    first, second = pair()
    rank = group.get_rank()
    if rank == first:
        begin, end = partial(send, second), partial(receive, second)
    elif rank == second:
        begin, end = partial(receive, first), partial(send, first)
    else:
        return lambda: None

    def call() -> None:
        begin()
        end()

    return call
