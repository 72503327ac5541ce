"""What a rank holds of a tensor: all of it, or a box."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from ..errors import ArgumentError, DtypeError, Error
from ..memory import describer, framework_of
from .elements import Elements
from .tiles import Box, within

__all__ = ["Part", "Shard", "part_of", "parts_of", "refuse_shared"]


class Shard:
    """A part of a tensor that ranks hold together: a range in each dimension.

    Args:
        array: the elements that this rank holds; a tensor of any kind, of any strides, also
            without elements. Loading writes into it. It is not copied, and must not change while a
            file is written.
        global_shape: the lengths of the whole tensor.
        offsets: where in the whole tensor the part begins; as many as ``array`` has dimensions.

    Raises:
        ArgumentError: the part does not lie within the whole.
        DtypeError: ``array`` is no tensor that can be saved; ``global_shape`` or ``offsets`` has
            something that is no integer.
    """

    __slots__ = ("array", "global_shape", "offsets")

    def __init__(self, array: Any, global_shape: Sequence[int], offsets: Sequence[int]) -> None:
        self.array = array
        self.global_shape = _integers("global_shape", global_shape)
        self.offsets = _integers("offsets", offsets)
        lengths = Elements(array).shape
        if not within(Box(self.offsets, lengths), self.global_shape):
            raise ArgumentError(
                f"Shard: an array of shape {list(lengths)} at offsets={list(self.offsets)} is no "
                f"part of global_shape={list(self.global_shape)}"
            )

    def __repr__(self) -> str:
        return f"Shard(global_shape={list(self.global_shape)}, offsets={list(self.offsets)})"


class Part(NamedTuple):
    """What this rank holds of a tensor.

    Attributes:
        elements: those that it holds.
        shape: the whole tensor's.
        box: which of its elements they are.
    """

    elements: Elements
    shape: tuple[int, ...]
    box: Box


def part_of(value: Any) -> Part:
    """Return what this rank holds of a tensor.

    Args:
        value: a :class:`Shard`; a distributed tensor of torch or Paddle; or a tensor of any kind,
            which is the whole.

    Raises:
        ArgumentError: its ranks do not hold boxes of it.
        DtypeError: it is no tensor, or has no memory.
    """
    if isinstance(value, Shard):
        elements = Elements(value.array)
        return Part(elements, value.global_shape, Box(value.offsets, elements.shape))
    framework = framework_of(value, "")
    if framework in ("torch", "paddle"):
        found = describer(framework).shard_of(value)
        if found is not None:
            local, shape, offsets = found
            elements = Elements(local)
            box = Box(tuple(offsets), elements.shape)
            if not within(box, shape) and elements.nbytes:
                raise ArgumentError(f"this rank holds {box}, which is no part of {list(shape)}")
            return Part(elements, tuple(shape), box)
    elements = Elements(value)
    return Part(elements, elements.shape, Box((0,) * len(elements.shape), elements.shape))


def parts_of(what: str, tensors: Any) -> dict[str, Part]:
    """Return what this rank holds of each tensor, by name.

    Args:
        what: the function, for errors.
        tensors: a map of names to what :func:`part_of` takes.

    Raises:
        DtypeError: it is no map; a name is no text; or something is no tensor.
        ArgumentError: a tensor is not held in boxes. The text names it.
    """
    if not isinstance(tensors, Mapping):
        raise DtypeError(f"{what}: tensors is a {type(tensors).__name__}, and no map")
    found = {}
    for name, value in tensors.items():
        if not isinstance(name, str):
            raise DtypeError(f"{what}: the name {name!r} is a {type(name).__name__}, and no text")
        if name == "__metadata__":
            raise ArgumentError(f"{what}: no tensor can have the name '__metadata__'")
        try:
            found[name] = part_of(value)
        except Error as error:
            _renamed(what, name, error)
    return found


def _renamed(what: str, name: str, error: Error) -> NoReturn:
    raise type(error)(f"{what}: {name!r}: {error}") from error


def refuse_shared(what: str, parts: Mapping[str, Part]) -> None:
    """Raise if two tensors have memory in common: they would be two after loading.

    Raises:
        ArgumentError: the names of two such tensors.
    """
    import numpy as np

    placed = sorted(
        (device, begin, end, name)
        for name, part in parts.items()
        for device, begin, end in [part.elements.where]
        if end > begin
    )
    open_ones: list[tuple[int, int, int, str]] = []
    for one in placed:
        device, begin, _, name = one
        open_ones = [other for other in open_ones if other[0] == device and other[2] > begin]
        for _, _, _, other in open_ones:
            a, b = parts[other].elements.array, parts[name].elements.array
            if a is not None and b is not None and not np.shares_memory(a, b):
                continue  # such as two columns of one array
            raise ArgumentError(
                f"{what}: {other!r} and {name!r} share memory, and would be two tensors in the "
                "file; leave one out, as safetensors.torch.save_model does, or clone it"
            )
        open_ones.append(one)


def _integers(name: str, values: Any) -> tuple[int, ...]:
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError:
        raise DtypeError(f"Shard: {name}={values!r} is no sequence of integers") from None
