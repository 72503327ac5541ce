"""``--level modes``: the loss over time in every mode, with a trainer that is slow.

The first rank serves, the others train, and the last of them is slow. A trainer computes the
gradients of a linear model, a vector and rows by id, from noisy samples, and then sleeps: for
``STEP`` seconds, the slow one for 2 or 10 times as long. So the figures say what waiting and
staleness do, whatever the processors do. The loss is that of the model which the first trainer has
pulled; it is computed from the distance to the teacher, so it has no noise of a sample.
"""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

from .... import group, ps
from ....ps.dense import Blocks
from ..collectives import of_all_ranks
from ..picture import curves
from .findings import Findings

__all__ = ["MODES", "SLOW", "measure"]

STEP = 0.005  # seconds that a step computes
SLOW = (2, 10)
MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "ssp": {"staleness": 3},
    "async": {},
    "dc_asgd": {"compensation": 0.04},
    "half_async": {"merge": 4},
    "geo": {"geo_step": 10},
}
NEAR = 0.05  # the loss whose time is told; that of the teacher is NOISE squared
NOISE, RATE, SAMPLES, FEATURES, IDS, DIM = 0.1, 0.02, 8, 32, 64, 4

Curve = list[tuple[float, float]]
_LINE = "{:<11}{:>6}{:>8}{:>13}{:>9}{:>12}"


class Run(NamedTuple):
    """A training.

    Attributes:
        mode: the mode.
        slow: how many times as long the slow trainer computes.
        steps: of each trainer; the last one is the slow one.
        curve: the seconds since the beginning and the loss, of the first trainer.
    """

    mode: str
    slow: int
    steps: list[int]
    curve: Curve

    @property
    def near(self) -> float | None:
        """When the loss was NEAR for the first time; None: never."""
        return next((at for at, loss in self.curve if loss <= NEAR), None)


def measure(chosen: Namespace, findings: Findings) -> None:
    """Train in every mode, ``--rounds`` steps long. Collective over the world."""
    seconds = chosen.rounds * STEP
    findings.say(
        f"# {group.get_world_size() - 1} trainers, the last one slow, {seconds:g} s in each mode; "
        f"a step computes for {1000 * STEP:g} ms"
    )
    findings.say(_LINE.format("mode", "slow", "steps", "of the slow", "seconds", "at the end"))
    found: list[Run] = []
    for slow in SLOW:
        for mode in MODES:
            run = _train(mode, slow, seconds, chosen.timeout)
            near = "-" if run.near is None else f"{run.near:.2f}"
            steps = (str(run.steps[0]), str(run.steps[-1]))
            last = f"{run.curve[-1][1]:.4f}" if run.curve else "-"
            findings.say(_LINE.format(mode, f"{slow} x", *steps, near, last))
            found.append(run)
    findings.more["modes"] = [{**run._asdict(), "near": run.near} for run in found]
    if group.get_rank() == 0 and chosen.plot:
        panels = [
            (f"{slow} x slower", {run.mode: run.curve for run in found if run.slow == slow})
            for slow in SLOW
        ]
        title = f"loss over seconds; one of {group.get_world_size() - 1} trainers is slow"
        Path(chosen.plot).write_text(curves(title, panels))


def _train(mode: str, slow: int, seconds: float, timeout: float) -> Run:
    """Train for so long. Collective over the world; all ranks return the same."""
    size, rank = group.get_world_size(), group.get_rank()
    roles = {at: "trainer" if at else "pserver" for at in range(size)}
    ps.init(roles, mode=mode, timeout=timeout, **MODES[mode])
    curve: Curve = []
    steps = 0
    try:
        if rank:
            pause = STEP * (slow if rank == size - 1 else 1)
            curve, steps = _steps(rank, pause, seconds)
    finally:
        ps.shutdown()
    told = of_all_ranks(f"{steps} " + " ".join(f"{at:.4f},{loss:.5g}" for at, loss in curve))
    pairs = (pair.split(",") for pair in told[1].split()[1:])
    curve = [(float(at), float(loss)) for at, loss in pairs]
    return Run(mode, slow, [int(text.split()[0]) for text in told[1:]], curve)


def _steps(rank: int, pause: float, seconds: float) -> tuple[Curve, int]:
    """Train until the time is over. Return the loss over time, and the number of steps."""
    import numpy as np

    teacher = np.random.default_rng(0)
    weights = teacher.normal(size=FEATURES).astype(np.float32)
    biases = teacher.normal(size=IDS).astype(np.float32)
    draw = np.random.default_rng(rank)
    rows = ps.RemoteTable("rows", DIM, ps.SGD(RATE * DIM))
    vector = Blocks("vector", FEATURES, ps.SGD(RATE))
    every, (dense, blocks, gradient) = np.arange(IDS), vector.request()
    ps.barrier()
    curve: Curve = []
    begin, steps = time.perf_counter(), 0
    while (now := time.perf_counter() - begin) < seconds:
        of_ids, of_vector = ps.pull([(rows, every), (dense, blocks)])
        sums, w = of_ids.sum(1), np.asarray(of_vector).reshape(-1)[:FEATURES]
        far = np.square(w - weights).sum() + np.square(sums - biases).mean()
        curve.append((now, float(far) + NOISE**2))
        ids, x = draw.integers(0, IDS, SAMPLES), draw.normal(size=(SAMPLES, FEATURES))
        target = x @ weights + biases[ids] + NOISE * draw.normal(size=SAMPLES)
        off = (2 / SAMPLES) * (x @ w + sums[ids] - target)
        vector.gradients[:FEATURES] = (off @ x).astype(np.float32)
        time.sleep(pause)
        ps.note(rows, ids, np.repeat(off, DIM).reshape(-1, DIM).astype(np.float32))
        ps.note(dense, blocks, gradient)
        ps.step()
        steps += 1
    return curve, steps
