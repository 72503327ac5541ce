"""NumPy's odd arrays in every public function that takes a tensor: right values, or an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from every_function import IN_PLACE, SENT, SERVED, SERVED_WRITTEN, WRITTEN
from every_tensor import Kind, found, tried
from paddlempi import ps
from paddlempi.errors import ArgumentError, DtypeError
from paddlempi.ps import functions
from ps_roles import BOTH, begin

__all__ = ["begin"]

VALUES = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
ROWS = np.tile(VALUES[0], (2, 1))
"""Equal rows, which an array can have in one memory."""
SHIFTED = np.array([[1, 2, 3, 4], [2, 3, 4, 5]], np.float32)
"""Rows that an array can have in five elements."""


class Subclass(np.ndarray[Any, Any]):
    """An array with a class of its own."""


def read_only(values: Any) -> Any:
    array = values.copy()
    array.flags.writeable = False
    return array


def in_records(values: Any) -> Any:
    """Return an array of elements with a byte behind each."""
    records = np.zeros(values.shape, [("a", "f4"), ("b", "i1")])
    records["a"] = values
    return records["a"]


def strided(values: Any, steps: tuple[int, int]) -> Any:
    return np.lib.stride_tricks.as_strided(values, (2, 4), [step * 4 for step in steps])


def kinds() -> list[Kind]:
    def kind(
        name: str, make: Any, *errors: Any, values: Any = VALUES, read: Any = np.array
    ) -> Kind:
        return Kind(name, values, make, read, *errors)

    return [
        kind("plain", np.array),
        kind("negative strides", lambda v: np.array(v[::-1, ::-1])[::-1, ::-1]),
        kind("columns", np.asfortranarray),
        kind("gaps", lambda v: np.repeat(v, 2, 1)[:, ::2]),
        kind("0-d", np.array, values=np.array(3, np.float32)),
        kind("empty", np.array, values=VALUES[:0]),
        kind("without columns", np.array, values=VALUES[:, :0]),
        kind("matrix", np.matrix),
        kind("subclass", lambda v: v.copy().view(Subclass)),
        kind("unaligned", lambda v: np.ndarray(v.shape, v.dtype, bytearray(b"-" + v.tobytes()), 1)),
        kind("read-only", read_only, None, ArgumentError),
        kind("scalar", np.float32, None, ArgumentError, values=np.array(3, np.float32)),
        kind(
            "expanded", lambda v: np.broadcast_to(v[0], v.shape), None, ArgumentError, values=ROWS
        ),
        kind("stride 0", lambda v: strided(v[0].copy(), (0, 1)), None, ArgumentError, values=ROWS),
        kind(
            "overlapping",
            lambda v: strided(np.append(v[0], 5).astype("f4"), (1, 1)),
            None,
            ArgumentError,
            values=SHIFTED,
        ),
        kind("in records", in_records, ArgumentError, ArgumentError),
        kind(
            "masked",
            lambda v: np.ma.array(v, mask=v > 4),
            DtypeError,
            DtypeError,
            read=np.ma.getdata,
        ),
        kind("other byte order", lambda v: v.astype(">f4"), DtypeError, DtypeError),
        kind("objects", lambda v: v.astype(object), DtypeError, DtypeError),
        kind("texts", lambda v: v.astype("U4"), DtypeError, DtypeError),
        kind("times", lambda v: v.astype("M8[s]"), DtypeError, DtypeError),
        kind("longdouble", lambda v: v.astype(np.longdouble), DtypeError, DtypeError),
        kind("records", lambda v: np.zeros(v.shape, [("a", "f4")]), DtypeError, DtypeError),
        kind("list", lambda v: v.tolist(), DtypeError, DtypeError),
    ]


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.mpi(ranks=[1, 2])
def test_odd_arrays(dist: ModuleType, here: Path) -> None:
    wrong = tried(kinds(), dist, here)
    assert not wrong, "\n".join(wrong)


@pytest.mark.mpi(ranks=1)
def test_odd_rows(dist: ModuleType, here: Path, begin: Callable[[str], bool]) -> None:
    kept = {}

    @ps.server_function("kept")
    def keep(request: ps.KVRequest) -> Any:
        keys = request.keys.tolist()
        if request.push:
            kept.update(zip(keys, request.values.copy(), strict=True))
        return [kept[key] for key in keys] if request.pull else None

    begin(BOTH)
    wrong = tried(kinds(), dist, here, [SERVED, SERVED_WRITTEN])
    functions._functions.clear()
    assert not wrong, "\n".join(wrong)


@pytest.mark.mpi(ranks=1)
def test_no_function_is_left_out() -> None:
    rows = {*SENT, *WRITTEN, *IN_PLACE, *SERVED, *SERVED_WRITTEN}
    assert not found() - rows, "give it a row in every_function.py"
