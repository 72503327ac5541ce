"""Gradients of sparse embeddings, averaged as rows.

When the dense buckets have started, every rank tells the others how many rows it has of each table.
Then there are three ways to average the gradient of a table:

* Few rows: all ranks gather the row numbers and the values, and add them in the order of the ranks,
  so that all get the same bits. With T rows of all ranks together, each rank receives
  T x (width + 2) words of 4 bytes for a float32 table: a row number is an int64.
* Many rows: the ranks gather the row numbers, and add the values by an all_reduce of a whole table.
  Each rank sends and receives about 2 x height x width elements.
* A dense gradient on some rank, because the table is the weight of a layer too: an all_reduce of a
  whole table. The result is a dense gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._ops import Op
from ..collectives import all_gather, all_gather_into_tensor, all_reduce
from ..group import ProcessGroup
from ..work import Work
from . import selected_rows
from .buckets import Bucket
from .refusal import refuse

__all__ = ["Tables"]

_Array = np.ndarray[Any, Any]

MANY_ROWS = 0.5
"""If all ranks together have more rows than this fraction of the table, it travels whole."""

_DENSE = -1
"""The number of rows of a dense gradient."""

# What a rank tells of each table: the number of its rows, whether this backward used the table, and
# whether it has a gradient (perhaps from an earlier backward).
_ROWS, _USED, _HAS_GRADIENT = range(3)


class Tables:
    """The tables of sparse embeddings.

    Args:
        members: indices and parameters, of the dtypes of :mod:`selected_rows`.
        group: a group of the reducer.
    """

    def __init__(self, members: Sequence[tuple[int, Any]], group: ProcessGroup) -> None:
        self.indices = [index for index, _ in members]
        self._parameters = [parameter for _, parameter in members]
        self._group = group
        self._local = np.zeros([len(members), 3], np.int64)
        self._gathered = np.zeros([group.size(), len(members), 3], np.int64)
        self._work: Work | None = None
        self._gradients: list[tuple[_Array, _Array] | None] = []
        self._whole: dict[int, Bucket] = {}

    def start(self, counts: Sequence[int]) -> None:
        """Start to tell the other ranks what this rank has.

        Args:
            counts: for every parameter of the reducer, how often its gradient came in this
                backward.
        """
        if not self._parameters:
            return
        self._gradients = []
        for number, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            used = counts[self.indices[number]] > 0
            sparse = gradient is not None and gradient.is_selected_rows()
            found = selected_rows.read(gradient) if sparse else None
            self._gradients.append(found)
            rows = len(found[0]) if found is not None else 0 if gradient is None else _DENSE
            self._local[number] = rows, used, gradient is not None
        self._work = all_gather_into_tensor(self._gathered, self._local, self._group, async_op=True)

    def wait(self) -> None:
        """Wait until the ranks have told each other how many rows they have."""
        work, self._work = self._work, None
        if work is not None:
            work.wait()

    def is_wrong(self, find_unused: bool) -> bool:
        """Return whether only some ranks have used a table, if that is an error."""
        used = self._gathered[:, :, _USED]
        return not find_unused and bool((used.any(0) & ~used.all(0)).any())

    def reached(self) -> dict[int, bool]:
        """Return for the index of every table whether any rank's backward has used it."""
        used = self._gathered[:, :, _USED].max(0).tolist()
        return {index: value > 0 for index, value in zip(self.indices, used, strict=True)}

    def exchange(self) -> None:
        """Average the gradients of all tables."""
        ends = [self._start_exchange(number) for number in range(len(self._parameters))]
        for end in ends:
            if end is not None:
                end()
        self._gradients = []

    def refuse(self) -> None:
        """Refuse the collective that this rank will not start."""
        self._work = None
        if self._parameters:
            refuse(Op.ALL_GATHER, self._group)

    # Inside

    def _start_exchange(self, number: int) -> Any:
        """Start to average one table.

        Returns:
            A function that waits and sets the gradient; None if no rank has a gradient.
        """
        gathered = self._gathered[:, number]
        if not gathered[:, _HAS_GRADIENT].any():
            return None
        counts = gathered[:, _ROWS]
        if (counts == _DENSE).any():
            return self._start_dense(number)
        if counts.sum() > MANY_ROWS * self._parameters[number].shape[0]:
            return self._start_whole(number, counts)
        return self._start_rows(number, counts)

    def _start_rows(self, number: int, counts: _Array) -> Any:
        rows, values = self._rows_of(number)
        gathered, rows_work = self._gather(rows, counts)
        parts, values_work = self._gather(values / self._group.size(), counts)

        def end() -> None:
            _wait(rows_work)
            _wait(values_work)
            union, inverse = np.unique(np.concatenate(gathered), return_inverse=True)
            total = np.zeros([len(union), *values.shape[1:]], values.dtype)
            start = 0
            for part in parts:
                # Right because no row occurs twice in one rank's part.
                total[inverse[start : start + len(part)]] += part
                start += len(part)
            selected_rows.write(self._parameters[number], union, total)

        return end

    def _start_whole(self, number: int, counts: _Array) -> Any:
        rows, values = self._rows_of(number)
        bucket = self._bucket(number)
        table = bucket.entries[0].shaped_array
        table.fill(0)
        table[rows] = values * bucket.scale
        gathered, rows_work = self._gather(rows, counts)
        work = all_reduce(bucket.storage, bucket.op, self._group, async_op=True)

        def end() -> None:
            _wait(rows_work)
            _wait(work)
            union = np.unique(np.concatenate(gathered))
            selected_rows.write(self._parameters[number], union, table[union])

        return end

    def _start_dense(self, number: int) -> Any:
        parameter = self._parameters[number]
        bucket = self._bucket(number)
        entry = bucket.entries[0]
        gradient = parameter.grad
        if gradient is None:
            entry.fill_zero()
            entry.bind(parameter)
        else:
            entry.pack(parameter, gradient)
        work = all_reduce(bucket.storage, bucket.op, self._group, async_op=True)
        return lambda: _wait(work)

    def _rows_of(self, number: int) -> tuple[_Array, _Array]:
        """Return the row numbers and values of this rank's gradient; none without a gradient."""
        found = self._gradients[number]
        if found is None:
            parameter = self._parameters[number]
            width = list(parameter.shape)[1:]
            bits = selected_rows.DTYPES[parameter.dtype][0]
            return np.zeros(0, np.int64), np.zeros([0, *width], bits)
        return found

    def _gather(self, local: _Array, counts: _Array) -> tuple[list[_Array], Work | None]:
        parts = [np.zeros([int(count), *local.shape[1:]], local.dtype) for count in counts]
        return parts, all_gather(parts, local, self._group, async_op=True)

    def _bucket(self, number: int) -> Bucket:
        """Return the memory of a whole table, which is made when it is first needed."""
        if number not in self._whole:
            member = (self.indices[number], self._parameters[number])
            self._whole[number] = Bucket([member], self._group.size())
        return self._whole[number]


def _wait(work: Work | None) -> None:
    if work is not None:
        work.wait()
