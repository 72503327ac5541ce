"""Gradients of sparse embeddings, averaged as rows.

After the dense buckets each rank tells how many rows it has. Then, for each table:

* few rows: all ranks gather rows and values, (T rows) x (width + 2) elements to each rank;
* many rows: the ranks gather the rows, and their values are reduced in a whole table, about
  2 x height x width elements;
* a dense gradient on some rank (a table that is a layer's weight too): the whole table, and the
  result is dense.

Every rank adds in the order of the ranks: the bits are the same everywhere.
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

MANY = 0.5
"""The rows of all ranks together, as a share of the table, above which it travels whole."""

_DENSE = -1

# What a rank says of each table.
_ROWS, _USED, _HAS = range(3)


class Tables:
    """The tables of sparse embeddings.

    Args:
        members: indices and parameters, of the dtypes of :mod:`selected_rows`.
        group: the reducer's.
    """

    def __init__(self, members: Sequence[tuple[int, Any]], group: ProcessGroup) -> None:
        self.indices = [index for index, _ in members]
        self._parameters = [parameter for _, parameter in members]
        self._group = group
        self._mine = np.zeros([len(members), 3], np.int64)
        self._all = np.zeros([group.size(), len(members), 3], np.int64)
        self._work: Work | None = None
        self._gradients: list[tuple[_Array, _Array] | None] = []
        self._whole: dict[int, Bucket] = {}

    def start(self, came: Sequence[int]) -> None:
        """Tell the others what this rank has.

        Args:
            came: how often each parameter's gradient came in this backward.
        """
        if not self._parameters:
            return
        self._gradients = []
        for place, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            used = came[self.indices[place]] > 0
            sparse = gradient is not None and gradient.is_selected_rows()
            found = selected_rows.read(gradient) if sparse else None
            self._gradients.append(found)
            rows = len(found[0]) if found is not None else 0 if gradient is None else _DENSE
            self._mine[place] = rows, used, gradient is not None
        self._work = all_gather_into_tensor(self._all, self._mine, self._group, async_op=True)

    def wait(self) -> None:
        """Wait until every rank has told."""
        work, self._work = self._work, None
        if work is not None:
            work.wait()

    def is_wrong(self, find_unused: bool) -> bool:
        """Whether some ranks have not used a table that others have, and that is an error."""
        used = self._all[:, :, _USED]
        return not find_unused and bool((used.any(0) & ~used.all(0)).any())

    def reached(self) -> dict[int, bool]:
        """For the indices of the tables, whether any rank's backward has used them."""
        used = self._all[:, :, _USED].max(0).tolist()
        return {index: one > 0 for index, one in zip(self.indices, used, strict=True)}

    def exchange(self) -> None:
        """Average the gradients."""
        ends = [self._begin(place) for place in range(len(self._parameters))]
        for end in ends:
            if end is not None:
                end()
        self._gradients = []

    def refuse(self) -> None:
        """Take the place of what this rank will not start."""
        self._work = None
        if self._parameters:
            refuse(Op.ALL_GATHER, self._group)

    # Inside

    def _begin(self, place: int) -> Any:
        """Start the exchange of one table; what ends it, None where nobody has a gradient."""
        told = self._all[:, place]
        if not told[:, _HAS].any():
            return None
        counts = told[:, _ROWS]
        if (counts == _DENSE).any():
            return self._begin_dense(place)
        if counts.sum() > MANY * self._parameters[place].shape[0]:
            return self._begin_whole(place, counts)
        return self._begin_rows(place, counts)

    def _begin_rows(self, place: int, counts: _Array) -> Any:
        rows, values = self._of(place)
        gathered, rows_work = self._gather(rows, counts)
        parts, values_work = self._gather(values / self._group.size(), counts)

        def end() -> None:
            _wait(rows_work)
            _wait(values_work)
            union, inverse = np.unique(np.concatenate(gathered), return_inverse=True)
            total = np.zeros([len(union), *values.shape[1:]], values.dtype)
            start = 0
            for part in parts:
                total[inverse[start : start + len(part)]] += part  # its rows differ
                start += len(part)
            selected_rows.write(self._parameters[place], union, total)

        return end

    def _begin_whole(self, place: int, counts: _Array) -> Any:
        rows, values = self._of(place)
        bucket = self._bucket(place)
        table = bucket.slots[0].shaped
        table.fill(0)
        table[rows] = values * bucket.scale
        gathered, rows_work = self._gather(rows, counts)
        work = all_reduce(bucket.storage, bucket.op, self._group, async_op=True)

        def end() -> None:
            _wait(rows_work)
            _wait(work)
            union = np.unique(np.concatenate(gathered))
            selected_rows.write(self._parameters[place], union, table[union])

        return end

    def _begin_dense(self, place: int) -> Any:
        parameter = self._parameters[place]
        bucket = self._bucket(place)
        slot = bucket.slots[0]
        gradient = parameter.grad
        if gradient is None:
            slot.fill_zero()
            slot.bind(parameter)
        else:
            slot.pack(parameter, gradient)
        work = all_reduce(bucket.storage, bucket.op, self._group, async_op=True)
        return lambda: _wait(work)

    def _of(self, place: int) -> tuple[_Array, _Array]:
        found = self._gradients[place]
        if found is None:
            parameter = self._parameters[place]
            width = list(parameter.shape)[1:]
            bits = selected_rows.DTYPES[parameter.dtype][0]
            return np.zeros(0, np.int64), np.zeros([0, *width], bits)
        return found

    def _gather(self, mine: _Array, counts: _Array) -> tuple[list[_Array], Work | None]:
        parts = [np.zeros([int(count), *mine.shape[1:]], mine.dtype) for count in counts]
        return parts, all_gather(parts, mine, self._group, async_op=True)

    def _bucket(self, place: int) -> Bucket:
        """The memory of a whole table, made when it is first needed."""
        if place not in self._whole:
            member = (self.indices[place], self._parameters[place])
            self._whole[place] = Bucket([member], self._group.size())
        return self._whole[place]


def _wait(work: Work | None) -> None:
    if work is not None:
        work.wait()
