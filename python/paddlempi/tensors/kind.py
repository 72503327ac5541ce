"""What a describer tells of a type of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .._ops import DTYPE_BY_NAME
from ..errors import DtypeError

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
    "name_of",
]

CPU = 1
CUDA = 2
CUDA_HOST = 3
CUDA_MANAGED = 13
"""DLPack's device types; CUDA_HOST is pinned host memory."""

LEGACY_STREAM = 1
"""CUDA's handle of the legacy default stream, which 0 names too."""

KNOWN_DTYPES = "the dtypes are " + ", ".join(DTYPE_BY_NAME)
"""For the messages of those that know others."""

Description = tuple[int, int, tuple[int, ...], tuple[int, ...] | None, int, int, bool, int]
"""Address, dtype, shape, strides in elements or None, device type, device id, read-only, and
of CUDA memory the stream whose work on the tensor comes before the operation's (else 0)."""


class Kind(NamedTuple):
    """What one needs to know of a type of tensors.

    Attributes:
        describe: memory, dtype, shape and strides of a tensor, or None where the core reads it.
        bump: tells autograd that the tensor was written to, or None where there is none.
        empty_like: a new tensor of the same shape, dtype and type, its content undefined.
        stream: of a tensor in device memory, a function that tells the stream which is current on
            that device when it is called, and does not hold the tensor; None for one in host
            memory. Where the type has no such function the stream in its description is taken.
        record: tells the caching allocator that the stream which is current on its device uses
            the tensor, which may be freed then before that stream has come so far. False: there
            is nothing to tell (host memory), so the tensor is kept until the operation has ended
            on the device too.
    """

    describe: Callable[[Any], Description] | None
    bump: Callable[[Any], None] | None
    empty_like: Callable[[Any], Any]
    stream: Callable[[Any], Callable[[], int] | None] | None = None
    record: Callable[[Any], bool] | None = None


def cannot_make(tensor: Any) -> Any:
    """The ``empty_like`` of a type without one.

    Raises:
        DtypeError: always.
    """
    raise DtypeError(
        f"cannot make a new tensor like one of type {type(tensor).__qualname__}: "
        "use all_reduce(), which works in place, or give a NumPy, Paddle or PyTorch tensor"
    )


def codes_of(framework: Any, *without: str) -> dict[Any, int]:
    """The dtypes of a framework that has them as attributes, but those named, with their codes."""
    return {
        getattr(framework, name): int(code)
        for name, code in DTYPE_BY_NAME.items()
        if hasattr(framework, name) and name not in without
    }


def name_of(tensor_type: type) -> str:
    """The name of a type, with its module, as messages have it; some types of C have no module."""
    return f"{getattr(tensor_type, '__module__', '')}.{tensor_type.__qualname__}"
