"""What a rank has of torch's tensors, as boxes and arrays (:mod:`paddlempi.elasticity.boxes`)."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ...elasticity.boxes import BITS, Array, Box

__all__ = ["box_of", "local_of", "piece_of"]

_UNSIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""What has as many bytes as a dtype that NumPy does not know."""


def box_of(tensor: Any) -> Box:
    """Return the box that this rank has of a tensor: all of it, if it is no DTensor."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if not isinstance(tensor, DTensor):
        return Box(shape, dtype, tensor.itemsize, (0,) * len(shape), shape, False)
    size, begin = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return Box(shape, dtype, tensor.itemsize, tuple(begin), tuple(size), True)


def local_of(tensor: Any) -> Any:
    """Return what this rank has of a tensor, for copies that autograd does not see."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def piece_of(tensor: Any) -> tuple[Box, Array]:
    """Return this rank's box of a tensor on the CPU, and its memory as an array."""
    local = local_of(tensor)
    try:
        array = local.numpy()
    except TypeError:
        array = local.view(_UNSIGNED[local.itemsize]).numpy()
    return box_of(tensor), array.view(BITS[local.itemsize])
