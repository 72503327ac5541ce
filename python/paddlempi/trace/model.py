"""What a timeline has in memory: the ranks, the groups, and all operations as one array.

Times are nanoseconds since 1970 on one clock: that of the first host, once ``clock.align`` has
shifted the others. 0 says that an operation did not come so far.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ASYNC", "MESSAGE", "OPERATION", "REFUSING", "Group", "Names", "Rank", "Timeline"]

ASYNC = 1  # bits of the flags: the caller does not wait inside of its call
MESSAGE = 2  # no collective
REFUSING = 4  # the rank takes part in the arrival only: its own arguments are wrong

OPERATION = np.dtype(
    [
        ("rank", "i4"),  # of the world
        ("number", "u8"),  # counts the operations of the process
        ("group", "i4"),  # place in Timeline.groups, -1: not known
        ("seq", "i8"),  # number of a collective in its group, -1: none
        ("name", "i2"),  # place in Names.operations
        ("dtype", "i2"),  # place in Names.dtypes, -1: none
        ("reduce", "i2"),  # place in Names.reduce_ops, -1: none
        ("algorithm", "i2"),  # place in Names.algorithms, -1: not known
        ("outcome", "i2"),  # place in Names.outcomes, -1: under way
        ("flags", "i2"),
        ("root", "i4"),  # rank of the group, -1: none
        ("count", "i8"),  # elements, as the operation's signature has them; -1: see nbytes
        ("nbytes", "i8"),  # count x bytes of the dtype; this rank's if shares differ in length
        ("detail", "u8"),
        ("peers", "i4", 2),  # of a message: ranks of the group, -1: any, or no second one
        ("tags", "i4", 2),
        ("submitted", "i8"),
        ("begun", "i8"),  # announced; of a message: MPI was called
        ("arrived", "i8"),  # all members had announced it; 0 where that took some microseconds only
        ("waited", "i8"),  # when the caller began to wait; 0: inside of its call, or never
        ("ended", "i8"),
    ]
)


@dataclasses.dataclass(frozen=True)
class Names:
    """The words that the columns of operations count."""

    operations: tuple[str, ...]
    dtypes: tuple[str, ...]
    reduce_ops: tuple[str, ...]
    algorithms: tuple[str, ...]
    outcomes: tuple[str, ...]  # the first is "ok"


@dataclasses.dataclass(frozen=True)
class Group:
    """A group; its key is the same on all members, and differs between groups of equal ranks."""

    key: str
    ranks: tuple[int, ...]  # the world rank of every member


@dataclasses.dataclass(frozen=True)
class Rank:
    """A process that was recorded.

    Attributes:
        boot: of the kernel: ranks with the same one share their clock.
        state: running, stopped or ended, when the recording ended.
        began, taken: from when to when it was recorded.
        lost: operations that the recording missed: overwritten before they were read, or without
            a place in the ring.
        thinned: operations that were left out by the rule that Timeline.warnings says.
        ended: when its process ended, as the collector saw it; 0: it did not.
        problem: why it has no operations, "" if it has them.
    """

    rank: int
    size: int
    host: str
    boot: str
    pid: int
    state: str
    began: int
    taken: int
    lost: int
    job: str
    generation: int = 0
    ended: int = 0
    problem: str = ""
    thinned: int = 0


@dataclasses.dataclass
class Timeline:
    """A recording of a job.

    Attributes:
        ranks: by rank of the world.
        groups: of all ranks, each once.
        operations: rows of OPERATION, ordered by submitted.
        clocks: how the hosts' clocks were shifted, as ``clock.align`` says it; None before.
        warnings: what could not be read, or was left out, in sentences.
    """

    ranks: dict[int, Rank]
    groups: tuple[Group, ...]
    operations: npt.NDArray[Any]
    names: Names
    clocks: Any = None
    warnings: list[str] = dataclasses.field(default_factory=list)

    def frame(self) -> Any:
        """Return the operations as a pandas.DataFrame, with words in place of their numbers.

        Its columns are those of OPERATION; ``peers`` and ``tags`` are two each: ``peer``,
        ``peer2``, ``tag``, ``tag2``. A word that is not known is None.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError:
            raise ImportError("Timeline.frame() needs pandas: pip install pandas") from None
        words = {
            "name": self.names.operations,
            "dtype": self.names.dtypes,
            "reduce": self.names.reduce_ops,
            "algorithm": self.names.algorithms,
            "outcome": self.names.outcomes,
        }
        columns: dict[str, npt.NDArray[Any]] = {}
        for name in OPERATION.names or ():
            values = self.operations[name]
            if name in words:
                columns[name] = np.array([*words[name], None], object)[values]
            elif name in ("peers", "tags"):
                columns[name[:-1]], columns[f"{name[:-1]}2"] = values[:, 0], values[:, 1]
            else:
                columns[name] = values
        return pandas.DataFrame(columns)
