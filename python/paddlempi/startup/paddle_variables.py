"""Paddle's variables of the rank, with the numbers of the MPI's launcher: :data:`PADDLE`.

Nothing here starts MPI. :func:`paddlempi_bootstrap.mpi_launcher.find` returns the launcher and this
process's place.

Thread-safety: call from one thread only, because the environment of the process changes.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from paddlempi_bootstrap.mpi_launcher import Place

from .. import _processes

__all__ = ["PADDLE", "Variables"]


class Variables:
    """Environment variables that this module sets to the launcher's numbers if the user has not.

    Child processes inherit the variables. One more variable, the mark, tells them which variables
    were set here, in which job and by which process, and whether that process runs MPI. Therefore

    * a new job that this process starts gets the values of that job;
    * another program that a rank starts while MPI runs gets no values, because it is no rank;
    * a worker of ``multiprocessing`` keeps the values of its parent.

    Args:
        mark: the name of the mark.
        table: for each variable the number that it has: ``"rank"``, ``"size"``, ``"local_rank"``
            or ``"local_size"``.
    """

    def __init__(self, mark: str, table: Mapping[str, str]) -> None:
        self._mark = mark
        self.table = table

    def fill(self, launcher: Place | None) -> bool:
        """Set the variables that the user has not set to the launcher's numbers.

        Args:
            launcher: what :func:`paddlempi_bootstrap.mpi_launcher.find` returned. None: unset the
                variables that were set here.

        Returns:
            Whether this process is a rank of the launcher, and not a child of a process that
            filled the variables for the same rank before.
        """
        if launcher is None:
            self.clear()
            return False
        mark, me = self._read(), os.getpid()
        if self.rank_above(launcher):
            if not _processes.is_worker():
                self._unset_ours()
                self._write(mark, ())
            return False
        self._unset_ours()
        numbers = launcher._asdict()
        values = {name: numbers[key] for name, key in self.table.items() if numbers[key] >= 0}
        again = mark.pid == me
        self._set(values, _Mark(launcher.job, me, again and mark.runs_mpi))
        return again or mark.job != launcher.job

    def set_from_mpi(self, numbers: Mapping[str, int], others: Mapping[str, str]) -> None:
        """Set the variables that the user has not set to MPI's numbers, once MPI runs.

        Args:
            numbers: MPI's numbers, by the names that the table uses.
            others: more variables, with their values.
        """
        job = self._read().job
        values: dict[str, object] = {name: numbers[key] for name, key in self.table.items()}
        values.update(others)
        self._unset_ours()
        self._set(values, _Mark(job, os.getpid(), True))

    def is_ours(self, name: str) -> bool:
        """Whether a variable was set by this class, here or in the process it is inherited from."""
        value = os.environ.get(name)
        return value is not None and self._read().sums.get(name) == _sum(value)

    def rank_above(self, launcher: Place | None) -> int:
        """The pid of a process above this one that runs MPI as the launcher's rank; 0: none."""
        mark = self._read()
        same = launcher is not None and bool(mark.job) and mark.job == launcher.job
        return mark.pid if same and mark.runs_mpi and mark.pid != os.getpid() else 0

    def clear(self) -> None:
        """Unset the variables that were set by this class, and the mark."""
        self._unset_ours()
        os.environ.pop(self._mark, None)

    def _set(self, values: Mapping[str, object], mark: _Mark) -> None:
        """Set the variables that are not set, and the mark."""
        unset = [name for name in values if name not in os.environ]
        for name in unset:
            os.environ[name] = str(values[name])
        self._write(mark, unset)

    def _unset_ours(self) -> None:
        for name in self._read().sums:
            if self.is_ours(name):
                del os.environ[name]

    def _read(self) -> _Mark:
        found = re.fullmatch(r"(.*)\|(\d+)\|(mpi|)\|(.*)", os.environ.get(self._mark, ""))
        if found is None:
            return _Mark("", 0, False)
        sums = dict(re.findall(r"(\w+):(\w+)", found[4]))
        return _Mark(found[1], int(found[2]), bool(found[3]), sums)

    def _write(self, mark: _Mark, names: Iterable[str]) -> None:
        entries = " ".join(f"{name}:{_sum(os.environ[name])}" for name in names)
        runs = "mpi" if mark.runs_mpi else ""
        os.environ[self._mark] = f"{mark.job}|{mark.pid}|{runs}|{entries}"


class _Mark(NamedTuple):
    """The content of the mark of a :class:`Variables`."""

    job: str
    pid: int  # of the process that set the variables
    runs_mpi: bool  # whether that process runs MPI
    # For each variable that was set, a checksum of its value: the user may change it later.
    sums: Mapping[str, str] = MappingProxyType({})


def _sum(value: str) -> str:
    return f"{zlib.crc32(value.encode(errors='surrogateescape')):08x}"


PADDLE = Variables(
    "PADDLEMPI_FILLED_PADDLE",
    {
        "PADDLE_TRAINER_ID": "rank",
        "PADDLE_TRAINERS_NUM": "size",
        "PADDLE_GLOBAL_RANK": "rank",
        "PADDLE_GLOBAL_SIZE": "size",
        "PADDLE_LOCAL_RANK": "local_rank",
        "PADDLE_RANK_IN_NODE": "local_rank",
        "PADDLE_LOCAL_SIZE": "local_size",
    },
)
"""The variables of ``paddle.distributed.launch`` whose values an MPI's launcher knows.

They are not in Paddle's front, because ``python -m paddlempi run`` sets them before Paddle is
imported.
"""
