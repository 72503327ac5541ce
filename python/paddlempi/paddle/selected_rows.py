"""SelectedRows, Paddle's gradient of a sparse embedding: some rows of a table, as NumPy arrays."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import paddle
from paddle.base import core as paddle_core

__all__ = ["DTYPES", "fill_table", "read", "write"]

_Array = np.ndarray[Any, Any]

DTYPES: dict[Any, tuple[Any, Any]] = {
    paddle.float32: (np.dtype(np.float32), paddle_core.VarDesc.VarType.FP32),
    paddle.float64: (np.dtype(np.float64), paddle_core.VarDesc.VarType.FP64),
}
"""The dtypes of tables whose gradients travel as rows: NumPy's dtype and Paddle's old name."""


def read(gradient: Any) -> tuple[_Array, _Array]:
    """Return the row numbers of a gradient and copies of the rows ([rows, width]).

    If a row occurs several times, its values are added: every row number is returned once.
    """
    if not gradient.rows():
        width = list(gradient.shape)[1:]
        return np.zeros(0, np.int64), np.zeros([0, *width], DTYPES[gradient.dtype][0])
    merged = paddle.nn.clip.merge_selected_rows(gradient)
    rows = np.array(merged.rows(), np.int64)
    inside = merged.get_selected_rows().get_tensor()  # lives as long as merged
    bits = DTYPES[gradient.dtype][0]
    shape = inside.shape()
    memory: Any = (ctypes.c_char * (int(np.prod(shape)) * bits.itemsize)).from_address(
        inside._ptr()
    )
    return rows, np.frombuffer(memory, bits).reshape(shape).copy()


def write(parameter: Any, rows: _Array, values: _Array) -> None:
    """Make these rows the gradient of a table. It must have no gradient, or a sparse one."""
    shape = list(parameter.shape)
    gradient = paddle_core.eager.Tensor(
        DTYPES[parameter.dtype][1],
        shape,
        parameter.name + "@GRAD",
        paddle_core.VarDesc.VarType.SELECTED_ROWS,
        False,
    )
    inside = gradient.get_selected_rows()
    inside.set_height(shape[0])
    inside.set_rows(rows.tolist())
    inside.get_tensor().set(values, paddle.CPUPlace())
    parameter.grad = gradient


def fill_table(gradient: Any, table: _Array, scale: Any) -> None:
    """Overwrite a whole table with the gradient's rows times ``scale``, and zeros elsewhere."""
    rows, values = read(gradient)
    table.fill(0)
    table[rows] = values * scale
