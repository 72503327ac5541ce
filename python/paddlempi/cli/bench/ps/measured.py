"""How contenders take turns, and the figures of each: rows of the output and of the record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..collectives import AGAIN, LEAST_ROUNDS, OURS
from ..figures import Quartiles, quantile, quartiles, ratio_differs, ratios
from ..sampling import shuffled

__all__ = ["WARM", "Call", "Row", "Turn", "head", "line", "summary", "take_turns"]

WARM = 2

Call = Callable[[int], Any]
"""What is measured: a function of the number of the round."""

Times = dict[str, list[float]]
"""By contender, one time in us for each round."""


def _nothing(round_: int) -> None:
    """What most contenders do before a call."""


def _untold(part: float) -> None:
    """What is told of how far it has come, if nobody wants to know."""


@dataclass(frozen=True)
class Turn:
    """What a contender does in a round.

    Attributes:
        calls: by name, in this order.
        begin: is called first. Its time does not count.
        itself: the calls return how long they took, in ns, because they work in another process.
    """

    calls: dict[str, Call]
    begin: Call = _nothing
    itself: bool = False


def take_turns(
    turns: dict[str, Turn],
    rounds: int,
    clock: Callable[[], int] = time.perf_counter_ns,
    show: Callable[[float], None] = _untold,
) -> dict[str, Times]:
    """Measure contenders in turn, and paddlempi once more as a control.

    Args:
        turns: by contender. All have calls of the same names.
        rounds: how many are measured, after WARM others.
        clock: returns ns.
        show: is told before each round which part is done, from 0 to 1.

    Returns:
        The times by the names of the calls, and if there are several, their sum.
    """
    turns = {**turns, AGAIN: turns[OURS]}
    names = list(turns[OURS].calls)
    both = " + ".join(names)
    times: dict[str, Times] = {what: {name: [] for name in turns} for what in [*names, both]}
    for round_ in range(-WARM, rounds):
        show((round_ + WARM) / (rounds + WARM))
        for name in shuffled(list(turns), round_ + WARM):
            turn, total = turns[name], 0.0
            turn.begin(round_)
            for what, call in turn.calls.items():
                before = clock()
                result = call(round_)
                took = (result if turn.itself else clock() - before) / 1e3
                total += took
                if round_ >= 0:
                    times[what][name].append(took)
            if round_ >= 0 and len(names) > 1:
                times[both][name].append(total)
    return times


@dataclass(frozen=True)
class Row:
    """The figures of one contender.

    Attributes:
        case: what was measured, in numbers: the dim, the ids of a batch.
        least_us, p50_us, p99_us: of the times of single calls.
        ratio: quartiles of its times divided by the base's of the same rounds; None for the base.
        least_ratio: its shortest time by the base's shortest, which a busy machine disturbs least.
        differs: whether the two differ (:func:`~..figures.ratio_differs`); None for the base,
            without a control, and for fewer than ten rounds.
    """

    case: dict[str, int]
    what: str
    contender: str
    rounds: int
    least_us: float
    p50_us: float
    p99_us: float
    ratio: Quartiles | None
    least_ratio: float | None
    differs: bool | None

    def record(self) -> dict[str, Any]:
        """Return the row as plain data."""
        values = {key: value for key, value in self.__dict__.items() if key != "case"}
        return self.case | values | {"ratio": None if self.ratio is None else list(self.ratio)}


def summary(case: dict[str, int], what: str, times: Times, base: str = OURS) -> Iterator[Row]:
    """Yield the row of each contender; ``base`` is the one that the others are compared with."""
    ours = times[base]
    control = quartiles(ratios(times[AGAIN], ours)) if AGAIN in times else None
    for name, mine in times.items():
        ratio = None if name == base else quartiles(ratios(mine, ours))
        compared = name not in (base, AGAIN) and len(ours) >= LEAST_ROUNDS
        yield Row(
            case=case,
            what=what,
            contender=name,
            rounds=len(mine),
            least_us=min(mine),
            p50_us=quantile(mine, 0.5),
            p99_us=quantile(mine, 0.99),
            ratio=ratio,
            least_ratio=None if ratio is None else min(mine) / min(ours),
            differs=ratio_differs(ratio, control) if ratio and control and compared else None,
        )


def head(row: Row, base: str) -> str:
    """Return the line above the rows of a case."""
    cases = "".join(f"{key:>9} " for key in row.case)
    return (
        f"{cases}{'':<16} {'contender':<22} {'least us':>10} {'p50 us':>10} {'p99 us':>10}  "
        f"time : that of {base}, of the least, median (quartiles)"
    )


def line(row: Row) -> str:
    """Return the line of a row."""
    cases = "".join(f"{value:>9} " for value in row.case.values())
    text = (
        f"{cases}{row.what:<16} {row.contender:<22} "
        f"{row.least_us:>10.1f} {row.p50_us:>10.1f} {row.p99_us:>10.1f}"
    )
    if row.ratio is not None:
        text += f"  {row.least_ratio:.2f}, {row.ratio.show()}"
    if row.contender == AGAIN:
        text += "  the control"
    elif row.differs is False:
        text += "  no difference"
    return text
