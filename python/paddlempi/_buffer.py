"""Which describer reads the memory of a tensor: a registry by type.

The core itself reads objects that have the buffer protocol (NumPy, bytearray, memoryview, array) or
DLPack's C exchange API. When it first meets an object of another type, it asks this module, which
registers a function ``describe(x)`` for the type. The functions are in the describers of
:mod:`paddlempi.tensors`. A describer that imports a framework is imported when a tensor of the
framework appears; so the framework is imported already.

Thread-safety: all functions may be called from any thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from . import _native
from .errors import DtypeError
from .tensors import plain
from .tensors.kind import (
    CUDA,
    CUDA_MANAGED,
    LEGACY_STREAM,
    Description,
    Kind,
    name_of,
)

__all__ = [
    "Description",
    "Kind",
    "bump",
    "consumer",
    "describe",
    "empty_like",
    "in_place",
    "other_values",
    "readable",
    "record",
    "register",
]

_OF_TYPE = {
    "numpy.generic": ".tensors.numpy",
    "numpy.ndarray": ".tensors.numpy",
    "paddle.Tensor": ".tensors.paddle",
    "torch.Tensor": ".tensors.torch",
}
"""The describers of frameworks, by the name of a tensor's type or of a base class of it. Such a
module has ``KINDS``, which maps types to kinds."""

_OF_PROTOCOL = {
    "__dlpack__": ".tensors.dlpack",
    "__cuda_array_interface__": ".tensors.cuda_array",
}
"""The describers of protocols, by the attribute that an object of the protocol has. Such a module
has a function ``kind(type)``."""

_kinds: dict[type, Kind] = {}


def register(tensor_type: type, kind: Kind) -> None:
    """Register a type of tensors. It holds for subclasses too, unless they are registered."""
    _kinds[tensor_type] = kind


def describe(tensor: Any) -> Description | None:
    """Return the description of a tensor; None if the core reads its type itself, or it is none.

    Raises:
        DtypeError: the tensor has a dtype or a layout that cannot be sent, or its memory has other
            values.
        UnsupportedError: it is on a device that is none of CUDA's.
    """
    there, found = readable(tensor)
    if there is not tensor:
        raise other_values("a tensor")
    return found


def readable(tensor: Any) -> tuple[Any, Description | None]:
    """Return a tensor to read, with its description as of :func:`describe`.

    It is the given one, or a copy if its memory has other values, as that of torch's lazy
    negatives.

    Raises:
        DtypeError, UnsupportedError: as :func:`describe`.
    """
    describer = _kind_of(tensor.__class__).describe
    if describer is None:
        return tensor, None
    found = describer(tensor)
    return (tensor, found) if isinstance(found, tuple) else (found, describer(found))


def other_values(name: str) -> DtypeError:
    """Return the error for a tensor that is not to be written to, because its memory has others."""
    return DtypeError(
        f"{name} is a lazy conjugate or negative of torch, whose memory has other values: "
        "call resolve_conj() and resolve_neg() on it first"
    )


def bump(tensor: Any) -> None:
    """Tell autograd that a tensor was written to."""
    kind = _kind_of(tensor.__class__)
    if kind.bump is not None:
        kind.bump(tensor)


def empty_like(tensor: Any) -> Any:
    """Return a new tensor of the same type, shape and dtype; its elements are undefined.

    Raises:
        DtypeError: ``tensor`` is no tensor, or the library cannot make tensors of its type.
    """
    return _kind_of(tensor.__class__).empty_like(tensor)


def _leaves(tensors: object) -> Iterator[Any]:
    if isinstance(tensors, (list, tuple)):
        for tensor in tensors:
            yield from _leaves(tensor)
    elif tensors is not None:
        yield tensors


def consumer(tensors: object) -> Callable[[], int]:
    """Return a function that gives the CUDA stream on which the caller uses a result.

    Args:
        tensors: a tensor, None, or nested sequences of them.

    Returns:
        A function without arguments that returns a stream's handle: the current stream of the
        framework of the first tensor that has one, or the stream that the first CUDA tensor's
        describer named. If no tensor has a stream, it returns CUDA's legacy default stream. The
        function does not keep the tensors alive.
    """
    for tensor in _leaves(tensors):
        kind = _kind_of(tensor.__class__)
        if kind.stream is not None:
            found = kind.stream(tensor)
            if found is not None:
                return found
        elif kind.describe is not None:
            description = kind.describe(tensor)
            if description[4] in (CUDA, CUDA_MANAGED):
                return partial(int, description[7])
    return partial(int, LEGACY_STREAM)


def record(tensors: object) -> bool:
    """Tell the caching allocators that the current streams use tensors; see :class:`Kind`.

    Returns:
        Whether the library may drop its references to all of the tensors now.
    """
    recorded = [
        kind.record is not None and kind.record(tensor)
        for tensor in _leaves(tensors)
        for kind in (_kind_of(tensor.__class__),)
    ]
    return all(recorded)


def in_place(tensor: Any, forward: Callable[[Any], None], backward: Callable[[Any], None]) -> bool:
    """Run ``forward(tensor)`` as a function of autograd; see :class:`Kind`.

    Returns:
        Whether it was run. False: the tensor needs no gradient.

    Raises:
        ArgumentError: the tensor needs a gradient, and must not be written to.
    """
    run = _kind_of(tensor.__class__).in_place
    return run is not None and run(tensor, forward, backward)


def _kind_of(tensor_type: type) -> Kind:
    kind = _registered(tensor_type)
    if kind is not None:
        return kind
    for base in tensor_type.__mro__:
        describer = _OF_TYPE.get(name_of(base))
        if describer is not None:
            for known, kind in import_module(describer, __package__).KINDS.items():
                if known not in _kinds:
                    register(known, kind)
    kind = _registered(tensor_type)
    if kind is not None:
        return kind
    for attribute, describer in _OF_PROTOCOL.items():
        if hasattr(tensor_type, attribute):
            return _by_protocol(tensor_type, describer)
    return plain.KIND


def _registered(tensor_type: type) -> Kind | None:
    for base in tensor_type.__mro__:
        kind = _kinds.get(base)
        if kind is not None:
            return kind
    return None


def _by_protocol(tensor_type: type, describer: str) -> Kind:
    kind: Kind = import_module(describer, __package__).kind(tensor_type)
    register(tensor_type, kind)
    return kind


def _resolve(tensor: object) -> None:
    """Register the type of an object that the core cannot read by itself."""
    tensor_type = tensor.__class__
    kind = _kind_of(tensor_type)
    attribute = "__cuda_array_interface__"
    if kind.describe is None and hasattr(tensor, attribute):  # of the object, not of its type
        kind = _by_protocol(tensor_type, _OF_PROTOCOL[attribute])
    if kind.describe is None:
        what = f"an object of type {name_of(tensor_type)}"
        if tensor_type in (bool, int, float, complex, str):
            what = f"a value of type {tensor_type.__name__}"
        raise DtypeError(
            f"{what} is no tensor: give one of NumPy, Paddle or PyTorch, or what has the buffer "
            "protocol, __dlpack__ or __cuda_array_interface__"
        )
    _native.core().register(tensor_type, kind.describe, kind.bump)


def _elsewhere(recv: object, send: object, *call: Any) -> Any:
    """Carry out a call into JAX's arrays, which cannot be written to; None: they are others."""
    jax = sys.modules.get("jax")
    if jax is None or not any(isinstance(tensor, jax.Array) for tensor in _leaves(recv)):
        return None
    return import_module(".jax.arrays", __package__).carry_out(recv, send, *call)


def _install(core: ModuleType) -> None:
    core.set_resolver(_resolve)
    core.set_elsewhere(_elsewhere)


_native.on_load(_install)
