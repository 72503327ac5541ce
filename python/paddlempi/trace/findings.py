"""What stands out in a report, each in a sentence, with what to do about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from .._rank_names import name_ranks
from .report import Kind, Late, Report

__all__ = ["Finding", "of", "shown"]

MUCH = 0.05  # of the time of the recording
SOME = 0.02
LEAST_LATE = 50_000  # ns: less is what waking up costs
STANDS_OUT = 0.5  # a rank stands out with this share of all that ranks were late
TINY = 4096  # bytes: an input that travels with its announcement
MANY_TINY = 10  # calls a step
UNEQUAL = 0.1  # more bytes than the ranks on average


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that stands out.

    Attributes:
        kind: "late", "turns", "network", "hidden", "exposed", "tiny", "imbalance", "unsure" or
            "fine".
        ranks: of the world, that it is about; empty: all.
        ns: the time that it is about, of one rank: a step, or of the recording if no step was
            found; 0: none.
        text: the sentence.
        advice: what to do.
    """

    kind: str
    ranks: tuple[int, ...]
    ns: int
    text: str
    advice: str

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return dataclasses.asdict(self)


def of(report: Report) -> list[Finding]:
    """Return what stands out, what costs most first; one that says so if nothing does."""
    found = [*_late(report), *_moving(report), *_tiny(report), *_imbalance(report)]
    found.sort(key=lambda finding: -finding.ns)
    found += _unsure(report)
    return found or [
        Finding(
            "fine",
            (),
            0,
            "Nothing stands out: no rank makes others wait, and communication takes little time.",
            "Look at what the ranks compute.",
        )
    ]


def shown(ns: float) -> str:
    """Return a time as people read it: "5.0 ms"."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= size:
            value = ns / size
            return f"{value:.{0 if value >= 100 else 1}f} {unit}"
    return f"{ns:.0f} ns"


def _late(report: Report) -> Iterator[Finding]:
    everything = sum(late.total for late in report.late)
    named = []
    for late in report.late:
        if late.median < LEAST_LATE and late.total < MUCH * report.time:
            continue
        if late.total < SOME * report.time or late.total < STANDS_OUT * everything / 2:
            continue
        if late.total / max(everything, 1) * report.size < 1.5:  # all ranks take turns
            continue
        named.append(late.rank)
        yield _one_late(report, late)
    if not named and everything >= MUCH * report.time:
        steps = report.steps[0].steps if report.steps else 0
        often = f"{shown(everything / steps)} a step" if steps else f"{shown(everything)} in all"
        yield Finding(
            "turns",
            (),
            everything // max(steps, 1),
            f"The ranks wait for each other {often}, now for this one, now for that one; "
            "no rank stands out.",
            "Look for batches of unequal sizes, and for other processes on the CPUs "
            "(doctor, run --bind); fewer calls that all ranks wait in help, too.",
        )


def _one_late(report: Report, late: Late) -> Finding:
    group, step = report.groups[late.group], report.step_of(late.group)
    host = next(one.host for one in report.ranks if one.rank == late.rank)
    size = _size(report, late.group)
    others = "the other one waits" if size == 2 else f"the other {size - 1} wait"
    if step is None:
        when = f"to {late.calls:,} of {late.of:,} calls of {group}"
        text = f"Rank {late.rank} ({host}) comes {shown(late.median)} late {when}; {others} for it."
        return Finding("late", (late.rank,), late.total, text, _FOR_LATE)
    if late.share >= 0.9:
        when = "in each step" if step.calls > 1 else "to each call"
        text = f"Rank {late.rank} ({host}) comes {shown(late.median)} late {when}; {others} for it."
        return Finding("late", (late.rank,), late.median, text, _FOR_LATE)
    text = (
        f"Rank {late.rank} ({host}) comes late in {late.share:.0%} of the steps, then "
        f"{shown(late.usual)}; {others} for it."
    )
    return Finding("late", (late.rank,), late.total // max(step.steps, 1), text, _FOR_LATE)


_FOR_LATE = (
    "It computes, or waits for its input, longer than they do: look at its data loader and at the "
    "size of its batches, and whether something else uses its CPUs (top); trace dump shows the "
    "line of Python that it is in."
)


def _size(report: Report, group: int) -> int:
    return max((len(k.parts) for k in report.kinds if k.group == group), default=report.size)


def _per_step(report: Report, kind: Kind, what: str) -> tuple[float, str]:
    """The mean of a rank's time in a kind of call: a step, or in all."""
    step = report.step_of(kind.group)
    steps = step.steps if step is not None and step.steps else 1
    return kind.mean(what) / steps, "a step" if steps > 1 else "in all"


def _call(kind: Kind) -> str:
    what = f"{kind.operation} {kind.dtype}".rstrip()
    return f"{what} of {size_of(kind)}" if kind.most > 0 else what


def size_of(kind: Kind) -> str:
    """Return the bytes of a kind's calls: "25.0 MiB", "1 to 2 KiB"."""
    if kind.most <= 0:
        return "" if kind.most == 0 else "?"
    low, high = (_nbytes(n) for n in (kind.least, kind.most))
    if low == high:
        return high
    return (
        f"{low.removesuffix(high[-4:])} to {high}" if low[-4:] == high[-4:] else f"{low} to {high}"
    )


def _nbytes(n: int) -> str:
    for unit, size in ((" GiB", 1 << 30), (" MiB", 1 << 20), (" KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.1f}".removesuffix(".0") + unit
    return f"{n} B"


def _moving(report: Report) -> Iterator[Finding]:
    for kind in report.kinds:
        if kind.is_message or kind.most <= TINY:
            continue
        moved, hidden = kind.mean("moved"), kind.hidden
        exposed = kind.mean("exposed")
        if moved < SOME * report.time:
            continue
        rate = f" at {kind.rate:.2f} GB/s" if kind.rate else ""
        time, when = _per_step(report, kind, "exposed")
        if hidden is not None and exposed < SOME * report.time:
            yield Finding(
                "hidden",
                (),
                int(time),
                f"{_call(kind)}: {hidden:.0%} of its transfer is hidden behind computation, and "
                f"{shown(time)} {when} are not.",
                "There is nothing to gain by waiting later. It may slow the computation where both "
                "share CPUs, which bench step measures.",
            )
        elif hidden is not None and exposed >= MUCH * report.time:
            yield _exposed(report, kind, rate, time, when)


def _exposed(report: Report, kind: Kind, rate: str, time: float, when: str) -> Finding:
    limit = "the network" if report.hosts > 1 else "the memory of the node"
    told = f"{_call(kind)} moves{rate}, and callers do nothing else for {shown(time)} {when}"
    share = kind.mean("exposed") / report.time
    how = "Send fewer bytes (bfloat16, gradient accumulation, PowerSGD), or use a faster path (tune"
    if report.hosts == 1:
        how = "Send fewer bytes (bfloat16, gradient accumulation), or tensors in the heap (doctor"
    if kind.is_async:
        hide = f"; only {kind.hidden or 0:.0%} are hidden: begin it earlier, or wait for it later."
    else:
        hide = "; or call it with async_op=True, compute, and wait for it later."
    text = f"{told}, {share:.0%} of the time: {limit} is the limit."
    return Finding("network", (), int(time), text, f"{how}){hide}")


def _tiny(report: Report) -> Iterator[Finding]:
    for step in report.steps:
        mine = [
            k
            for k in report.kinds
            if k.group == step.group and not k.is_message and 0 <= k.most <= TINY
        ]
        calls = sum(k.calls for k in mine) / max(step.steps, 1)
        spent = sum(k.mean("total") - k.mean("waited") for k in mine)
        if not mine or calls * (1 if step.calls > 1 else 0) < MANY_TINY:
            continue
        if spent < SOME * report.time:
            continue
        time = spent / max(step.steps, 1)
        yield Finding(
            "tiny",
            (),
            int(time),
            f"{calls:.0f} calls a step in {report.groups[step.group]} have at most {TINY} bytes; "
            f"they take {shown(time)} a step.",
            "Put them into one: all_reduce_coalesced, larger buckets, or one tensor for all.",
        )


def _imbalance(report: Report) -> Iterator[Finding]:
    for kind in report.kinds:
        spent = kind.mean("moved") + kind.mean("waited")
        if kind.imbalance < UNEQUAL or spent < SOME * report.time:
            continue
        most = max(kind.parts, key=lambda part: part.nbytes)
        yield Finding(
            "imbalance",
            (most.rank,),
            int(_per_step(report, kind, "moved")[0]),
            f"{_call(kind)}: rank {most.rank} has {kind.imbalance:.0%} more bytes than the ranks "
            "on average, and the others wait for the longest.",
            "Spread the data more evenly (shards, experts, batches by length).",
        )


def _unsure(report: Report) -> Iterator[Finding]:
    error = report.clocks.error
    if report.hosts > 1 and error > SOME * report.time:
        unknown = [c.host for c in report.clocks.hosts if c.error > SOME * report.time]
        ranks = tuple(one.rank for one in report.ranks if one.host in unknown)
        yield Finding(
            "unsure",
            ranks,
            0,
            f"The clocks of {name_ranks(ranks)} are not known well enough to say who comes first.",
            "Record longer: calls in which now this and now that host comes last bound them.",
        )
