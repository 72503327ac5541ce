"""A report as text in 80 columns, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import textwrap
import time
from collections.abc import Iterator
from typing import Any

from .._rank_names import name_ranks
from . import findings
from .report import Kind, Part, Report

__all__ = ["as_json", "as_text"]

WIDTH = 80
MOST_KINDS = 20
MOST_RANKS = 64
MOST_ABSENT = 8


def as_text(report: Report) -> str:
    """Say what a person wants to know: what is missing, what to do, then the tables."""
    lines = [*_head(report), "", *_findings(report), *_kinds(report), "", *_ranks(report)]
    return "\n".join(lines)


def as_json(report: Report) -> str:
    """Return all of it as one JSON object. Times are nanoseconds, shares 0 to 1."""
    data = {
        "size": report.size,
        "hosts": report.hosts,
        "begin": report.begin,
        "end": report.end,
        "clocks": [clock.as_dict() for clock in report.clocks.hosts],
        "absent": [{"rank": rank, "why": why} for rank, why in report.absent.items()],
        "deaths": [dataclasses.asdict(death) for death in report.deaths],
        "warnings": list(report.warnings),
        "findings": [finding.as_dict() for finding in findings.of(report)],
        "steps": [
            {**dataclasses.asdict(step), "group": report.groups[step.group]}
            for step in report.steps
        ],
        "kinds": [_kind_data(report, kind) for kind in report.kinds],
        "late": [
            {**dataclasses.asdict(late), "group": report.groups[late.group]} for late in report.late
        ],
        "ranks": [
            {**dataclasses.asdict(one), "part": _part_data(one.part)} for one in report.ranks
        ],
        "not_ordered": report.unsure,
    }
    return json.dumps(data, indent=2)


def _kind_data(report: Report, kind: Kind) -> dict[str, Any]:
    return {
        **dataclasses.asdict(kind),
        "group": _group(report, kind),
        "hidden": kind.hidden,
        "gb_per_s": kind.rate,
        "parts": [_part_data(part) for part in kind.parts],
    }


def _part_data(part: Part) -> dict[str, Any]:
    return {**dataclasses.asdict(part), "hidden": part.hidden}


def _group(report: Report, kind: Kind) -> str:
    return report.groups[kind.group] if kind.group >= 0 else "groups that are not known"


def _wrap(text: str, begin: str = "", more: str = "  ") -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=begin,
        subsequent_indent=more,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _head(report: Report) -> Iterator[str]:
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(report.begin / 1e9))
    hosts = f"{report.hosts} host{'s' if report.hosts != 1 else ''}"
    recorded = report.size - len(report.absent)
    yield from _wrap(
        f"Timeline of {recorded} of {report.size} ranks on {hosts}: {report.time / 1e9:.3f} s "
        f"from {when}."
    )
    first = min((death.at for death in report.deaths if death.at), default=0)
    for death in report.deaths:
        doing = f" in {death.doing}" if death.doing else ""
        by = f", as {name_ranks(death.told_by)} say" if death.told_by else ""
        later = f", {findings.shown(death.at - first)} after the first" if death.at > first else ""
        who = f"rank {death.rank} (process {death.pid} on {death.host})"
        yield from _wrap(f"DIED: {who}{doing}{by}{later}.")
    for number, (rank, why) in enumerate(report.absent.items()):
        if number == MOST_ABSENT:
            yield f"... and {len(report.absent) - MOST_ABSENT} more ranks without a recording."
            break
        yield from _wrap(f"MISSING: rank {rank}: {why}")
    lost = {one.rank: one.lost for one in report.ranks if one.lost}
    if lost:
        calls = sum(one.part.calls for one in report.ranks)
        share = sum(lost.values()) / (calls + sum(lost.values()))
        yield from _wrap(
            f"LOST: {sum(lost.values()):,} operations ({share:.2%}) were overwritten before they "
            f"were read, of {name_ranks(tuple(lost))}."
        )
    said = {f"rank {rank}: {count} operations were not recorded" for rank, count in lost.items()}
    said |= {f"rank {rank}: {why}" for rank, why in report.absent.items()}
    warnings = [text for text in report.warnings if text not in said]
    for sentence in (*report.clocks.sentences(), *warnings):
        yield from _wrap(sentence)
    for step in report.steps:
        what = f"{step.calls} calls" if step.calls > 1 else "one call"
        yield from _wrap(
            f"A step is {what} of {report.groups[step.group]}, {findings.shown(step.time)} at "
            f"the median; {step.steps:,} steps."
        )


def _findings(report: Report) -> Iterator[str]:
    yield "What stands out:"
    for number, finding in enumerate(findings.of(report), 1):
        yield from _wrap(finding.text, f" {number}. ", "    ")
        yield from _wrap(finding.advice, "    -> ", "       ")


def _kinds(report: Report) -> Iterator[str]:
    """A table for each group: a mean of its ranks, a call."""
    groups = list(dict.fromkeys(kind.group for kind in report.kinds))
    for group in groups:
        mine = [kind for kind in report.kinds if kind.group == group]
        yield ""
        yield from _wrap(f"Calls of {_group(report, mine[0])}, mean times of a call:")
        yield "  call                     bytes            calls   waited    moved  GB/s hidden"
        for kind in mine[:MOST_KINDS]:
            yield _kind(kind)
        if len(mine) > MOST_KINDS:
            yield f"  ... and {len(mine) - MOST_KINDS} more kinds (--json has all)"


def _kind(kind: Kind) -> str:
    name = f"{kind.operation} {kind.dtype}".rstrip()
    calls = max(kind.mean("calls"), 1)
    rate = "" if kind.rate is None or kind.most <= findings.TINY else f"{kind.rate:.2f}"
    hidden = "" if kind.hidden is None or not kind.is_async else f"{kind.hidden:.0%}"
    return (
        f"  {name[:24]:<24} {findings.size_of(kind)[:15]:<15} {kind.calls:>6} "
        f"{findings.shown(kind.mean('waited') / calls):>8} "
        f"{findings.shown(kind.mean('moved') / calls):>8} {rate:>5} {hidden:>6}"
    )


def _ranks(report: Report) -> Iterator[str]:
    yield from _wrap(
        "Ranks, in ms of the whole recording. Callers did nothing but wait while it waited for "
        "others, and while data was exposed; late: by so much it came last; cost: what the callers "
        "of the others waited for it, all together.",
        more="",
    )
    yield "  rank  host             calls    waited   exposed     moved      late      cost"
    worst = sorted(report.ranks, key=lambda one: (-one.late, one.rank))
    for one in worst[:MOST_RANKS]:
        part = one.part
        yield (
            f"  {one.rank:<5} {one.host[:13]:<13} {part.calls:>8} {_ms(part.stalled)} "
            f"{_ms(part.exposed)} {_ms(part.moved)} {_ms(one.late)} {_ms(one.cost)}"
        )
    if len(worst) > MOST_RANKS:
        yield f"  ... and {len(worst) - MOST_RANKS} more ranks (--json has all)"


def _ms(ns: int | None) -> str:
    return f"{'?':>9}" if ns is None else f"{ns / 1e6:>9.1f}"
