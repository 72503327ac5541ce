"""Kinds: what a describer knows about a type of tensors."""

from __future__ import annotations

from collections.abc import Callable
from reprlib import repr  # of a few items
from typing import Any, NamedTuple

from .._ops import DTYPE_BY_NAME
from ..errors import ArgumentError, DtypeError

__all__ = [
    "CPU",
    "CUDA",
    "CUDA_HOST",
    "CUDA_MANAGED",
    "KNOWN_DTYPES",
    "LEGACY_STREAM",
    "Description",
    "Kind",
    "cannot_make",
    "codes_of",
    "lossy",
    "name_of",
    "out_of_range",
    "takes",
    "unlike",
    "without_memory",
]

CPU = 1
CUDA = 2
CUDA_HOST = 3
CUDA_MANAGED = 13
"""DLPack's device types; CUDA_HOST is pinned host memory."""

LEGACY_STREAM = 1
"""CUDA's handle of the legacy default stream. The handle 0 names the same stream."""

KNOWN_DTYPES = "the dtypes are " + ", ".join(DTYPE_BY_NAME)
"""The end of the error message for another dtype."""

Description = tuple[int, int, tuple[int, ...], tuple[int, ...] | None, int, int, bool, int]
"""The memory of a tensor: address; dtype (a ``DType``); shape; strides in elements, or None if it
is contiguous in C order; device type (DLPack's); device id; whether it is read-only; and for CUDA
memory the stream that produces the tensor, else 0. An operation waits for the work that is queued
on this stream."""


class Kind(NamedTuple):
    """How the library handles a type of tensors.

    Attributes:
        describe: returns the description of a tensor; or, if its memory has other values than the
            tensor, a copy with those of the tensor, which the core sends in its place. None: the
            core reads tensors of this type itself.
        bump: tells autograd that a tensor was written to. None: there is no autograd.
        empty_like: returns a new tensor of the same shape, dtype and type, with undefined elements.
        stream: for a tensor in CUDA memory, returns a function without arguments that returns the
            current stream of the tensor's device and does not keep the tensor alive; for a tensor
            in other memory, returns None. If the type has no ``stream``, the library uses the
            stream in the description.
        record: tells the caching allocator that the current stream of the tensor's device uses the
            tensor. After that, the last reference may be dropped while work on that stream is
            pending. Returns False if no allocator has to be told (host memory); the library then
            keeps the tensor until the operation has ended on the device too.
        in_place: runs ``forward(tensor)``, which writes to the tensor, as a function of autograd.
            ``backward(gradient)`` turns the gradient of the result into that of the input, in
            place. Returns False, and has done nothing, if the tensor needs no gradient.
    """

    describe: Callable[[Any], Description | Any] | None
    bump: Callable[[Any], None] | None
    empty_like: Callable[[Any], Any]
    stream: Callable[[Any], Callable[[], int] | None] | None = None
    record: Callable[[Any], bool] | None = None
    in_place: Callable[[Any, Callable[[Any], None], Callable[[Any], None]], bool] | None = None


def cannot_make(tensor: Any) -> Any:
    """Raise the error of a type of which the library cannot make new tensors: its ``empty_like``.

    Raises:
        DtypeError: always.
    """
    raise DtypeError(
        f"cannot make a new tensor like one of type {type(tensor).__qualname__}: "
        "use all_reduce(), which works in place, or give a NumPy, Paddle or PyTorch tensor"
    )


def codes_of(framework: Any, *without: str) -> dict[Any, int]:
    """Return the dtypes of a framework with their codes.

    Args:
        framework: a module that has its dtypes as attributes.
        without: names of dtypes to leave out.
    """
    return {
        getattr(framework, name): int(code)
        for name, code in DTYPE_BY_NAME.items()
        if hasattr(framework, name) and name not in without
    }


def name_of(tensor_type: type) -> str:
    """Return the name of a type with its module. Some types written in C have no module."""
    return f"{getattr(tensor_type, '__module__', '')}.{tensor_type.__qualname__}"


_WIDTHS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}  # NumPy's letters for kinds of numbers


def takes(dtype: str, letter: str) -> bool:
    """Whether a dtype takes numbers of a kind without losing a fraction or an imaginary part.

    Args:
        dtype: the name of a dtype.
        letter: NumPy's letter for the kind, as in ``numpy.dtype.kind``.
    """
    width = 0 if dtype == "bool" else 1 if "int" in dtype else 3 if "complex" in dtype else 2
    return _WIDTHS.get(letter, 4) <= width


def lossy(values: Any, dtype: str) -> DtypeError:
    """Return the error for values that are no numbers, or that a dtype does not take."""
    return DtypeError(f"value for a window: {repr(values)} cannot become {dtype} without loss")


def out_of_range(values: Any, dtype: str) -> ArgumentError:
    """Return the error for numbers that are too large or too small for a dtype."""
    return ArgumentError(f"value for a window: {repr(values)} is out of the range of {dtype}")


def unlike(given: Any, shape: tuple[int, ...]) -> ArgumentError:
    """Return the error for a shape that cannot be broadcast to another."""
    return ArgumentError(
        f"value for a window: its shape {tuple(given)} cannot be broadcast to {shape}"
    )


def without_memory(tensor: Any) -> DtypeError:
    """Return the error for a tensor that has elements, and no memory of its own."""
    return DtypeError(
        f"a {name_of(type(tensor))} of shape {tuple(tensor.shape)} has no memory: give the tensor "
        "that it stands for, as of wait() or to_local()"
    )
