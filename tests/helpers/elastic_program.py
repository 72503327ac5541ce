"""A training that goes on when ranks are killed, and its replay by one process.

Each gradient follows from the number of the step, the rank and the number of ranks alone, so the
log of rank 0, with which step each world begins, says all that the replay has to know. An
``all_reduce`` of one node adds in rank order, whatever its length (docs/algorithms.md).
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from pathlib import Path

import numpy as np

SMALL, LARGE = 33, 70_000
"""Numbers of float32: the first tensor is announced with its values, the second one is mapped."""


def gradients(weights: list[np.ndarray], step: int, rank: int, size: int) -> list[np.ndarray]:
    """What a rank adds in a step: something of which every bit matters."""
    found = []
    for place, weight in enumerate(weights):
        slope = np.float32(1 + 0.37 * rank + 0.11 * size + 0.05 * place)
        target = np.arange(weight.size, dtype=np.float32) % np.float32(7 + step % 5)
        found.append((weight * slope - target) / np.float32(3 + rank))
    return found


def begin() -> list[np.ndarray]:
    return [np.linspace(-1, 1, count, dtype=np.float32) for count in (SMALL, LARGE)]


def update(weights: list[np.ndarray], sums: list[np.ndarray], size: int) -> None:
    for weight, total in zip(weights, sums, strict=True):
        weight -= np.float32(0.05) / np.float32(size) * total


def replay(log: Path, steps: int) -> list[np.ndarray]:
    """Train in this process, with the worlds of the log."""
    worlds = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    weights = begin()
    for (first, size), (last, _) in zip(worlds, [*worlds[1:], (steps, 0)], strict=True):
        for step in range(first, last):
            parts = [gradients(weights, step, rank, size) for rank in range(size)]
            sums = [part.copy() for part in parts[0]]
            for part in parts[1:]:
                for total, more in zip(sums, part, strict=True):
                    total += more
            update(weights, sums, size)
    return weights


def train(folder: Path, steps: int, pause: float) -> None:
    """Train as one rank. ``folder`` gets what the test looks at."""
    import paddlempi as dist
    from paddlempi import io

    def note(name: str, line: str) -> None:
        with open(folder / name, "a") as file:
            file.write(f"{line}\n")

    with dist.elastic() as job:
        weights = begin()
        job.attach(weights)

        @job.on_reform
        def log(job: dist.elasticity.job.Job) -> None:
            if job.rank == 0:
                note("worlds", f"{job.done} {job.size}")
            note("ranks", f"{os.getpid()} {job.generation} {job.rank} {job.size}")

        mine = f"steps-{os.getpid()}"
        for step in job.steps(steps):
            with step:
                sums = gradients(weights, step.number, job.rank, job.size)
                for total in sums:
                    dist.all_reduce(total)
                time.sleep(pause)
                update(weights, sums, job.size)
                if step.number % 20 == 19:
                    whole = np.concatenate(weights)
                    with dist.checkpoint(folder / "saved", step.number, keep=1) as place:
                        io.save_file({"weights": whole}, place / "model.safetensors")
            if step.counts:
                note(mine, f"{time.monotonic()} {job.generation} {step.number}")
        note("ended", str(os.getpid()))
        np.save(folder / f"weights-{job.rank}.npy", np.concatenate(weights))


if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(os.environ.get("ELASTIC_HANGS", "40")))
    (Path(sys.argv[1]) / f"pid-{os.getpid()}").touch()
    train(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
