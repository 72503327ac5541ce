"""What the programs train_ps_dlrm.py, _words.py and _ratings.py share: options, batches, a course.

None of it is about parameter servers, but for the options and the first trainer.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddlempi as dist
from paddlempi import ps

Arrays = tuple[np.ndarray, ...]


def options_of(
    page: str, shards: int, near: float, arguments: Sequence[str] | None = None
) -> argparse.Namespace:
    """Return the options of a program.

    Args:
        page: its documentation.
        shards: how much data there is, if nothing else is said.
        near: how far its quality may be from that of the course beside.
        arguments: the words; None: those of the command line.
    """
    parser = argparse.ArgumentParser(description=page.splitlines()[0])
    parser.add_argument(
        "--roles",
        default=os.environ.get("PADDLEMPI_ROLES"),
        help="train on servers, with these roles of the ranks; default: those of `run --roles`",
    )
    parser.add_argument("--mode", default="sync", help="of the servers: that of ps.init")
    parser.add_argument("--geo-step", type=int, default=100, help="of mode geo")
    parser.add_argument("--shards", type=int, default=shards, help="how much data there is")
    parser.add_argument(
        "--trainers", type=int, default=1, help="one process takes steps as so many trainers do"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the course as JSON")
    parser.add_argument("--beside", type=Path, metavar="FILE", help="compare with this course")
    parser.add_argument("--near", type=float, default=near, help="how far its quality may be")
    return parser.parse_args(arguments)


def batches(
    shards: Iterable[Any], read: Callable[[int], Arrays], size: int, trainers: int = 1
) -> Iterator[Arrays]:
    """Yield the samples of shards in batches.

    Args:
        shards: numbers of shards, or tasks that have them.
        read: returns the arrays of a shard by its number, with a row for each sample.
        size: how many samples a batch of one trainer has.
        trainers: yield what so many trainers have in a step of sync mode: trainer k of n gets the
            shards k, k + n, and so on. Then ``shards`` is a sequence.
    """
    if trainers > 1:
        streams = [batches(shards[k::trainers], read, size) for k in range(trainers)]  # type: ignore[index]
        for parts in zip(*streams, strict=True):
            yield tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))
        return
    for shard in shards:
        arrays = read(getattr(shard, "value", shard))
        for begin in range(0, len(arrays[0]), size):
            yield tuple(array[begin : begin + size] for array in arrays)


class Course:
    """The course of a training: the quality in every tenth of it, by the first trainer.

    Args:
        name: of the quality.
        measure: returns the quality of now.
        options: of the program.
        steps: how many batches there are, for all trainers.

    Attributes:
        steps: how many steps a trainer has, if all have as many.
    """

    def __init__(
        self, name: str, measure: Callable[[], float], options: argparse.Namespace, steps: int
    ) -> None:
        self.name, self.measure, self.options = name, measure, options
        self.first = not options.roles or dist.get_rank() == ps.trainers()[0]
        trainers = len(ps.trainers()) if options.roles else options.trainers
        if options.mode == "sync" and options.shards % trainers:
            raise SystemExit(f"--shards={options.shards} is no multiple of {trainers} trainers")
        self.steps = steps // trainers
        self.every = max(1, self.steps // 10)
        self.done = 0
        self.points: list[tuple[float, float]] = []  # seconds, and the quality then
        self.began = time.perf_counter()

    def step(self) -> None:
        self.done += 1
        if self.first and self.done % self.every == 0:
            self._point(f"step {self.done:5d}")

    def end(self, higher_is_better: bool) -> bool:
        """Measure at last, when the trainers have done all steps, and compare.

        Returns:
            Whether the quality is near that of the course beside; True on other trainers, and if
            there is none.
        """
        if self.options.roles:
            ps.barrier()  # of all trainers, when what they have pushed is applied
        if not self.first:
            return True
        self._point("the end   ")
        seconds, quality = self.points[-1]
        told = {"seconds": seconds, "quality": quality, "points": self.points}
        if self.options.out:
            self.options.out.write_text(json.dumps(told))
        if not self.options.beside:
            return True
        other = json.loads(self.options.beside.read_text())
        sign = 1 if higher_is_better else -1
        wanted = other["quality"] - sign * self.options.near
        times = [when for when, what in self.points if sign * what >= sign * wanted]
        self._say(
            f"{self.name} {quality:.4f} after {seconds:.1f} s; of one process "
            f"{other['quality']:.4f} after {other['seconds']:.1f} s; {wanted:.4f} is reached after "
            f"{f'{times[0]:.1f} s' if times else 'more'}"
        )
        return abs(quality - other["quality"]) <= self.options.near

    def _point(self, when: str) -> None:
        quality = self.measure()
        self.points.append((time.perf_counter() - self.began, quality))
        self._say(f"{when}  {self.points[-1][0]:6.1f} s  {self.name} {quality:.4f}")

    @staticmethod
    def _say(text: str) -> None:
        print(text, flush=True)
