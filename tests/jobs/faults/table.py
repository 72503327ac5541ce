"""The matrix: which fault is injected into which operations, and what must come of it.

A cell counts only if its outcome, or the wait that it is injected into, differs from those of the
others. So most faults have no cell for some classes of operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

FRONTS = {"DDP step": "torch", "Paddle step": "paddle"}
EDGES = ("init", "destroy", "exit")
CLASSES = (
    "arrival",
    "small",
    "large",
    "large by MPI",
    "message",
    "object",
    "new group",
    "asynchronous",
    "DDP step",
    "Paddle step",
    *EDGES,
)


@dataclass(frozen=True)
class Outcome:
    """What must come of a fault.

    ``victim`` and ``others`` are what their operation comes to: "right" or the class of an error;
    several are separated by |. "" says that there need be no report. ``group`` and ``world`` are
    what a later operation comes to, of the group of the fault and of the world. After a death
    ``world`` is a group without the victim, and ``new`` a new one.
    """

    text: str
    victim: str = "right"
    others: str = "right"
    named: bool = False
    group: str = "right"
    world: str = "right"
    new: str = "right"
    status: str = "0"
    stays: bool = False
    says: tuple[str, ...] = ()
    """What the output has."""
    words: tuple[str, ...] = ()
    """What the errors of the others have in their text."""

    @property
    def ends_job(self) -> bool:
        """Whether the job is to end soon after the fault."""
        return self.others == ""


RIGHT = Outcome("right values on all ranks; the group and the world go on")
MISMATCH = Outcome(
    "`MismatchError` on all ranks, which names the victim; the group goes on",
    "MismatchError",
    "MismatchError",
    named=True,
)
REFUSED = Outcome(
    "the victim raises its own error, the others `RefusedError`, which names it; the group goes on",
    "ArgumentError|DtypeError|OutOfMemoryError|MemoryError|PicklingError|AttributeError",
    "RefusedError",
    named=True,
)
TRUNCATED = Outcome(
    "`TruncateError` on the receivers, which names the victim; the group goes on",
    others="TruncateError",
    named=True,
)
TIMEOUT = Outcome(
    "`TimeoutError` on the others, which names the victim; the victim is told when it comes; the "
    "world goes on",
    "GroupBrokenError|TimeoutError",
    "TimeoutError",
    named=True,
    group="GroupBrokenError",
)
UNNAMED = Outcome(
    "`TimeoutError` on the others: what MPI carries out names no rank; the world goes on",
    "GroupBrokenError|TimeoutError",
    "TimeoutError|GroupBrokenError",
    group="GroupBrokenError",
)
UNMET = Outcome(
    "`TimeoutError` on all ranks, which names those that did not come; the world goes on",
    "TimeoutError",
    "TimeoutError",
    named=True,
)
ALONE = Outcome(
    "the victim raises its own error, the others `TimeoutError`, which names it; the world goes on",
    "ArgumentError",
    "TimeoutError",
    named=True,
)
INTERRUPTED = Outcome(
    "`KeyboardInterrupt` on the victim, `GroupBrokenError` on the others, which names it; the "
    "world goes on",
    "KeyboardInterrupt",
    "GroupBrokenError",
    named=True,
    group="GroupBrokenError",
)
RUBBISH = Outcome(
    "an error on the others, which names the victim; the world goes on",
    others="GroupBrokenError|MismatchError|RefusedError",
    named=True,
)
INTERRUPTED_ALONE = Outcome(
    "`KeyboardInterrupt` on the victim; the operation goes on, with right values on the others "
    "(torch makes a `RuntimeError` of it)",
    "KeyboardInterrupt|RuntimeError",
)
INTERRUPTED_FIRST = Outcome(
    "`KeyboardInterrupt` on the victim, `TimeoutError` on the others, which names it; the world "
    "goes on",
    "KeyboardInterrupt",
    "TimeoutError",
    named=True,
)
REENTRANT = Outcome(
    "`ReentrantError` in the handler; the interrupted operation has right values", "ReentrantError"
)
DIED = Outcome(
    "`PeerDiedError` on the others, which names the victim; other groups go on, and new ones",
    "",
    "PeerDiedError|ProcFailedError",
    named=True,
    group="GroupBrokenError|PeerDiedError|ProcFailedError",
    status="any",
    stays=True,
)
DIED_APART = replace(
    DIED,
    text="`PeerDiedError` on the others, which names the victim, or ULFM's `ProcFailedError`, also "
    "in other groups",
    group="GroupBrokenError|PeerDiedError|ProcFailedError|PeerLeftError",
    world="right|PeerDiedError|ProcFailedError",
    # ULFM makes no communicator of a world with a dead rank
    new="right|PeerDiedError|ProcFailedError",
)
DIED_IN_TORCH = replace(
    DIED,
    text="an error on the others, whose text has the `PeerDiedError` (torch makes a `RuntimeError` "
    "of it); other groups go on, and new ones",
    others="RuntimeError|PeerDiedError|DistBackendError",
    named=False,
    words=("[2] died",),
)
CUT = Outcome(
    "`PeerDiedError` on both sides of the cut, which names ranks of the other side; groups of one "
    "side go on",
    "PeerDiedError",
    "PeerDiedError",
    named=True,
    group="GroupBrokenError|PeerDiedError",
    status="any",
)
HOST_DIED = Outcome("the launcher ends the job, some with status 0", "", "", status="any")
LEFT = Outcome(
    "`PeerLeftError` on the others, or `GroupBrokenError` with its text; other groups go on",
    "",
    "PeerLeftError|GroupBrokenError",
    group="GroupBrokenError|PeerLeftError",
    status="any",
    words=("[2]", "ended"),
)
LEFT_NAMED = Outcome(
    "`PeerLeftError` on the others, which names the victim; other groups go on",
    "",
    "PeerLeftError",
    named=True,
    group="PeerLeftError",
    status="any",
)
ENDED = Outcome("the launcher ends the job", "", "", status="not 0")
ENDED_QUIETLY = Outcome("the launcher ends the job, sometimes with status 0", "", "", status="any")
ENDED_ALONE = Outcome(
    "the others end within seconds, or the launcher ends them", "", "", status="not 0"
)
ABORTED = Outcome(
    "the job ends with the victim's traceback",
    "",
    "",
    status="not 0",
    says=("the fault of the victim",),
)
EXITED = Outcome("the job ends with the victim's status", "", "", status="not 0")
INTERRUPTED_ALL = Outcome(
    "the job ends with a `KeyboardInterrupt`", "", "", status="not 0", says=("KeyboardInterrupt",)
)

NEVER_STRUCK = ("wrong group",)


@dataclass(frozen=True)
class Cell:
    """One fault, injected into one class of operations."""

    fault: str
    operation: str
    outcome: Outcome
    nodes: int = 1
    most: float = 20.0
    """Seconds from the fault to what comes of it, at the most."""
    limit: float = 60.0
    """The deadline of the group's operations."""
    warm: bool = True
    """Whether operations of the class come before."""
    other: dict[str, Outcome] = field(default_factory=dict, hash=False, compare=False)
    """Other outcomes under some MPIs."""

    @property
    def name(self) -> str:
        return f"{self.fault} - {self.operation}" + (" - two nodes" if self.nodes == 2 else "")

    @property
    def front(self) -> str:
        return FRONTS.get(self.operation, "numpy")

    @property
    def kind(self) -> str:
        """How its job runs: many cells one after the other, or one."""
        if self.operation in EDGES:
            return "edge"
        return "ending" if self.fault in ENDING else "usable"

    @property
    def in_ci(self) -> bool:
        return self in CI

    def runs_with(self, mpi: str) -> bool:
        if (mpi.removeprefix("debian-"), self.fault, self.operation) in ENDLESS:
            return False
        return not (self.nodes == 2 and mpi.startswith("debian"))

    def outcome_with(self, mpi: str) -> Outcome:
        for name in (mpi, mpi.removeprefix("debian-")):
            if name in self.other:
                return self.other[name]
        if self.outcome.stays and (mpi.endswith("mpich") or (self.nodes == 2 and mpi == "impi")):
            return ENDED_QUIETLY if self.fault == "os._exit(0)" else ENDED
        return self.outcome


ENDLESS = (
    ("mpich", "exception", "init"),
    ("impi", "exception", "init"),
    ("impi", "kill -9", "init"),
)
"""Deaths before MPI_Init that the launcher does not see: it lets the others wait for ever."""

ENDING = (
    "kill -9",
    "os._exit(0)",
    "exception",
    "exit in a thread",
    "mpi4py finalizes MPI",
    "Ctrl-C to all",
    "a cut cable",
    "a cut and healed cable",
    "a host dies",
)

NUMPY = CLASSES[:8]
LOOPS = ("small", "large", "message", "object", "new group", "asynchronous")
STEPS = ("DDP step", "Paddle step")


def cells(fault: str, outcome: Outcome, *operations: str, **more: object) -> Iterator[Cell]:
    for operation in operations:
        yield Cell(fault, operation, outcome, **more)  # type: ignore[arg-type]


def _one_node() -> Iterator[Cell]:
    # All ranks go on.
    yield from cells(
        "late by 3 s", RIGHT, *LOOPS, "large by MPI", *STEPS, "init", "destroy", "exit"
    )
    deadline = {"limit": 1.0}
    yield from cells(
        "late, deadline 1 s", TIMEOUT, "small", "large", "object", "asynchronous", **deadline
    )
    yield from cells("SIGSTOP and CONT", RIGHT, *LOOPS, "large by MPI", *STEPS, "init", "exit")
    yield from cells("SIGSTOP and CONT, deadline 1 s", TIMEOUT, "small", "large", **deadline)
    yield from cells("SIGSTOP and CONT, deadline 1 s", UNNAMED, "asynchronous", **deadline)
    yield from cells("wrong shape", MISMATCH, "small", "large", "asynchronous")
    yield from cells("wrong shape", TRUNCATED, "message")
    yield from cells("wrong dtype", MISMATCH, "small", "large")
    yield from cells("wrong op", MISMATCH, "small", "large", "object")
    yield from cells("wrong root", MISMATCH, "small", "object")
    yield from cells("wrong order", MISMATCH, "asynchronous")
    yield from cells("wrong order", UNMET, "new group", **deadline)
    yield from cells("wrong argument", REFUSED, "small", "large", "object", "asynchronous", "init")
    yield from cells("wrong argument", ALONE, "new group", **deadline)
    yield from cells("wrong group", TIMEOUT, "small", "large", **deadline)
    yield from cells("wrong group", UNMET, "new group", **deadline)
    yield from cells("a handler's collective", REENTRANT, "small", "asynchronous")
    yield from cells(
        "fork in the middle",
        RIGHT,
        "small",
        "message",
        "object",
        "new group",
        "asynchronous",
        *STEPS,
        "exit",
    )
    yield from cells("sys.exit in a thread", RIGHT, "small", "new group", "destroy", "exit")
    yield from cells("Ctrl-C to one", INTERRUPTED, "small", "large", "large by MPI", "object")
    yield from cells("Ctrl-C to one", INTERRUPTED_ALONE, "message", "asynchronous", *STEPS)
    yield from cells("Ctrl-C to one", INTERRUPTED_FIRST, "new group", limit=5.0)
    yield from cells("no memory", RIGHT, "large", "asynchronous", "new group", warm=False)
    yield from cells("no descriptors", RIGHT, "large", "new group", "asynchronous", warm=False)
    yield from cells("a corrupted slot", RUBBISH, "small", limit=5.0)
    # A rank ends.
    yield from cells("kill -9", DIED, "arrival", *LOOPS, "large by MPI", "Paddle step")
    yield from cells("kill -9", DIED_IN_TORCH, "DDP step")
    yield from cells("kill -9", ENDED, "init")
    yield from cells("kill -9", ENDED_ALONE, "destroy", "exit")
    yield from cells("os._exit(0)", DIED, "message", "asynchronous", "new group", "Paddle step")
    yield from cells("os._exit(0)", DIED_IN_TORCH, "DDP step")
    yield from cells("os._exit(0)", ENDED, "arrival")
    yield from cells("exception", ABORTED, "arrival", *LOOPS, *STEPS, *EDGES)
    yield from cells(
        "exit in a thread", EXITED, "arrival", "large", "asynchronous", "message", "destroy"
    )
    yield from cells("mpi4py finalizes MPI", LEFT, "arrival", "message", "asynchronous")
    yield from cells("mpi4py finalizes MPI", LEFT_NAMED, "new group", limit=2.0)
    yield from cells("Ctrl-C to all", INTERRUPTED_ALL, *LOOPS, "large by MPI", *STEPS)


def _two_nodes() -> Iterator[Cell]:
    two = {"nodes": 2}
    deadline = {"limit": 1.0, "nodes": 2}
    yield from cells("late by 3 s", RIGHT, "small", "message", "new group", "asynchronous", **two)
    yield from cells("late, deadline 1 s", TIMEOUT, "small", "asynchronous", **deadline)
    yield from cells("SIGSTOP and CONT", RIGHT, "small", "large", "message", **two)
    yield from cells("wrong shape", MISMATCH, "small", "asynchronous", **two)
    yield from cells("wrong root", MISMATCH, "small", **two)
    yield from cells("wrong argument", REFUSED, "small", "object", **two)
    yield from cells("Ctrl-C to one", INTERRUPTED, "small", **two)
    yield from cells(
        "kill -9",
        DIED_APART,
        "arrival",
        "small",
        "large",
        "message",
        "object",
        "asynchronous",
        **two,
    )
    yield from cells(
        "a cut cable", CUT, "small", "large", "message", "new group", "asynchronous", **two
    )
    yield from cells(
        "a cut and healed cable", RIGHT, "small", "large", "message", "asynchronous", **two
    )
    yield from cells("a host dies", HOST_DIED, "small", "message", **two)


CELLS = (*_one_node(), *_two_nodes())

# CI runs all cells of NumPy's operations that leave the world usable, in one job, but for those
# that take long and are like another; and these.
LONG = ("SIGSTOP and CONT", "late by 3 s", "Ctrl-C to one", "no descriptors")
CHOSEN = {
    ("late by 3 s", "asynchronous"),
    ("SIGSTOP and CONT", "large"),
    ("Ctrl-C to one", "small"),
    ("Ctrl-C to one", "message"),
    ("no descriptors", "large"),
    ("SIGSTOP and CONT", "Paddle step"),
    ("fork in the middle", "Paddle step"),
    ("Ctrl-C to one", "DDP step"),
    ("fork in the middle", "DDP step"),
    ("kill -9", "arrival"),
    ("kill -9", "small"),
    ("kill -9", "large"),
    ("kill -9", "large by MPI"),
    ("kill -9", "message"),
    ("kill -9", "new group"),
    ("kill -9", "asynchronous"),
    ("kill -9", "exit"),
    ("kill -9", "Paddle step"),
    ("os._exit(0)", "arrival"),
    ("exception", "init"),
    ("exception", "object"),
    ("exception", "destroy"),
    ("exit in a thread", "asynchronous"),
    ("mpi4py finalizes MPI", "arrival"),
    ("mpi4py finalizes MPI", "new group"),
    ("Ctrl-C to all", "large by MPI"),
    ("late by 3 s", "exit"),
    ("wrong argument", "init"),
}
CHOSEN_APART = {
    ("late, deadline 1 s", "small"),
    ("SIGSTOP and CONT", "small"),
    ("wrong shape", "small"),
    ("wrong argument", "object"),
    ("kill -9", "asynchronous"),
    ("a cut cable", "small"),
    ("a cut and healed cable", "small"),
    ("a host dies", "small"),
}


def _is_in_ci(cell: Cell) -> bool:
    pair = (cell.fault, cell.operation)
    if cell.nodes == 2:
        return pair in CHOSEN_APART
    return pair in CHOSEN or (
        cell.kind == "usable" and cell.front == "numpy" and cell.fault not in LONG
    )


CI = frozenset(filter(_is_in_ci, CELLS))
