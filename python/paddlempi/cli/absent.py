"""Ranks that end before they come to ``init_process_group``, while the others wait for them there.

MPI tells of a death only when it runs. So a launcher that leaves the survivors alone leaves them in
MPI_Init for ever. ``run`` looks for this from outside, among the processes of this host.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from paddlempi_bootstrap.known_launchers import BY_PROCESS, KINDS

from .. import _processes
from . import marks as marks_of

__all__ = ["Absent"]


class _Rank(NamedTuple):
    """A process of this host that the launcher has started as a rank."""

    rank: int
    pid: int
    alone: bool
    """All ranks of the job are on this host."""
    size: int


class Absent:
    """Watches an attempt until all its ranks have come to ``init_process_group``.

    Args:
        job: the mark of the job's processes (:mod:`paddlempi._processes`).
        folder: the marks of the ranks.
        limit: for how many seconds the others wait before :meth:`look` tells of it.
    """

    def __init__(self, job: str, folder: Path, limit: float) -> None:
        self.over = False  # all ranks have come
        self._job, self._folder, self._limit = job, folder, limit
        self._seen: dict[int, _Rank] = {}
        self._missing_since: dict[int, float] = {}

    def look(self) -> str:
        """Say which ranks have ended before they came, if others have waited for the limit."""
        marks = marks_of.read(self._folder, begun=False)
        came = {mark.rank for mark in marks if mark.rank >= 0}
        self.over = any(0 < mark.size <= len(came) for mark in marks)
        missing: set[int] = set()
        if not self.over and any(mark.coming for mark in marks):
            pids = _processes.marked(self._job)
            here = os.uname().nodename
            if any(mark.coming and (mark.host != here or mark.pid in pids) for mark in marks):
                missing = self._missing(pids, came)
        now = time.monotonic()
        self._missing_since = {rank: self._missing_since.get(rank, now) for rank in missing}
        late = [rank for rank, since in self._missing_since.items() if now - since >= self._limit]
        return _sentence([self._name(rank) for rank in sorted(late)], self._limit) if late else ""

    def _missing(self, pids: Sequence[int], came: set[int]) -> set[int]:
        """Return the ranks of this host whose processes have ended, and that have not come."""
        here = {found.rank: found for found in _ranks(pids)}
        self._seen = {**here, **self._seen}
        # A rank may have ended before it was seen. Only where all are here it is known to be one.
        known = self._seen.values()
        expected = set(self._seen).union(*(range(one.size) for one in known if one.alone))
        living = {one.rank for one in known if one.pid in pids}
        return expected - living - came

    def _name(self, rank: int) -> str:
        seen = self._seen.get(rank)
        return f"rank {rank} (process {seen.pid})" if seen else f"rank {rank}"


def _sentence(names: Sequence[str], limit: float) -> str:
    have = "have" if len(names) > 1 else "has"
    return (
        f"{', '.join(names)} {have} ended without having come to init_process_group, where others "
        f"have waited for {limit:g} s (--init-wait)"
    )


def _ranks(pids: Sequence[int]) -> Iterator[_Rank]:
    """Yield the ranks among processes of a job: children of a launcher that has numbered them."""
    for pid in pids:
        # It may have just ended, or may not be read.
        with suppress(OSError, ValueError, IndexError):
            parent, name = _parent(pid)
            # A launcher that ends may leave ranks behind.
            kinds = [BY_PROCESS[name]] if name in BY_PROCESS else KINDS if parent == 1 else ()
            entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
            variables = dict(entry.partition("=")[::2] for entry in entries)
            for kind in kinds:
                rank, size, here = (
                    int(next((variables[name] for name in names if name in variables), "-1"))
                    for names in (kind.rank, kind.size, kind.local_size)
                )
                if rank >= 0:
                    yield _Rank(rank, pid, here == size > 0, size)
                    break


def _parent(pid: int) -> tuple[int, str]:
    """Return a process's parent, and its name: that of the executable if it is a launcher's."""
    # pid (name) state parent ...: the name may hold spaces and parentheses.
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    parent = int(stat.rpartition(")")[2].split()[1])
    with suppress(OSError):
        file = os.path.basename(os.readlink(f"/proc/{parent}/exe"))
        if file in BY_PROCESS:
            return parent, file
    return parent, Path(f"/proc/{parent}/comm").read_text(errors="replace").strip()
