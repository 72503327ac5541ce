"""Tensors in this rank's heap, which the other ranks of the node can map.

A collective whose tensors all lie in heaps works in place: the ranks of a node read and write each
other's tensors, without MPI and without copies. Everything else about such a tensor is as usual: it
may be sliced, sent and given to a framework, and its memory is freed with the last reference.

Allocation is local. A rank may allocate and free at any time, also before
``init_process_group`` and after ``destroy_process_group``.

In a forked child (a DataLoader's worker) the memory of the heap is private: what the child writes
is not seen by its parent or by other ranks. A page of it that the child has not written to shows
what the parent writes later, and zeros after the parent has given its segment back. So a child that
needs values which the parent changes copies them first.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from . import _log, _native
from ._ops import DTYPE_BY_NAME
from .errors import ArgumentError, DtypeError, Error, ForkError

__all__ = ["empty", "empty_like", "zeros"]

_FRAMEWORKS = {name: f".tensors.{name}" for name in ("numpy", "paddle", "torch")}
"""The describers that make tensors: ``over(memory, dtype, shape)`` over memory, and
``new(dtype, shape)``."""

_FRAMEWORK_OF = {"numpy.ndarray": "numpy", "torch.Tensor": "torch", "paddle.Tensor": "paddle"}

_warned = False


def empty(shape: int | Sequence[int], dtype: Any = "float32", framework: str = "numpy") -> Any:
    """Return a new tensor in this rank's heap. Its elements are undefined.

    If the machine refuses shared memory, the tensor lies in ordinary memory. A RuntimeWarning says
    so, once in a process. Collectives then use MPI.

    Args:
        shape: the lengths of the dimensions, or one length.
        dtype: a name such as ``"bfloat16"``, or a dtype of the framework. NumPy has ``bfloat16``
            and ``float8`` only if ml_dtypes is installed.
        framework: ``"numpy"``, ``"torch"`` or ``"paddle"``.

    Raises:
        ArgumentError: ``shape`` has a negative length, or ``framework`` is none of the three.
        DtypeError: ``shape`` has something that is no integer; the dtype is none that can be sent,
            or the framework does not have it.
        ForkError: this process is a fork of the one that loaded the core.

    Thread-safety: may be called from any thread.
    """
    return _make("empty", shape, dtype, framework, clear=False)


def _make(
    function: str, shape: int | Sequence[int], dtype: Any, framework: str, *, clear: bool
) -> Any:
    if framework not in _FRAMEWORKS:
        raise ArgumentError(
            f"{function}: framework={framework!r} is none of {', '.join(map(repr, _FRAMEWORKS))}"
        )
    lengths = _lengths(function, shape)
    name = name_of_dtype(function, dtype)
    memory = _memory(function, math.prod(lengths) * DTYPE_BY_NAME[name].itemsize)
    if clear:
        import ctypes

        ctypes.memset(memory, 0, ctypes.sizeof(memory))
    return describer(framework).over(memory, name, lengths)


def name_of_dtype(function: str, dtype: Any) -> str:
    """Return the name of a dtype that is given by its name, or is one of a framework.

    Raises:
        DtypeError: it is none that can be sent. The text begins with ``function``.
    """
    # A scalar type of NumPy is a class. The others are written "float32", "torch.float32" or
    # "paddle.float32".
    name = dtype.__name__ if isinstance(dtype, type) else str(dtype).rpartition(".")[2]
    name = name.rstrip("_")  # numpy.bool_
    if name not in DTYPE_BY_NAME:
        raise DtypeError(f"{function}: dtype={dtype!r} is none of {', '.join(DTYPE_BY_NAME)}")
    return name


def _lengths(function: str, shape: Any) -> tuple[int, ...]:
    try:
        lengths = tuple(operator.index(length) for length in shape)
    except TypeError:
        try:
            lengths = (operator.index(shape),)
        except TypeError:
            raise DtypeError(
                f"{function}: shape={shape!r} is neither a length nor a sequence of lengths"
            ) from None
    if any(length < 0 for length in lengths):
        raise ArgumentError(f"{function}: shape={shape!r} has a negative length")
    return lengths


def zeros(shape: int | Sequence[int], dtype: Any = "float32", framework: str = "numpy") -> Any:
    """Return a new tensor of zeros in this rank's heap; see :func:`empty`."""
    return _make("zeros", shape, dtype, framework, clear=True)


def empty_like(tensor: Any) -> Any:
    """Return a new tensor in this rank's heap, of the shape and dtype of a tensor.

    Args:
        tensor: a tensor of NumPy, torch or Paddle. The new one is of the same framework, in host
            memory and contiguous. Its elements are undefined.

    Raises:
        DtypeError: ``tensor`` is of none of the three frameworks.
    """
    found = _framework_of(tensor)
    if found is None:
        raise DtypeError(
            f"empty_like: a {type(tensor).__qualname__} is no tensor of NumPy, torch or Paddle"
        )
    return _make("empty_like", tuple(tensor.shape), tensor.dtype, found, clear=False)


def framework_of(tensor: Any, other: str = "numpy") -> str:
    """Return the framework of a tensor as :func:`empty` names it; for all else ``other``."""
    return _framework_of(tensor) or other


def describer(framework: str) -> Any:
    """Import the describer of a framework, as :func:`empty` names it, and return it."""
    return import_module(_FRAMEWORKS[framework], __package__)


def _framework_of(tensor: Any) -> str | None:
    for base in type(tensor).__mro__:
        found = _FRAMEWORK_OF.get(f"{base.__module__.partition('.')[0]}.{base.__qualname__}")
        if found is not None:
            return found
    return None


def warn(function: str, why: str, *, stacklevel: int) -> None:
    """Warn that there is no shared memory, once in a process.

    Args:
        function: the function that found out.
        why: what the core says.
        stacklevel: the caller to name, as for ``warnings.warn`` in the function that calls this.
    """
    global _warned
    if not _warned:
        _warned = True
        _log.warn(
            f"{function}: no shared memory for tensors, so collectives copy them: {why}",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )


def _memory(function: str, size: int) -> Any:
    """Return ``size`` bytes with the buffer protocol, in the heap if there is one."""
    import ctypes  # not at import, as `import paddlempi` would load it in every process

    core = _native.load()
    kind = ctypes.c_ubyte * size
    if size == 0:
        return kind()
    try:
        address = core.heap_alloc(size)
    except ForkError:
        raise
    except Error as error:
        warn(function, str(error), stacklevel=4)
        return kind()
    memory = kind.from_address(address)
    # At exit the memory goes with the process. In a forked child heap_free does nothing.
    weakref.finalize(memory, core.heap_free, address).atexit = False
    return memory
