"""Paddle's odd tensors in every public function that takes a tensor: right values, or an error."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import paddle
import paddlempi
import pytest
from every_tensor import Kind, tried
from paddlempi.errors import DtypeError

VALUES = np.arange(1, 9, dtype=np.float32).reshape(2, 4)


def numbers(tensor: Any) -> Any:
    return tensor.numpy()


def kind(name: str, make: Any, *errors: Any, values: Any = VALUES) -> Kind:
    return Kind(name, values, make, numbers, *errors)


def needs_gradient(values: Any) -> Any:
    return paddle.to_tensor(values, stop_gradient=False)


def selected_rows(values: Any) -> Any:
    embedding = paddle.nn.Embedding(2, 4, sparse=True)
    embedding(paddle.to_tensor([0, 1])).sum().backward()
    return embedding.weight.grad


KINDS = [
    kind("plain", paddle.to_tensor),
    kind("0-d", paddle.to_tensor, values=np.array(3, np.float32)),
    kind("empty", paddle.to_tensor, values=VALUES[:0]),
    kind("transposed", lambda v: paddle.to_tensor(v.T.copy()).T),
    kind("gaps", lambda v: paddle.to_tensor(np.repeat(v, 2, 1))[:, ::2]),
    kind("needs a gradient", needs_gradient),
    kind("COO", lambda v: paddle.to_tensor(v).to_sparse_coo(2), DtypeError, DtypeError),
    kind("CSR", lambda v: paddle.to_tensor(v).to_sparse_csr(), DtypeError, DtypeError),
    kind("SelectedRows", selected_rows, DtypeError, DtypeError),
]


@pytest.mark.mpi(ranks=[2])
def test_odd_tensors(dist: ModuleType, here: Path) -> None:
    wrong = tried(KINDS, paddlempi, here)
    assert not wrong, "\n".join(wrong)
