"""Merge the reports of all ranks about one test into one report."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from .hub import Message, ranks_text

_LIMIT = 100_000

# A test passes only if it passed on every rank: the outcome is the first of these that a rank had.
_ORDER = ("failed", "xfailed", "skipped", "xpassed", "passed")


class Verdict(NamedTuple):
    """The outcome of one phase of a test, and the ranks that had this outcome."""

    state: str
    ranks: list[int]


class Parts(TerminalRepr):
    """What the report shows of a failure: a message for the summary, and texts with titles."""

    def __init__(self, message: str, parts: Mapping[str, str], path: str = "", line: int = 0):
        self.parts = parts
        self.reprcrash = ReprFileLocation(path, line, message)

    def toterminal(self, tw: Any) -> None:
        for title, text in self.parts.items():
            if title:
                tw.sep("-", title, bold=True)
            tw.line(text.rstrip())


def message_of(report: pytest.TestReport) -> Message:
    """Return the message that a rank sends about one phase of a test.

    ``more`` has the texts that only the report shows. The outcome does not depend on them.
    """
    state: str = report.outcome
    if hasattr(report, "wasxfail"):
        state = "xfailed" if report.skipped else "xpassed"
    elif report.failed and str(report.longrepr).startswith("[XPASS(strict)]"):
        state = "xpassed(strict)"
    more: Message = {}
    if report.sections:
        more["sections"] = [(name, shorten(text)) for name, text in report.sections]
    if report.longrepr is not None:
        more["text"] = shorten(report.longreprtext)
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None:
            more["crash"] = (crash.path, crash.lineno, shorten(crash.message))
        if isinstance(report.longrepr, tuple):
            more["skip"] = report.longrepr
    return {
        "kind": "report",
        "test": report.nodeid,
        "when": report.when,
        "state": state,
        "wasxfail": getattr(report, "wasxfail", None),
        "more": more,
    }


def agree(messages: Mapping[int, Message]) -> Verdict:
    """Return the outcome of one phase of a test from the messages of all ranks."""
    states = {rank: str(m["state"]) for rank, m in messages.items()}
    # A strict xfail that failed on some ranks has failed as expected. If it passed on all ranks,
    # the unexpected pass is a failure.
    strict = "passed" if "xfailed" in states.values() else "failed"
    states = {r: strict if s == "xpassed(strict)" else s for r, s in states.items()}
    state = next(s for s in _ORDER if s in states.values())
    return Verdict(state, sorted(r for r, s in states.items() if s == state))


def merge(report: pytest.TestReport, messages: Mapping[int, Message], rank: int) -> None:
    """Change this rank's report to the outcome of all ranks.

    Only rank 0 prints, so only its report gets the texts of the other ranks.
    """
    size = len(messages)
    if size == 1:
        return
    verdict = agree(messages)
    had = report.outcome
    outcome = {"xfailed": "skipped", "xpassed": "passed"}.get(verdict.state, verdict.state)
    report.outcome = outcome  # type: ignore[assignment]
    report.__dict__.pop("wasxfail", None)
    wasxfail = messages[verdict.ranks[0]]["wasxfail"]
    if wasxfail is not None:
        report.wasxfail = wasxfail
    if rank != 0:
        if had != report.outcome:  # -x and the exit status depend on it
            path, line, _ = report.location
            report.longrepr = (path, line or 0, "") if report.skipped else verdict.state
        return
    mores = {r: messages[r]["more"] for r in sorted(messages)}
    report.sections = [
        (f"rank {r}: {name}", text)
        for r, more in mores.items()
        for name, text in more.get("sections", ())
    ]
    first = mores[verdict.ranks[0]]
    if verdict.state == "skipped":
        path, line, reason = first.get("skip", ("", 0, ""))
        if len(verdict.ranks) < size:
            reason = f"{reason} (on {ranks_text(verdict.ranks)} of {size})"
        report.longrepr = (path, line, reason)
    elif report.outcome != "passed" or wasxfail is not None:
        texts = {r: mores[r].get("text", "") for r in verdict.ranks}
        report.longrepr = by_rank(texts, size, first.get("crash"))


def by_rank(texts: Mapping[int, str], size: int, crash: Any = None) -> Parts:
    """Return the texts of some ranks for the report. Equal texts are shown once.

    ``size`` is the number of ranks of the job. ``crash`` is (path, line, message) for the
    summary; default: the first line of the first text.
    """
    groups: dict[str, list[int]] = {}
    for rank, text in sorted(texts.items()):
        groups.setdefault(text, []).append(rank)
    parts = {
        "every rank" if len(ranks) == size else f"{ranks_text(ranks)} of {size}": text
        for text, ranks in groups.items()
    }
    path, line, message = crash or ("", 0, next(iter(groups)).partition("\n")[0])
    return Parts(f"[{ranks_text(texts)}] {message}", parts, path, line)


def compare_collections(ids: Mapping[int, list[str]]) -> str:
    """Return "" if all ranks collected the same tests, else a text with the first difference."""
    for rank, theirs in ids.items():
        if theirs == ids[0]:
            continue
        pairs = zip_longest(ids[0], theirs, fillvalue="no more tests")
        for number, (first, other) in enumerate(pairs, 1):
            if first != other:
                return (
                    f"The ranks collected different tests ({len(ids[0])} on rank 0, {len(theirs)} "
                    f"on rank {rank}). The first difference is test number {number}:\n"
                    f"  rank 0: {first}\n  rank {rank}: {other}\n"
                    "Every rank has to collect the same tests in the same order: no "
                    "parametrisation from sets, ranks or random numbers, and no plugin that "
                    "shuffles with another seed on each rank."
                )
    return ""


def shorten(text: str) -> str:
    """Cut the middle out of a text that is longer than ``_LIMIT``."""
    left_out = len(text) - _LIMIT
    if left_out <= 0:
        return text
    half = _LIMIT // 2
    return f"{text[:half]}\n... {left_out} characters left out ...\n{text[-half:]}"
