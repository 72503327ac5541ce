"""One report made of every rank's: who decides, what is shown, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from .channel import Message, ranks_text

_SECTION_LIMIT = 100_000
_LONGREPR_LIMIT = 1_000_000

# A test passes only if it passed on every rank: the first of these that any rank had wins.
_ORDER = ("failed", "xfailed", "skipped", "xpassed", "passed")


@dataclass(frozen=True)
class Verdict:
    """What all ranks report for one phase of a test."""

    outcome: str
    wasxfail: str | None
    ranks: tuple[int, ...]
    """The ranks that decided it: where it failed, was skipped, ..."""


def message_of(config: pytest.Config, report: pytest.TestReport) -> Message:
    """Return what a rank sends about one phase; a few bytes when there is nothing to tell."""
    message: Message = {
        "kind": "report",
        "test": report.nodeid,
        "when": report.when,
        "state": state_of(report),
        "duration": report.duration,
    }
    if hasattr(report, "wasxfail"):
        message["wasxfail"] = report.wasxfail
    sections = [(name, shorten(text)) for name, text in report.sections]
    if sections:
        message["sections"] = sections
    if report.longrepr is not None:
        data = config.hook.pytest_report_to_serializable(config=config, report=report)
        longrepr = data.get("longrepr") if data else str(report.longrepr)
        if len(str(longrepr)) > _LONGREPR_LIMIT:
            longrepr = shorten(str(report.longrepr))
        message["longrepr"] = longrepr
    return message


def state_of(report: pytest.TestReport) -> str:
    """Return pytest's outcome, told apart by xfail."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.outcome == "skipped" else "xpassed"
    if report.outcome == "failed" and str(report.longrepr).startswith("[XPASS(strict)]"):
        return "xpassed(strict)"
    return report.outcome


def agree(messages: dict[int, Message]) -> Verdict:
    """Return the outcome of one phase of a test from what each rank sent about it."""
    states = {rank: str(m["state"]) for rank, m in messages.items()}
    # A strict xfail that failed on one rank failed as it was expected to; only where no rank
    # failed is its unexpected pass a failure.
    strict = "passed" if "xfailed" in states.values() else "failed"
    states = {r: strict if s == "xpassed(strict)" else s for r, s in states.items()}
    state = next(s for s in _ORDER if s in states.values())
    ranks = tuple(sorted(r for r, s in states.items() if s == state))
    wasxfail = messages[ranks[0]].get("wasxfail")
    outcome = {"xfailed": "skipped", "xpassed": "passed"}.get(state, state)
    return Verdict(outcome, None if wasxfail is None else str(wasxfail), ranks)


def merge(
    config: pytest.Config,
    report: pytest.TestReport,
    verdict: Verdict,
    messages: dict[int, Message],
) -> pytest.TestReport:
    """Make rank 0's report the one of all ranks."""
    size = len(messages)
    _set_outcome(report, verdict)
    report.duration = max(float(m["duration"]) for m in messages.values())
    if size > 1:
        report.sections = [
            (f"rank {rank}: {name}", text)
            for rank, m in sorted(messages.items())
            for name, text in m.get("sections", ())
        ]
    if size == 1 or (verdict.outcome == "passed" and verdict.wasxfail is None):
        return report
    parts = [(r, _longrepr(config, report, messages[r].get("longrepr"))) for r in verdict.ranks]
    if verdict.outcome == "skipped" and verdict.wasxfail is None:
        path, line, reason = parts[0][1] if isinstance(parts[0][1], tuple) else ("", 0, "")
        if len(parts) < size:
            reason = f"{reason} (on {ranks_text(list(verdict.ranks))} of {size})"
        report.longrepr = (path, line, reason)
    else:
        report.longrepr = RanksRepr.of(parts, size)
    return report


def adopt(report: pytest.TestReport, verdict: Verdict) -> pytest.TestReport:
    """Give a rank that prints nothing the outcome of all, so that -x and exit status agree."""
    had = report.outcome
    _set_outcome(report, verdict)
    if had != report.outcome:
        reason = f"{verdict.outcome} on {ranks_text(list(verdict.ranks))}"
        path, line, _ = report.location
        report.longrepr = (path, line or 0, reason) if report.skipped else reason
    return report


def _set_outcome(report: pytest.TestReport, verdict: Verdict) -> None:
    report.outcome = verdict.outcome  # type: ignore[assignment]
    if verdict.wasxfail is not None:
        report.wasxfail = verdict.wasxfail
    elif hasattr(report, "wasxfail"):
        del report.wasxfail


def _longrepr(config: pytest.Config, report: pytest.TestReport, data: Any) -> Any:
    """Rebuild a longrepr from its JSON form, with pytest's own hook where it has structure."""
    if isinstance(data, (list, tuple)):  # a list where it came over a socket
        return tuple(data)
    if not isinstance(data, dict):
        return "" if data is None else str(data)
    shell = config.hook.pytest_report_to_serializable(config=config, report=report)
    shell["longrepr"] = data
    rebuilt = config.hook.pytest_report_from_serializable(config=config, data=shell)
    return rebuilt.longrepr


class RanksRepr(TerminalRepr):
    """The failures of several ranks; those with the same text are shown once."""

    def __init__(self, groups: list[tuple[list[int], Any]], size: int) -> None:
        self.groups = groups
        self.size = size
        first = groups[0][1]
        crash = getattr(first, "reprcrash", None)
        all_ranks = [rank for ranks, _ in groups for rank in ranks]
        if crash is not None:
            message = f"[{ranks_text(all_ranks)}] {crash.message}"
            crash = ReprFileLocation(crash.path, crash.lineno, message)
        self.reprcrash = crash

    @classmethod
    def of(cls, parts: Sequence[tuple[int, Any]], size: int) -> RanksRepr:
        groups: dict[str, tuple[list[int], Any]] = {}
        for rank, longrepr in parts:
            groups.setdefault(str(longrepr), ([], longrepr))[0].append(rank)
        return cls(list(groups.values()), size)

    def toterminal(self, tw: Any) -> None:
        for ranks, longrepr in self.groups:
            who = "every rank" if len(ranks) == self.size else ranks_text(ranks)
            tw.sep("-", f"{who} of {self.size}" if len(ranks) < self.size else who, bold=True)
            if hasattr(longrepr, "toterminal"):
                longrepr.toterminal(tw)
            else:
                tw.line(str(longrepr))


def compare_collections(ids: dict[int, list[str]]) -> str | None:
    """Return None when every rank collected the same tests, else what differs first."""
    reference = ids[0]
    for rank in sorted(ids):
        mine = ids[rank]
        if mine == reference:
            continue
        pairs = zip(reference, mine, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(reference), len(mine)))
        theirs = reference[at] if at < len(reference) else "no more tests"
        own = mine[at] if at < len(mine) else "no more tests"
        return (
            f"The ranks collected different tests ({len(reference)} on rank 0, {len(mine)} on "
            f"rank {rank}). The first difference is test number {at + 1}:\n"
            f"  rank 0: {theirs}\n  rank {rank}: {own}\n"
            "Every rank has to collect the same tests in the same order: no parametrisation from "
            "sets, ranks or random numbers, and no plugin that shuffles with another seed on each "
            "rank."
        )
    return None


def shorten(text: str, limit: int = _SECTION_LIMIT) -> str:
    """Cut the middle out of a text that is too long to send."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
