"""Measures training steps: the time above no communication (TANC).

TANC is the time of a step minus the time of the same step with a hook that communicates nothing,
measured in the same round. It holds everything that communication costs: the collectives, the
copies around them, and the time that they take from the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...collectives import barrier
from .collectives import AGAIN, LEAST_ROUNDS, OURS, WrongResultError, of_all_ranks
from .contenders import front, plain_group
from .figures import Quartiles, differs, quantile, quartiles
from .sampling import Call, shuffled, slowest, stamped

__all__ = ["ALONE", "BARRIER", "KINDS", "SILENT", "StepRow", "measure", "summary"]

KINDS = {"ddp": "torch", "fsdp2": "torch", "hsdp": "torch", "paddle": "paddle"}
"""The kinds of steps, and the front that makes them."""

PLAIN = {"ddp": ["all_reduce"], "fsdp2": ["all_gather", "reduce_scatter"]}
"""The kinds that can be measured over plain MPI, and the collectives of their steps."""

SILENT, BARRIER, ALONE = "no communication", "barrier", "collectives alone"
_NOT_PLAIN = f"steps of {' and '.join(PLAIN)} only"
WARM = 3
PARTS = 5
"""A ratio of single rounds says little: a TANC is a difference, which may be near 0."""


@dataclass(frozen=True)
class StepRow:
    """The figures of the steps of one model.

    Attributes:
        rounds: how many steps of each contender were measured.
        ms: the median time of a step on its slowest rank, by contender. "collectives alone" is no
            step: it is a step's collectives, one after the other.
        tanc_ms: the time above no communication, by contender.
        control_ms: paddlempi's step minus paddlempi's step.
        above_barrier: (TANC - TANC of a barrier) : the collectives alone.
        others: for other contenders, their TANC : paddlempi's, or None if it does not differ, or
            if communication adds nothing in a quarter of the rounds of one of them.
        spread: for these, the least and the greatest of this ratio in PARTS parts of the rounds.
            It is missing where there are too few rounds, or some TANC is not above 0.
        absent: for contenders that were not measured, the reason.
    """

    kind: str
    model: str
    what: str
    rounds: int
    ms: dict[str, float]
    tanc_ms: dict[str, Quartiles]
    control_ms: Quartiles
    above_barrier: float
    others: dict[str, float | None]
    spread: dict[str, tuple[float, float]]
    absent: dict[str, str]

    def record(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            **self.__dict__,
            "tanc_ms": {name: list(tanc) for name, tanc in self.tanc_ms.items()},
            "control_ms": list(self.control_ms),
        }


def measure(
    kind: str,
    model: str,
    against: Sequence[str],
    rounds: int,
    progress: Callable[[str, float], None],
) -> StepRow:
    """Measure the steps of a model. Collective over the world.

    Args:
        kind: of ``KINDS``.
        model: of the front's ``MODELS``.
        against: contenders besides paddlempi: "gloo", "mpi".
        rounds: how many steps of each contender are measured.
        progress: gets what is measured, and which part of it is done, from 0 to 1.

    Raises:
        WrongResultError: gradients over paddlempi were wrong on some rank.
    """
    label = f"{kind} {model}"
    progress(label, 0)
    framework = front(KINDS[kind])
    absent: dict[str, str] = {}
    given: dict[str, Any] = {}
    if "mpi" in against:
        plain = plain_group(framework, *PLAIN[kind]) if kind in PLAIN else _NOT_PLAIN
        if isinstance(plain, str):
            absent["mpi"] = plain
        else:
            given["mpi"] = plain[0]
    others = [name for name in against if name not in absent]
    steps = framework.Steps(kind, model, others, **given)
    absent |= steps.absent
    for name, check in steps.checks.items():
        for rank, reason in enumerate(of_all_ranks(check())):
            if not reason:
                continue
            if name == OURS:
                raise WrongResultError(f"bench: {label} on rank {rank}: {reason}")
            absent[name] = reason
    calls: dict[str, Call] = {k: call for k, call in steps.calls.items() if k not in absent}
    calls[AGAIN] = calls[OURS]
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(-WARM, rounds):
        for name in shuffled(list(calls), round_ + WARM):
            barrier()
            (took,) = stamped([calls[name]])
            if round_ >= 0:
                samples[name].append(took / 1e6)
        progress(label, (round_ + 1 + WARM) / (rounds + WARM))
    return summary(kind, model, steps.what, {k: slowest(v) for k, v in samples.items()}, absent)


def summary(
    kind: str,
    model: str,
    what: str,
    ms: Mapping[str, Sequence[float]],
    absent: dict[str, str],
) -> StepRow:
    """Return the figures of samples in ms, one for each contender and round."""

    def minus(name: str, other: str) -> Quartiles:
        return quartiles([a - b for a, b in zip(ms[name], ms[other], strict=True)])

    tanc = {name: minus(name, SILENT) for name in ms if name not in (SILENT, ALONE, AGAIN)}
    control = minus(AGAIN, OURS)
    alone = quantile(ms[ALONE], 0.5)
    others: dict[str, float | None] = {}
    spread: dict[str, tuple[float, float]] = {}
    ours = tanc[OURS].middle
    for name in tanc:
        if name not in (OURS, BARRIER):
            theirs = tanc[name].middle
            far = len(ms[OURS]) >= LEAST_ROUNDS and differs(theirs - ours, control)
            clear = min(tanc[name].low, tanc[OURS].low) > 0  # else it divides by what may be 0
            others[name] = theirs / ours if far and clear else None
            of_parts = _of_parts(ms, name) if others[name] else []
            if of_parts:
                spread[name] = min(of_parts), max(of_parts)
    return StepRow(
        kind=kind,
        model=model,
        what=what,
        rounds=len(ms[OURS]),
        ms={name: quantile(values, 0.5) for name, values in ms.items()},
        tanc_ms=tanc,
        control_ms=control,
        above_barrier=(ours - tanc[BARRIER].middle) / alone,
        others=others,
        spread=spread,
        absent=absent,
    )


def _of_parts(ms: Mapping[str, Sequence[float]], name: str) -> list[float]:
    """Return the TANC of a contender : paddlempi's, in each part of the rounds; [] if undefined."""
    length = len(ms[OURS]) // PARTS
    if length < 2:
        return []
    found = []
    for at in range(0, PARTS * length, length):
        silent = ms[SILENT][at : at + length]
        theirs, ours = (
            quantile([a - b for a, b in zip(ms[who][at : at + length], silent, strict=True)], 0.5)
            for who in (name, OURS)
        )
        if min(theirs, ours) <= 0:
            return []
        found.append(theirs / ours)
    return found
