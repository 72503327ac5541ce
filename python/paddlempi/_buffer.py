"""Any tensor to a description of its memory: a registry by type.

The core itself reads what has the buffer protocol (NumPy, bytearray, memoryview,
array) or DLPack's C exchange API. For every other type this module, asked once
for each type, registers a function ``describe(x)``; the functions stand in the describers of
:mod:`paddlempi.tensors`. One that imports a framework is imported for a tensor of it,
which can only exist where the framework is there.

Thread-safety: all functions may be called from any thread.
"""

from __future__ import annotations

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
    "consumer",
    "empty_like",
    "record",
    "register",
]

_OF_TYPE = {
    "numpy.generic": ".tensors.numpy",
    "numpy.ndarray": ".tensors.numpy",
    "paddle.Tensor": ".tensors.paddle",
    "torch.Tensor": ".tensors.torch",
}
"""The describers of frameworks, by the name of a tensor's type or of a base of it: modules with
``KINDS``, a dictionary by type."""

_OF_PROTOCOL = {
    "__dlpack__": ".tensors.dlpack",
    "__cuda_array_interface__": ".tensors.cuda_array",
}
"""The describers of all other types, by what these have: modules with a function ``kind(type)``."""

_kinds: dict[type, Kind] = {}


def register(tensor_type: type, kind: Kind) -> None:
    """Teach the library a type of tensors, and its subclasses unless they are registered too."""
    _kinds[tensor_type] = kind


def empty_like(tensor: Any) -> Any:
    """A new tensor of the same type, shape and dtype, its content undefined.

    Raises:
        DtypeError: ``tensor`` is no tensor, or of a type that cannot be made here.
    """
    return _kind_of(tensor.__class__).empty_like(tensor)


def _leaves(tensors: object) -> Iterator[Any]:
    if isinstance(tensors, (list, tuple)):
        for tensor in tensors:
            yield from _leaves(tensor)
    elif tensors is not None:
        yield tensors


def consumer(tensors: object) -> Callable[[], int]:
    """What tells the stream that uses a result, as the framework of the device tensors has it.

    Args:
        tensors: a tensor, None, or sequences of them in any depth.

    Returns:
        A function without arguments, which does not hold the tensors. Where none of them knows
        of a stream it tells CUDA's legacy default stream.
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
        Whether all of them may be let go now.
    """
    told = [
        kind.record is not None and kind.record(tensor)
        for tensor in _leaves(tensors)
        for kind in (_kind_of(tensor.__class__),)
    ]
    return all(told)


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
    """Register the type of a tensor that the core cannot read by itself."""
    tensor_type = tensor.__class__
    kind = _kind_of(tensor_type)
    named = "__cuda_array_interface__"
    if kind.describe is None and hasattr(tensor, named):  # its own attribute
        kind = _by_protocol(tensor_type, _OF_PROTOCOL[named])
    if kind.describe is None:
        raise DtypeError(
            f"an object of type {name_of(type(tensor))} is no tensor: "
            "give one of NumPy, Paddle or PyTorch, or what has the buffer protocol, __dlpack__ or "
            "__cuda_array_interface__"
        )
    _native.core().register(tensor_type, kind.describe, kind.bump)


def _install(core: ModuleType) -> None:
    core.set_resolver(_resolve)


_native.on_load(_install)
