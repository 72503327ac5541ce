"""Gradients clipped by what all trainers have together: what one process would clip.

The gradients of a step are the sum of the trainers', or their mean. They meet on the servers only,
with the step. So a clip before it asks all trainers: it adds up dense gradients by an all_reduce,
and gathers those of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

from .. import memory
from ..collectives import all_reduce
from ..errors import ArgumentError
from ..objects import all_gather_object
from . import session, stepping
from .distributed_optimizer import CommonOptimizer

__all__ = ["clip_norm", "clip_value"]

_Array = Any  # of NumPy, which programs of paddlempi need not have
_Rows = tuple[_Array, _Array]  # ids, each once, and their gradients


def _numpy() -> Any:
    return import_module("numpy")


class _Gradients:
    """The gradients of the next step of some optimizers.

    Attributes:
        dense: for each dense parameter its gradient, [elements]; zeros where none has one.
        used: whether a trainer has a gradient of it.
        rows: the gradients of rows, by the names of their tables.
    """

    def __init__(self, optimizers: Sequence[CommonOptimizer], what: str) -> None:
        found = session.as_trainer(what)
        self._optimizers = optimizers
        self._vectors = [vector for one in optimizers for vector in one._on_servers]
        self._together = found.mode == "sync" and len(found.trainers) > 1
        self._trainers, self._group = found.trainers, found.trainer_group
        self._noted = stepping.noted_of([one._owner for one in optimizers])
        average = found.mode == "sync" and bool(optimizers and optimizers[0]._average)
        self._parts = len(found.trainers) if average else 1
        self._add_dense()
        self._add_rows(found.rank)

    def _pairs(self) -> Iterable[tuple[Any, Any, slice]]:
        """The dense parameters, each with how it is read, and its place in ``_flat``."""
        begin = 0
        for vector in self._vectors:
            for parameter, place in vector._places:
                end = begin + place.stop - place.start
                yield parameter, vector._access, slice(begin, end)
                begin = end

    def _add_dense(self) -> None:
        pairs = list(self._pairs())
        count = pairs[-1][2].stop if pairs else 0
        flat = memory.zeros(count + len(pairs))
        for number, (parameter, access, place) in enumerate(pairs):
            if parameter.grad is not None:
                flat[place] = access.read(parameter.grad)
                flat[count + number] = 1
        if self._together and pairs:
            all_reduce(flat, group=self._group)
        self.used = list(flat[count:] != 0)
        self.dense = [flat[place] / self._parts for _, _, place in pairs]

    def _add_rows(self, rank: int) -> None:
        mine = {table.name: added(notes) for table, notes in self._noted}
        everyone = [mine]
        if self._together:
            everyone = [{} for _ in self._trainers]
            all_gather_object(everyone, mine, self._group)
        names = sorted({name for one in everyone for name in one})
        self.rows: dict[str, _Rows] = {}
        self._first: dict[str, bool] = {}  # whether no trainer before this one has a table's
        for name in names:
            ids, total = added([(0, *one[name]) for one in everyone if name in one])
            self.rows[name] = ids, total / self._parts
            first = next(k for k, one in enumerate(everyone) if name in one)
            self._first[name] = not self._together or self._trainers[first] == rank

    def all(self) -> list[_Array]:
        return [*self.dense, *(total for _, total in self.rows.values())]

    def scale(self, factor: float) -> None:
        """Multiply what each trainer has."""
        for parameter, access, _ in self._pairs():
            if parameter.grad is not None:
                access.write(parameter.grad, access.read(parameter.grad) * factor)
        names = [table.name for table, _ in self._noted]
        stepping.discard_tables(names)
        for table, notes in self._noted:
            for _, ids, gradients in notes:
                stepping.note(table, ids, gradients * factor)

    def change(self, how: Callable[[_Array], _Array]) -> None:
        """Have the sum be another one: of dense gradients, and of a table, one trainer has all."""
        first = not self._together or self._trainers[0] == session.current("a clip").rank
        owners = [one for one in self._optimizers for v in one._on_servers for _ in v._places]
        found = zip(self._pairs(), self.dense, self.used, owners, strict=True)
        for (parameter, access, _), total, used, owner in found:
            if not used:
                continue
            if parameter.grad is None:
                parameter.grad = owner._zeros_like(parameter)
            new = how(total) * self._parts if first else _numpy().zeros_like(total)
            access.write(parameter.grad, new)
        stepping.discard_tables(table.name for table, _ in self._noted)
        for table, _ in self._noted:
            ids, total = self.rows[table.name]
            if self._first[table.name]:
                stepping.note(table, ids, how(total) * self._parts)


def added(notes: Iterable[tuple[Any, Any, Any]]) -> _Rows:
    """Return rows of notes, each once, with their gradients added up."""
    np = _numpy()
    parts = [(_array(ids, np.int64), _array(rows, np.float32)) for _, ids, rows in notes]
    ids, places = np.unique(np.concatenate([ids for ids, _ in parts]), return_inverse=True)
    rows = np.concatenate([rows for _, rows in parts])
    total = np.zeros((len(ids), rows.shape[1]), np.float32)
    np.add.at(total, places.reshape(-1), rows)
    return ids, total


def _array(tensor: Any, dtype: Any) -> _Array:
    if hasattr(tensor, "detach"):  # of torch, which may be of bfloat16
        tensor = tensor.detach().cpu()
        tensor = tensor.float() if tensor.is_floating_point() else tensor
    return _numpy().asarray(tensor, dtype)


def clip_norm(
    optimizers: Sequence[CommonOptimizer], max_norm: float, norm_type: float, what: str
) -> float:
    """Clip by the norm of all gradients together; see :meth:`paddlempi.ps.Plan.clip_grad_norm_`."""
    largest, order = float(max_norm), float(norm_type)
    if not largest >= 0:
        raise ArgumentError(f"{what}: max_norm={max_norm!r} is not at least 0")
    if not order > 0:
        raise ArgumentError(f"{what}: norm_type={norm_type!r} is not above 0")
    gradients = _Gradients(optimizers, what)
    norm_of = _numpy().linalg.norm
    norms = [norm_of(part.reshape(-1).astype("float64"), order) for part in gradients.all()]
    norm = float(norm_of(norms, order)) if norms else 0.0
    factor = largest / (norm + 1e-6)
    if not factor >= 1:  # also what is no number, which the step then refuses
        gradients.scale(factor)
    return norm


def clip_value(optimizers: Sequence[CommonOptimizer], clip: float, what: str) -> None:
    """Clip each element; see :meth:`paddlempi.ps.Plan.clip_grad_value_`."""
    most = float(clip)
    if not 0 <= most < math.inf:
        raise ArgumentError(f"{what}: clip_value={clip!r} is not a finite number of at least 0")
    _Gradients(optimizers, what).change(lambda total: total.clip(-most, most))
