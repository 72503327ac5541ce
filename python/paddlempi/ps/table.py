"""A table in this process."""

from __future__ import annotations

import weakref
from importlib import import_module
from typing import Any

from .. import _native, memory
from .._ops import TableCall
from ..errors import ArgumentError, DtypeError, UnsupportedError
from . import lifetime
from .config import Configured, TableConfig, checked_ids, length_of, rate_of, whole
from .initializers import Initializer
from .missing_rows import call_of
from .optimizers import Optimizer

__all__ = ["Table", "rows_of"]

_PUSH = TableCall.PUSH  # to ask an enum each time costs 70 ns

_PIECE = 1 << 20  # ids of one call of state_dict
_FORMAT = 1


class _Held:
    """A table of the core. It is freed when nobody uses it any more: a call holds it meanwhile."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.freed = weakref.finalize(self, _free, number)
        self.freed.atexit = False  # the memory goes with the process


class Table(Configured):
    """Rows of ``dim`` floats by int64 id, and the state of their optimizer, in this process.

    A row that no call has touched before is made at its first touch, from ``seed`` and its id
    alone. So values depend neither on the order of calls, nor on threads, nor on which process has
    the row.

    Tensors are of NumPy, torch or Paddle, or have the buffer protocol or ``__dlpack__``. They must
    be contiguous and in host memory, and are not copied.

    Args:
        dim: elements of a row, 1 to 65536.
        optimizer: what a push does to a row: an :class:`Optimizer`, or the name of one ("sgd",
            "momentum", "adagrad", "row_wise_adagrad", "adam", "adamw") with its defaults.
        initializer: what a new row holds: an :class:`Initializer`, or the name of one ("zeros",
            "uniform", "normal") with its defaults.
        dtype: of the rows: "float32", "float16" or "bfloat16". All arithmetic and the states are of
            float32; a 16-bit row is rounded to nearest even after each update.
        seed: of the new rows, 0 to 2**64 - 1.
        num_ids: ids must be 0 to ``num_ids`` - 1. None: any int64.
        memory_limit: the bytes that the table may hold of the machine. None: no limit.
        admit_after: a row is made at the push that is the so-many-th with its id; gradients of
            earlier ones are dropped. None: at the first touch.
        expire_after: a row that no push had for more than so many steps is removed. None: none is.
        max_rows: the most rows of the table. Pushes of new ids remove rows whose
            last push is longest ago. None: no limit. With any of these three, only pushes and
            writes make rows: a pull gives an id without a row what a new row holds.
        non_finite: "refuse": a push with a NaN or an infinity is an error, which changes nothing,
            and what an update takes beyond the largest number of ``dtype`` becomes that number;
            "allow": rows may hold both.

    Raises:
        ArgumentError: a value is out of range, or there is no optimizer or initializer of the name.
        DtypeError: an argument is of a wrong type, or ``dtype`` is none of the three.
        OutOfMemoryError: the machine has no memory.
        ForkError: this process is a fork of the one that loaded the core.

    Thread-safety: all methods may be called from any thread. They release the GIL, and calls run
    side by side. A row is seen whole. A fork (a DataLoader's worker) must not use a table.
    """

    def __init__(
        self,
        dim: int,
        optimizer: Optimizer | str = "sgd",
        initializer: Initializer | str = "zeros",
        *,
        dtype: Any = "float32",
        seed: int = 0,
        num_ids: int | None = None,
        memory_limit: int | None = None,
        non_finite: str = "refuse",
        admit_after: int | None = None,
        expire_after: int | None = None,
        max_rows: int | None = None,
    ) -> None:
        self._config = TableConfig.checked(
            dim,
            optimizer,
            initializer,
            dtype=dtype,
            seed=seed,
            num_ids=num_ids,
            memory_limit=memory_limit,
            non_finite=non_finite,
            admit_after=admit_after,
            expire_after=expire_after,
            max_rows=max_rows,
        )
        self._core = _native.load()
        self._held = self._new()

    def _new(self) -> _Held:
        return _Held(_native.control("table_new", **self._config.request())["table"])

    def pull(self, ids: Any, out: Any = None, *, missing: str | None = None) -> Any:
        """Copy the rows of ids, and make those that are missing, or say what these would be.

        Args:
            ids: a tensor of int64 or int32, [n]. An id may appear several times.
            out: where the rows go: a tensor of float32, or of the table's dtype, [n, dim]. None: a
                new tensor of float32 of the framework of ``ids`` (else NumPy's), in this rank's
                heap.
            missing: what ids without a row give. None: their rows are made; where ids come and go,
                it is "initial". "initial": what these would begin with, bit for bit; "zeros":
                zeros. Both make no rows, so a table that has reached its ``memory_limit`` answers,
                too.

        Returns:
            ``out``, or the new tensor.

        Raises:
            ArgumentError: a shape is wrong, an id is out of range, ``out`` is read-only, or
                ``missing`` is another word.
            DtypeError: a dtype is wrong, or something is no tensor.
            UnsupportedError: a tensor is in device memory.
            OutOfMemoryError: there is no memory for the new rows, or ``memory_limit`` is reached.
                Rows of some ids may have been made.
        """
        call = call_of("pull", missing)
        if out is None:
            out = memory.empty(
                (length_of("pull", ids), self.dim), framework=memory.framework_of(ids)
            )
        held = self._held
        self._core.table(call, held.number, checked_ids("pull", ids), out)
        return out

    def push(
        self,
        ids: Any,
        gradients: Any = None,
        learning_rate: float | None = None,
        step: int | None = None,
    ) -> None:
        """Update the rows of ids by their gradients, and make those that are missing.

        Where ids come and go, gradients of ids that get no row are dropped.

        The gradients of an id that appears several times are added in order of appearance, and its
        row is updated once.

        Args:
            ids: a tensor of int64 or int32, [n]. Or, without ``gradients``, a sparse gradient:
                Paddle's SelectedRows, or torch's sparse COO tensor with one sparse dimension.
            gradients: a tensor of float32, float16 or bfloat16, [n, dim].
            learning_rate: for this push, such as the value of a schedule. None: the optimizer's.
            step: the number of this update, from 1, for Adam's bias correction. None: one more than
                the greatest so far.

        Raises:
            ArgumentError: a shape is wrong, an id is out of range, a gradient is not finite,
                ``learning_rate`` is negative or not finite, or ``step`` is below 1. Nothing was
                changed.
            DtypeError: a dtype is wrong, or something is no tensor. Nothing was changed.
            UnsupportedError: a tensor is in device memory. Nothing was changed.
            OutOfMemoryError: ``memory_limit`` is reached: no row was updated, but rows of some ids
                may have been made. Or the machine has no memory: some rows may have been updated.
        """
        if gradients is None:
            ids, gradients = rows_of(ids)
        held = self._held
        self._core.table(
            _PUSH,
            held.number,
            checked_ids("push", ids),
            gradients,
            None,
            rate_of("push", learning_rate),
            _step(step),
        )

    def __len__(self) -> int:
        """The number of rows."""
        rows: int = self.info()["rows"]
        return rows

    def bytes(self) -> int:
        """Return how many bytes the table holds of the machine, in all."""
        size: int = self.info()["bytes"]
        return size

    def info(self) -> dict[str, int]:
        """Return how large the table is.

        Returns:
            ``rows``; ``bytes`` in all; of these ``index_bytes``; ``row_bytes`` and ``state_bytes``
            of one row; ``steps``, the greatest step of a push. Where ids come and go also what
            happened since the table was made: ``dropped``, how many ids of pushes got no row;
            ``expired`` and ``evicted``, how many rows were removed.
        """
        held = self._held
        return _native.control("table_info", table=held.number)

    def ids(self) -> Any:
        """Return the ids that have rows, in ascending order: a NumPy array of int64."""
        held, room = self._held, len(self)
        while True:
            found = memory.empty((room,), "int64")
            rows = self._core.table(TableCall.IDS, held.number, found, None)
            if rows <= room:
                found = found[:rows]
                found.sort()
                return found
            room = rows

    def state_dict(self) -> dict[str, Any]:
        """Return all rows and states, for :meth:`load_state_dict`. No thread may push meanwhile.

        Returns:
            A dictionary of plain data and three NumPy arrays: ``ids``, ascending; ``rows``, of
            float32 (16-bit rows are widened, which is exact), [rows, dim]; ``states``, of float32,
            [rows, floats of a state]. Where ids come and go also ``stamps``, int64, [rows], the
            step of each row's last push; and with ``admit_after`` ``sketch``, bytes.
        """
        ids, held = self.ids(), self._held
        count = len(ids)
        rows = memory.empty((count, self.dim))
        states = memory.empty((count, self._config.optimizer.state_width(self.dim)))
        for begin in range(0, count, _PIECE):
            piece = slice(begin, begin + _PIECE)
            self._core.table(TableCall.READ, held.number, ids[piece], rows[piece], states[piece])
        state = {
            "format": _FORMAT,
            **self._config.identity(),
            "steps": self.info()["steps"],
            "ids": ids,
            "rows": rows,
            "states": states,
        }
        if self._config.lifetime:
            state["stamps"] = lifetime.stamps(held.number, ids)
            if counts := lifetime.sketch(held.number):
                state["sketch"] = counts
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all rows and states by those of a :meth:`state_dict`.

        The learning rate and the other numbers of the optimizer stay those of this table, and so do
        its dtype and limits. After an error the table is as it was. With ``max_rows`` it takes the
        rows of the last pushes. Rows of a state without ``stamps`` count as pushed now.

        Raises:
            ArgumentError: the state is of another dim, optimizer, initializer or seed, something is
                missing, an array has a wrong shape, or an id appears twice.
            DtypeError: an array has a wrong dtype, or the state is no dictionary.
            OutOfMemoryError: there is no memory for the rows, or ``memory_limit`` does not allow
                them.
        """
        if not isinstance(state, dict):
            raise DtypeError(f"load_state_dict: a {type(state).__qualname__} is no state_dict()")
        for name in ("ids", "rows", "states", "steps"):
            if name not in state:
                raise ArgumentError(f"load_state_dict: the state has no {name!r}")
        said = {"bias_correction": "table", **state}  # earlier versions had this one alone
        for name, value in {"format": _FORMAT, **self._config.identity()}.items():
            if said.get(name) != value:
                raise ArgumentError(
                    f"load_state_dict: {name} is {said.get(name)!r} in the state; this table's is "
                    f"{value!r}"
                )
        ids, rows, states = (state[name] for name in ("ids", "rows", "states"))
        width = self._config.optimizer.state_width(self.dim)
        for name, array, shape in (
            ("rows", rows, (len(ids), self.dim)),
            ("states", states, (len(ids), width)),
        ):
            if tuple(array.shape) != shape:
                raise ArgumentError(
                    f"load_state_dict: {name} has shape {tuple(array.shape)}; {len(ids)} ids need "
                    f"{shape}"
                )
        ids, rows, states, stamps = self._kept(ids, rows, states, state.get("stamps"))
        held = self._new()
        try:
            _native.control("table_info", table=held.number, steps=int(state["steps"]))
            for begin in range(0, len(ids), _PIECE):
                piece = slice(begin, begin + _PIECE)
                self._write(ids[piece], rows[piece], states[piece], held)
            told = _native.control("table_info", table=held.number)
            if told["rows"] != len(ids):
                raise ArgumentError(
                    f"load_state_dict: the state has {len(ids)} ids, of which {told['rows']} are "
                    "different"
                )
            if stamps is not None:
                lifetime.set_stamps(held.number, ids, stamps)
            if (self._config.admit_after or 0) > 1 and "sketch" in state:
                lifetime.add_sketch(held.number, bytes(state["sketch"]))
        except BaseException:
            held.freed()
            raise
        self._held = held

    def remove(self, ids: Any) -> int:
        """Remove the rows of ids, with their states. Ids without a row are passed over.

        What touches such an id later makes its row anew. The memory of rows that are removed is
        used for new ones. Calls of other threads wait meanwhile.

        Args:
            ids: a tensor of int64 or int32, [n].

        Returns:
            How many rows were removed.

        Raises:
            ArgumentError: the tensor is not contiguous.
            DtypeError: a dtype is wrong, or it is no tensor.
            UnsupportedError: the tensor is in device memory.
        """
        held = self._held
        removed: int = self._core.table(
            TableCall.REMOVE, held.number, checked_ids("remove", ids), None
        )
        return removed

    def _write(self, ids: Any, rows: Any, states: Any, held: _Held | None = None) -> None:
        """Set rows and states, which may be None; each row is seen whole."""
        self._core.table(TableCall.WRITE, (held or self._held).number, ids, rows, states)

    def _kept(self, ids: Any, rows: Any, states: Any, stamps: Any) -> tuple[Any, Any, Any, Any]:
        """Return those ids of a state for which there is room, and what belongs to them."""
        if not self._config.lifetime:
            return ids, rows, states, None
        if stamps is not None and (stamps.shape != (len(ids),) or str(stamps.dtype) != "int64"):
            raise ArgumentError(
                f"load_state_dict: stamps are of {stamps.dtype} and have shape {stamps.shape}; "
                f"{len(ids)} ids need int64, ({len(ids)},)"
            )
        most = self._config.max_rows
        if most is None or len(ids) <= most:
            return ids, rows, states, stamps
        kept = lifetime.latest(ids, ids * 0 if stamps is None else stamps, most)
        return ids[kept], rows[kept], states[kept], None if stamps is None else stamps[kept]

    def close(self) -> None:
        """Give the table's memory back. Later calls raise ArgumentError. May be called twice."""
        self._held.freed()

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise UnsupportedError(
            "Table: it cannot be copied or pickled: make another one, and give it the state_dict() "
            "of this one"
        )

    def __repr__(self) -> str:
        return (
            f"Table(dim={self.dim}, {self.optimizer}, {self._config.initializer}, "
            f"dtype={self.dtype})"
        )


def _free(number: int) -> None:
    if not _native.load().forked():
        _native.control("table_free", table=number)


def _step(step: Any) -> int:
    if step is None:
        return 0
    number = whole("push", "step", step)
    if number < 1:
        raise ArgumentError(f"push: step={step!r} is below 1")
    return number


def rows_of(gradient: Any) -> tuple[Any, Any]:
    """Return the ids and the gradients of a sparse gradient of torch or Paddle.

    Raises:
        DtypeError: it is none.
    """
    framework = memory.framework_of(checked_ids("push", gradient))
    read = getattr(import_module(f"..tensors.{framework}", __package__), "rows_of", None)
    if read is None:
        raise DtypeError(
            f"push: a {type(gradient).__qualname__} is no sparse gradient: give ids and gradients"
        )
    ids, gradients = read(gradient)
    return ids, gradients
