"""The elements of torch tensors that files are written from."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from paddlempi.errors import DtypeError
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


class StandsFor(torch.Tensor):
    """A tensor that holds another one, and has no memory itself."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(func)


def test_a_tensor_without_memory_is_refused() -> None:
    """A subclass that stands for another tensor has an address of 0: what lies there is not it."""
    wrapped = torch.Tensor._make_wrapper_subclass(StandsFor, (2, 3), dtype=torch.float32)
    with pytest.raises(DtypeError, match=r"StandsFor of shape \(2, 3\) has no memory"):
        Elements(wrapped)
    empty = torch.Tensor._make_wrapper_subclass(StandsFor, (0, 3), dtype=torch.float32)
    assert Elements(empty).array.shape == (0, 3)
