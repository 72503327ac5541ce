"""What strikes a job with parameter servers, whom, and in which call; and what is to come of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

TRAINER, SERVER, MASTER = "trainer", "pserver", "master"
KILL, STOP, DISK, CABLE = "kill -9", "SIGSTOP", "full disk", "cut cable"
MOMENTS = ("pull", "push", "save", "restore", "lease", "switch")
MODES = ("sync", "async", "half_async", "geo")

STOPPED = 10.0
"""Seconds that a process is stopped."""

DONE, DIED, LATE = "done", "died", "late"
"""How a rank may end: without an error; with PeerDiedError, or TimeoutError, of the victim."""


@dataclass(frozen=True)
class Cell:
    """One job of two trainers, two servers and a master.

    Attributes:
        victim: a role. A full disk strikes all servers.
        fault: what strikes it.
        moment: what the trainers do meanwhile.
        mode: of the servers.
    """

    victim: str
    fault: str
    moment: str
    mode: str

    @property
    def name(self) -> str:
        return f"{self.fault} - {self.victim} - {self.moment} - {self.mode}"

    @property
    def roles(self) -> list[str]:
        """Return the role of each rank. The victim is the last one."""
        roles = [TRAINER, TRAINER, SERVER, SERVER, MASTER]
        roles.remove(self.victim)
        return [*roles, self.victim]

    @property
    def timeout(self) -> float:
        """Return the timeout of the calls, in seconds."""
        return 8.0 if self.fault == CABLE else 40.0

    def outcomes(self, role: str) -> set[str]:
        """Return how a rank of a role may end that is not the victim."""
        if self.fault in (STOP, DISK):
            return {DONE}
        gone = {DIED} if self.fault == KILL else {DIED, LATE}
        if self.victim == SERVER:
            # The master has nothing to do with servers, and may hear of the death or not.
            return {DONE, *gone} if role == MASTER else gone
        if self.victim == TRAINER and self.moment == "switch" and self.mode in ("sync", "async"):
            return {DONE, *gone}  # the other mode is the other one of these
        if self.victim == TRAINER and self.mode == "sync":
            return {DONE, *gone} if role == MASTER else gone
        if self.victim == MASTER:
            # Trainers learn it by a task, a cut, or at their end.
            return gone if role == TRAINER else {DONE, *gone}
        return {DONE} if self.fault == KILL else {DONE, *gone}


def _all() -> list[Cell]:
    roles = (SERVER, TRAINER, MASTER)
    cells = [
        Cell(victim, fault, moment, mode)
        for fault, victim, moment, mode in product((KILL, STOP, CABLE), roles, MOMENTS, MODES)
    ]
    return cells + [Cell(SERVER, DISK, "save", mode) for mode in MODES]


CELLS = _all()

MORE = [
    *(
        Cell(victim, KILL, moment, mode)
        for victim, moment, mode in (
            (SERVER, "pull", "sync"),
            (SERVER, "push", "geo"),
            (SERVER, "save", "async"),
            (SERVER, "restore", "half_async"),
            (SERVER, "switch", "sync"),
            (SERVER, "lease", "geo"),
            (TRAINER, "push", "sync"),
            (TRAINER, "push", "half_async"),
            (TRAINER, "save", "geo"),
            (TRAINER, "restore", "async"),
            (TRAINER, "lease", "async"),
            (TRAINER, "switch", "half_async"),
            (TRAINER, "pull", "geo"),
            (MASTER, "lease", "sync"),
            (MASTER, "push", "async"),
            (MASTER, "save", "half_async"),
        )
    ),
    Cell(SERVER, STOP, "push", "half_async"),
    Cell(TRAINER, STOP, "switch", "geo"),
    Cell(MASTER, STOP, "lease", "async"),
    Cell(TRAINER, STOP, "save", "sync"),
    Cell(SERVER, DISK, "save", "geo"),
    Cell(SERVER, DISK, "save", "half_async"),
    Cell(SERVER, CABLE, "push", "sync"),
    Cell(TRAINER, CABLE, "pull", "async"),
]
"""Those that `make test-all` has: each fault, role, moment and mode."""

CI = [
    Cell(SERVER, KILL, "pull", "sync"),
    Cell(TRAINER, KILL, "push", "half_async"),
    Cell(MASTER, KILL, "push", "async"),
    Cell(TRAINER, STOP, "switch", "geo"),
    Cell(SERVER, DISK, "save", "geo"),
    Cell(SERVER, CABLE, "push", "sync"),
]
"""Those that every run of CI has: each fault, role and mode."""
