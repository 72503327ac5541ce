"""A table whose rows lie on servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .. import _native, memory
from .._ops import TableCall
from ..errors import DtypeError, NotInitializedError
from . import session
from .config import Configured, TableConfig, checked_ids, from_zero, length_of, rate_of
from .data_shards import note_progress
from .initializers import Initializer
from .missing_rows import call_of
from .optimizers import Optimizer
from .prefetching import Prefetched, finish, start
from .table import rows_of

__all__ = ["RemoteTable", "pull", "push"]

_PUSH = TableCall.PUSH  # to ask an enum each time costs 70 ns


class RemoteTable(Configured):
    """Rows of ``dim`` floats by int64 id, with the state of their optimizer, on the servers.

    Every trainer makes it, with the same arguments, after :func:`paddlempi.ps.init`. Which server
    has a row follows from a hash of its id. What a new row holds follows from ``seed`` and its id
    alone, whatever the number of servers.

    Args:
        name: a text, of 255 bytes at most, that no other table has. Tables of one name are one.
        dim, optimizer, initializer, dtype, seed, num_ids, non_finite: as for
            :class:`paddlempi.ps.Table`.
        memory_limit: the bytes that the table may hold on each server. None: no limit. With one of
            the next three, there is one server.
        admit_after: a row is made at the push that is the so-many-th with its id; gradients of
            earlier ones are dropped. None: at the first touch.
        expire_after: a row that no push had for more than so many steps of the table is removed.
            None: none is.
        max_rows: the most rows of the table, on all servers together: server i of S has room for
            ``max_rows // S``, and for one more if i is below ``max_rows % S``. Pushes of new ids
            remove rows whose last push is longest ago. None: no limit. With any of these three,
            only pushes and writes make rows.

    Raises:
        NotInitializedError: before :func:`paddlempi.ps.init`.
        ArgumentError: this rank does not train, or a value is out of range.
        MismatchError: there is a table of the name with another configuration.
        DtypeError: an argument is of a wrong type.

    Thread-safety: all methods may be called from any thread, and release the GIL. Pulls run side by
    side. A trainer makes one step at a time: a push waits until that of another thread has ended.
    In a signal handler that has interrupted a push of its own thread, a push raises ReentrantError.
    """

    def __init__(
        self,
        name: str,
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
        found = session.as_trainer("ps.RemoteTable")
        if not isinstance(name, str):
            raise DtypeError(f"ps.RemoteTable: name={name!r} is no text")
        self._name = name
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
        self._number = self._declare()
        found.empty = found.empty or (self._number, self.dim)
        self.learning_rate: float | None = None
        """That of the pushes, such as the value of a schedule. None: the optimizer's, or what
        :func:`paddlempi.ps.set_learning_rate` has set. In sync mode it is the same on all
        trainers. RemoteTables of one name that are in the same step have the same one, or the step
        is an ArgumentError."""

    def _declare(self) -> int:
        number: int = _native.control(
            "ps_declare", name=self._name, by="hash", **self._config.request()
        )["table"]
        return number

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._name

    def pull(self, ids: Any, out: Any = None, *, missing: str | None = None) -> Any:
        """Copy the rows of ids, and make those that are missing, or say what these would be.

        A pull with ``missing="initial"`` or ``"zeros"`` is a *lookup*: it makes nothing on the
        servers, keeps no backup in dc_asgd mode, is not the pull of which the staleness of a push
        is counted, and does not wait for slower trainers in ssp mode. In geo mode rows that this
        trainer has pushed since the last exchange come from its copy, as in any pull.

        In sync mode it waits until the steps that this trainer has pushed are applied, also where
        a push was given up: by Ctrl-C, or with TimeoutError.

        Args, Returns, Raises: as for :meth:`paddlempi.ps.Table.pull`, but ``out`` is of
        float32, and

        Raises:
            TimeoutError: a server did not answer in time, or other trainers did not push.
            PeerDiedError: a server has died.
        """
        call = call_of("pull", missing)
        if out is None:
            shape = (length_of("pull", ids), self.dim)
            out = memory.empty(shape, framework=memory.framework_of(ids))
        self._core.table(call, self._number, checked_ids("pull", ids), out)
        return out

    def push(self, ids: Any, gradients: Any = None, learning_rate: float | None = None) -> None:
        """Update the rows of ids by their gradients. This is one step of this trainer.

        In sync mode the gradients of all trainers for the step are added up. A program whose step
        pushes several tables calls :func:`push` or :func:`paddlempi.ps.step` instead.

        Args:
            ids, gradients: as for :meth:`paddlempi.ps.Table.push`.
            learning_rate: for this push. None: ``self.learning_rate``.

        Raises:
            ArgumentError: a shape is wrong, an id is out of range, a gradient is not finite, or
                ``learning_rate`` is negative or not finite.
            DtypeError: a dtype is wrong, or something is no tensor.
            TimeoutError: in sync mode, trainers did not push the same step in time: ``ranks`` has
                them. Or a server did not answer in time: ``ranks`` has it.
            ReentrantError: a signal handler calls it that has interrupted a push of its thread.
            PeerDiedError: a server has died.
        """
        if gradients is None:
            ids, gradients = rows_of(ids)
        if learning_rate is None:
            learning_rate = self.learning_rate
        rate = rate_of("push", learning_rate)
        sender = session.sender()
        if sender is not None:
            sender.push([(self._number, checked_ids("push", ids), gradients, rate)])
        else:
            kept = checked_ids("push", ids)
            self._core.table(_PUSH, self._number, kept, gradients, None, rate, 0)
        note_progress()

    def write(self, ids: Any, rows: Any) -> None:
        """Set rows. The states of rows that exist stay as they are. This is no step.

        One trainer writes, and the others wait in :func:`paddlempi.ps.barrier`.

        Args:
            ids: a tensor of int64 or int32, [n], in which no id appears twice.
            rows: a tensor of float32, [n, dim].

        Raises:
            ArgumentError: also if a row is not finite, unless ``non_finite`` is "allow".
            Error: as :meth:`push`.
        """
        session.flush()  # what was pushed before comes before
        self._core.table(TableCall.WRITE, self._number, checked_ids("write", ids), rows)

    def read_states(self, ids: Any) -> tuple[Any, int]:
        """Return what the optimizer has of rows, of those without a row what it has at first.

        It makes no rows. In mode geo it is what this trainer's optimizer has.

        Args:
            ids: a tensor of int64 or int32, [n].

        Returns:
            A new tensor of float32, [n, floats of a state], and how many steps the table has made.
            ``docs/ps-reference.md`` says what is in a state.

        Raises:
            ArgumentError: the optimizer has no states.
            Error: as :meth:`pull`.
        """
        session.flush()
        width = self.optimizer.state_width(self.dim)
        shape = (length_of("read_states", ids), width)
        out = memory.empty(shape, framework=memory.framework_of(ids))
        checked = checked_ids("read_states", ids)
        steps = self._core.table(TableCall.READ_STATES, self._number, checked, None, out)
        return out, steps

    def write_states(self, ids: Any, states: Any, steps: int) -> None:
        """Set what the optimizer has of rows. Rows that are missing are made. This is no step.

        One trainer writes, and the others wait in :func:`paddlempi.ps.barrier`. In mode geo each
        trainer writes what its own optimizer has.

        Args:
            ids: a tensor of int64 or int32, [n], in which no id appears twice.
            states: a tensor of float32, [n, floats of a state].
            steps: how many steps the table has made from now on. Adam's bias correction depends on
                it, unless it is that of the row.

        Raises:
            ArgumentError: the optimizer has no states, or ``steps`` is negative.
            Error: as :meth:`write`.
        """
        session.flush()
        count = from_zero("write_states", "steps", steps)
        checked = checked_ids("write_states", ids)
        code = TableCall.WRITE_STATES
        self._core.table(code, self._number, checked, None, states, None, count)

    def prefetch(self, ids: Any, *, missing: str | None = None) -> Prefetched:
        """Pull the rows of ids in a thread, while the program computes.

        In sync mode the rows are those after the steps that this trainer has pushed before this
        call. So call it after the step to get what :meth:`pull` would give, or before the step to
        save more time, with rows that are one step older.

        Args:
            ids: as for :meth:`pull`. Do not write to it before the rows are there.
            missing: as for :meth:`pull`.

        Returns:
            An object whose ``wait()`` gives the rows.
        """
        call_of("prefetch", missing)
        return start(ids, lambda: self.pull(ids, missing=missing))

    def __len__(self) -> int:
        """The number of rows on all servers, which are asked for it. Trainers go on meanwhile."""
        found = session.stats()["servers"]
        return sum(one["rows"] for at in found for one in at["tables"] if one["name"] == self._name)

    def __bool__(self) -> bool:
        return True  # also without rows, and without asking

    def __copy__(self) -> RemoteTable:
        return self

    def __deepcopy__(self, memo: object) -> RemoteTable:
        return self

    def __reduce__(self) -> Any:
        return _again, (self._name, self._config)

    def __repr__(self) -> str:
        config = self._config
        return (
            f"RemoteTable({self._name!r}, dim={config.dim}, {config.optimizer}, "
            f"{config.initializer}, dtype={config.dtype})"
        )


def _again(name: str, config: TableConfig) -> RemoteTable:
    """Make the table of a pickle: the name and the configuration, not the rows."""
    if not session.is_begun():
        raise NotInitializedError(
            f"ps.RemoteTable: the pickle of table {name!r} needs ps.init() in this process. A "
            "DataLoader's worker has none: give it ids, not layers or tables"
        )
    return RemoteTable(
        name,
        config.dim,
        config.optimizer,
        config.initializer,
        dtype=config.dtype,
        seed=config.seed,
        num_ids=config.num_ids,
        memory_limit=config.memory_limit,
        non_finite=config.non_finite,
        admit_after=config.admit_after,
        expire_after=config.expire_after,
        max_rows=config.max_rows,
    )


def pull(requests: Sequence[tuple[RemoteTable, Any]], *, missing: str | None = None) -> list[Any]:
    """Pull rows of several tables in one request to each server.

    Args:
        requests: tables, each once, and their ids, as for :meth:`RemoteTable.pull`.
        missing: as for :meth:`RemoteTable.pull`.

    Returns:
        The rows for each request, in order.

    Raises:
        Error: as :meth:`RemoteTable.pull`.
    """
    session.as_trainer("ps.pull")
    call = call_of("ps.pull", missing)
    entries = []
    for table, ids in _checked("ps.pull", requests, "ids"):
        shape = (length_of("ps.pull", ids), table.dim)
        rows = memory.empty(shape, framework=memory.framework_of(ids))
        entries.append((table._number, ids, rows, None))
    if entries:
        _native.load().tables(call, tuple(entries))
    return [rows for _, _, rows, _ in entries]


def pull_into(requests: Iterable[tuple[RemoteTable, Any, Any, str | None]]) -> None:
    """Pull rows of tables into tensors. Tables that are named once are in one request.

    Args:
        requests: tables, their ids, room for the rows, and ``missing``, as for
            :meth:`RemoteTable.pull`. Those of another ``missing`` are in another request.
    """
    left = list(requests)
    while left:
        now: dict[int, tuple[int, Any, Any, None]] = {}
        later = []
        call = call_of("ps.prefetch", left[0][3])
        for one in left:
            table, ids, rows, missing = one
            if table._number in now or call_of("ps.prefetch", missing) != call:
                later.append(one)
            else:
                now[table._number] = (table._number, ids, rows, None)
        _native.load().tables(call, tuple(now.values()))
        left = later


def _checked(what: str, requests: Any, *names: str) -> list[Any]:
    """Return requests as a list of tuples of a table and what ``names`` says.

    Raises:
        DtypeError: they are something else.
    """
    taken = list(requests) if isinstance(requests, Iterable) else [requests]
    for one in taken:
        fits = isinstance(one, (tuple, list)) and len(one) == 1 + len(names)
        if not fits or not isinstance(one[0], RemoteTable):
            raise DtypeError(
                f"{what}: a request is ({', '.join(('RemoteTable', *names))}), not {one!r:.100}"
            )
    return taken


def push(requests: Sequence[tuple[RemoteTable, Any, Any]]) -> None:
    """Push gradients of several tables in one request, which is one step of this trainer.

    In sync mode a trainer that has nothing to push in a step pushes an empty list: the others wait
    for it.

    Args:
        requests: tables, each once, with their ids and gradients, as for :meth:`RemoteTable.push`.

    Raises:
        Error: as :meth:`RemoteTable.push`.
    """
    found = session.as_trainer("ps.push")
    entries = [
        (table._number, checked_ids("ps.push", ids), rows, rate_of("ps.push", table.learning_rate))
        for table, ids, rows in _checked("ps.push", requests, "ids", "gradients")
    ]
    if not entries and found.empty is not None:
        number, dim = found.empty
        entries = [(number, memory.empty(0, "int64"), memory.empty((0, dim)), None)]
    if entries and found.sender is not None:
        found.sender.push(entries)
    elif entries:
        _native.load().tables(_PUSH, tuple(entries))
    note_progress()


session.before_complete(finish)
