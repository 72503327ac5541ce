"""The elements of torch tensors that files are written from."""

from __future__ import annotations

import gc
import weakref

import torch
from paddlempi.io.elements import Elements


def test_an_array_keeps_its_tensor() -> None:
    """A part of a tensor on a device is the array of a copy that nobody else has."""
    tensor = torch.arange(3000.0).reshape(30, 100)[:, ::2]
    told = weakref.ref(tensor)
    array = Elements(tensor).array[3:, ::-1]
    del tensor
    gc.collect()
    assert told() is not None
    assert (array.view("f4")[0] == [*range(398, 298, -2)]).all()
    del array
    gc.collect()
    assert told() is None
