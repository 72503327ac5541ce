"""One table of everything that a run has measured, out of the record that ``--json`` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .collectives import AGAIN, LEAST_ROUNDS, OURS
from .figures import Quartiles, differs
from .picture import readable

__all__ = ["NONE", "cells", "lines", "not_measured"]

NONE = "-"
_EQUAL = "equal"

Record = Mapping[str, Any]


def cells(record: Record) -> list[list[str]]:
    """Return the head of the table, and its lines.

    An operation has a line for each size, with the medians of calls. A step has its median time
    above no communication, and the control is a ratio of such times too.
    """
    others = [name for name in ("usual", "mpi", "mpi4py", "gloo") if name in _measured(record)]
    head = ["operation", "bytes", "ours, us", *(f"{name}, us" for name in others)]
    head += [*(f"{name} / ours" for name in others), "way", "traffic", "control"]
    of_size: dict[tuple[str, int], dict[str, Record]] = {}
    for row in record["rows"]:
        of_size.setdefault((row["operation"], row["bytes"]), {})[row["contender"]] = row
    found = [head]
    for (operation, size), rows in of_size.items():
        ours, again = rows[OURS], rows.get(AGAIN)
        found.append(
            [
                operation,
                f"{readable(size)}B" if size >= 1024 else str(size) if size else NONE,
                *_of_each([OURS, *others], rows, lambda row: _us(row["p50_us"])),
                *_of_each(others, rows, _ratio),
                ours["way"] or ours["path"] or NONE,
                _traffic(ours),
                _with_quartiles(again["ratio"]) if again else NONE,
            ]
        )
    return found + [_step(step, others) for step in record["steps"]]


def lines(record: Record) -> list[str]:
    """Return the table as text, and why some of it is missing."""
    found = cells(record)
    widths = [max(map(len, column)) for column in zip(*found, strict=True)]
    text = [
        "# medians (quartiles); equal: no further apart than ours is from itself, the control",
    ]
    if record["steps"]:
        text.append("# of steps: the time above no communication")
    for line in found:
        words = [
            word.ljust(width) if at == 0 else word.rjust(width)
            for at, (word, width) in enumerate(zip(line, widths, strict=True))
        ]
        text.append("  ".join(words).rstrip())
    return text + not_measured(record)


def not_measured(record: Record) -> list[str]:
    """Return a line for each thing that could not be measured, with the reason."""
    reasons = dict(record["not_measured"])
    for step in record["steps"]:
        for name, reason in step["absent"].items():
            reasons[f"{step['kind']} {step['model']}, {name}"] = reason
    return [f"not measured: {what}: {reason}" for what, reason in reasons.items()]


def _measured(record: Record) -> set[str]:
    """Return the names of all contenders that have figures."""
    found = {row["contender"] for row in record["rows"]}
    return found.union(*(step["others"] for step in record["steps"]))


def _of_each(
    names: Sequence[str], rows: Mapping[str, Record], show: Callable[[Record], str]
) -> list[str]:
    return [show(rows[name]) if name in rows else NONE for name in names]


def _us(us: float) -> str:
    digits = 2 if abs(us) < 10 else 1 if abs(us) < 100 else 0
    return f"{us:,.{digits}f}"


def _with_quartiles(ratio: Sequence[float]) -> str:
    return Quartiles(*ratio).show()


def _ratio(row: Record) -> str:
    """Show how long another takes; a word where that is no more than what equal things show."""
    return _EQUAL if row["differs"] is False else _with_quartiles(row["ratio"])


def _traffic(row: Record) -> str:
    if not row["counted"]:
        return NONE
    return "?" if row["traffic"] is None else f"{row['traffic']:.2f}"


def _step(step: Record, others: Sequence[str]) -> list[str]:
    """Return the line of a kind of steps."""
    middles = {name: tanc[1] for name, tanc in step["tanc_ms"].items()}
    ours = middles[OURS]
    control = NONE
    if ours > 0:
        control = Quartiles(*(1 + ms / ours for ms in step["control_ms"])).show()
    return [
        f"{step['kind']} {step['model']}",
        NONE,
        *(_us(1000 * middles[name]) if name in middles else NONE for name in (OURS, *others)),
        *(_step_ratio(step, name, middles) for name in others),
        NONE,
        NONE,
        control,
    ]


def _step_ratio(step: Record, name: str, middles: Mapping[str, float]) -> str:
    """Show how long a step takes over another contender."""
    ratio = step["others"].get(name)
    if ratio is not None:
        low_high = step["spread"].get(name)
        return f"{ratio:.2f}" + (" ({:.2f} to {:.2f})".format(*low_high) if low_high else "")
    if name not in middles or step["rounds"] < LEAST_ROUNDS:
        return NONE
    apart = differs(middles[name] - middles[OURS], Quartiles(*step["control_ms"]))
    return NONE if apart else _EQUAL  # apart, but one of the times is not above 0
