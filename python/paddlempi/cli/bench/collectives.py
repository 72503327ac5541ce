"""Measures operations: contenders in turn, every result checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ... import _native, collectives, group, objects
from ...errors import ArgumentError, Error
from . import contenders, traffic
from .contenders import Buffer, Contender, Framework
from .figures import Quartiles, quantile, quartiles, ratio_differs, ratios
from .operations import OPERATIONS, Operation, Shape, Values, pingpong, storage
from .sampling import Call, clock_cost, shuffled, slowest, stamped

__all__ = [
    "AGAIN",
    "LEAST_ROUNDS",
    "OURS",
    "Plan",
    "Row",
    "WrongResultError",
    "measure",
    "measure_these",
    "of_all_ranks",
    "sizes",
]

OURS, AGAIN = "paddlempi", "paddlempi again"

LEAST_ROUNDS = 10
"""Fewer rounds have no quartiles to speak of, so nothing is said about a difference."""


class WrongResultError(Error):
    """A contender gave a wrong result. Every rank raises it alike."""


@dataclass(frozen=True)
class Plan:
    """How an operation is measured.

    Attributes:
        sizes: bytes.
        iterations, warmup: the calls of each contender at each size that are measured, and those
            before them; None: as many as :func:`_calls` says.
        same_buffer: every call takes the same tensor, as in the OSU benchmarks.
        seconds: after so long a size has no more rounds, if it has had LEAST_ROUNDS; None: it has
            those of all iterations.
    """

    sizes: Sequence[int]
    iterations: int | None = None
    warmup: int | None = None
    same_buffer: bool = False
    seconds: float | None = None

    def over(self, rounds: int, began: float) -> bool:
        """Whether a size that began at a time has had enough rounds. Collective over the world."""
        if self.seconds is None or rounds < LEAST_ROUNDS:
            return False
        return slowest([time.monotonic() - began])[0] > self.seconds


@dataclass(frozen=True)
class Row:
    """The figures of one contender at one size.

    Attributes:
        bytes: of the larger side of a call on one rank.
        p50_us, p99_us: of the time of a call on its slowest rank.
        algorithm_gbps, bus_gbps: 10^9 bytes a second at the median; None in a job of one rank,
            which sends nothing.
        path: the algorithm that paddlempi took; "" for others.
        way: the same, as exactly as the core says it.
        ratio: the contender's time : paddlempi's, round by round; None for paddlempi itself.
        differs: whether the ratio is more than what equal contenders show; None without a control.
        counted: whether the bytes that leave a node were counted.
        traffic: they : the fewest possible; None if they were not counted, or nothing is known.
        threads, copy_us: how many threads of each rank there were, and the time of a copy of as
            many bytes by as many; None but with --threads.
    """

    operation: str
    bytes: int
    contender: str
    calls: int
    p50_us: float
    p99_us: float
    algorithm_gbps: float | None
    bus_gbps: float | None
    path: str
    ratio: Quartiles | None = None
    differs: bool | None = None
    counted: bool = False
    traffic: float | None = None
    way: str = ""
    threads: int | None = None
    copy_us: float | None = None

    def record(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self) | {"ratio": None if self.ratio is None else list(self.ratio)}


def sizes(least: int, most: int) -> list[int]:
    """Return ``least``, twice as much, and so on, up to ``most``."""
    found = [least]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return found


def _calls(nbytes: int) -> tuple[int, int]:
    """Return the calls that are measured by default, and those before them."""
    if nbytes <= 8 << 10:
        return 1000, 100
    return max(20, min(100, (1 << 30) // nbytes)), 10


def _buffers(nbytes: int, iterations: int) -> int:
    """Return how many tensors take turns: the calls of a round."""
    return max(2, min(20, (4 << 20) // max(nbytes, 1), iterations // LEAST_ROUNDS))


def measure(
    name: str,
    names: Sequence[str],
    tensors: Framework,
    plan: Plan,
    show: Callable[[list[Row]], None],
    progress: Callable[[str, float], None],
) -> dict[str, str]:
    """Measure an operation at all sizes. Collective over the world.

    Args:
        name: the operation.
        names: the contenders; paddlempi is the first.
        tensors: the framework of the tensors.
        plan: sizes and numbers of calls.
        show: gets the rows of each size.
        progress: gets what is measured, and which part of the operation is done, from 0 to 1.

    Returns:
        For contenders that were not measured, the reason.

    Raises:
        WrongResultError: a result was wrong on some rank.
    """
    operation = OPERATIONS[name]
    if name == "pingpong":
        if group.get_world_size() == 1:
            return {OURS: "one rank has no other to send to"}
        operation = pingpong(*contenders.pair())
    made, absent = contenders.make(names, name, tensors)
    return absent | measure_these(operation, made, tensors, plan, show, progress)


def measure_these(
    operation: Operation,
    made: Sequence[Contender],
    tensors: Framework,
    plan: Plan,
    show: Callable[[list[Row]], None],
    progress: Callable[[str, float], None],
) -> dict[str, str]:
    """Measure an operation as :func:`measure` does, with contenders that were made before."""
    n, itemsize = group.get_world_size(), storage(tensors.dtype).itemsize
    shapes: dict[int, Shape] = {}  # by the bytes that the table shows: small sizes may be equal
    for nbytes in [0] if operation.empty else plan.sizes:
        shape = operation.shape(nbytes, itemsize, n)
        shapes.setdefault(shape.total * itemsize, shape)
    values = Values(tensors.dtype, n, max(shape.total for shape in shapes.values()))
    remaining, absent = list(made), {}
    for done, (nbytes, shape) in enumerate(shapes.items()):
        what = f"{operation.name} {nbytes}"
        progress(what, done / len(shapes))
        iterations, warmup = _calls(nbytes)
        iterations = plan.iterations or iterations
        size = _Size(operation, shape, nbytes, tensors, values, plan.same_buffer, iterations)
        for contender in list(remaining):
            reason = size.warm_up(contender, warmup if plan.warmup is None else plan.warmup)
            if reason:
                if contender.name == OURS:
                    raise ArgumentError(f"bench: {what} bytes: {reason}")
                absent[contender.name] = reason
                remaining.remove(contender)
        size.raise_if_wrong()
        rounds, began = -(-iterations // size.calls), time.monotonic()
        for round_ in range(rounds):
            if plan.over(round_, began):
                break
            for contender in shuffled(remaining, round_):
                size.block(contender, keep=True)
            progress(what, (done + (round_ + 1) / rounds) / len(shapes))
        for contender in remaining:
            size.count(contender)
        size.raise_if_wrong()
        show(size.rows(remaining))
    return absent


class _Size:
    """One operation at one size: its tensors, and the samples of every contender."""

    def __init__(
        self,
        operation: Operation,
        shape: Shape,
        nbytes: int,
        tensors: Framework,
        values: Values,
        same_buffer: bool,
        iterations: int,
    ) -> None:
        self._operation, self._bytes, self._values = operation, nbytes, values
        self._same = same_buffer
        self._rank, self._n = group.get_rank(), group.get_world_size()
        self._gives = operation.gives(self._rank, self._n, shape.total)
        self._gets = operation.gets(self._rank, self._n, shape.total)
        self.calls = _buffers(nbytes, iterations)
        self._pairs = [
            tuple(tensors.empty(count) if count else None for count in (shape.send, shape.recv))
            for _ in range(1 if same_buffer else self.calls)
        ]
        self._bound: dict[str, list[Call]] = {}
        self._samples: dict[str, list[float]] = {}  # ns of each call
        self._paths: dict[str, str] = {}
        self._number = 0  # of the call, which its values depend on
        self._wrong = ""
        self._node: list[int] = _native.control("info")["node"]
        self._taken: dict[str, traffic.Passed | None] = {}
        fewest = traffic.least(operation.name, nbytes, self._node)
        self._fewest = (fewest or 0.0) * self._in_block()

    def warm_up(self, contender: Contender, calls: int) -> str:
        """Bind a contender and make calls that are not measured, at least one block of them.

        Returns:
            Why some rank cannot make the calls, the same on all ranks; "" if they can.
        """

        def bind() -> None:
            self._bound[contender.name] = [
                contender.bind(self._operation.name, *pair) for pair in self._pairs
            ]

        # All ranks hear of an error before any goes on: the next step has collectives.
        for step in (bind, lambda: self.block(contender, keep=False)):
            reason = ""
            try:
                step()
            except Exception as error:  # whatever the contender's library raises
                lines = str(error).strip().splitlines() or ["no message"]
                reason = f"{type(error).__name__}: {lines[0]}"
            reason = next(filter(None, of_all_ranks(reason)), "")
            if reason:
                return reason
        path = self._paths[contender.name] = contender.path()
        if contender.algorithm not in ("", path):
            return f"the algorithm {contender.algorithm!r} cannot serve this call; {path!r} did"
        for _ in range(-(-calls // self.calls) - 1):
            self.block(contender, keep=False)
        return ""

    def block(self, contender: Contender, keep: bool) -> None:
        """Make one call on each tensor, after new values were written to all; check the results."""
        calls = self._bound[contender.name]
        if self._same:
            self._checked(contender, calls)
            for side in self._sides():
                side.array.fill(0)  # sums of zeros stay zeros, however many calls follow
            collectives.barrier()
            took = stamped(calls * self.calls)
            if contender.checked and any(side.array.any() for side in self._sides()):
                self._found_wrong(contender, "a value is not 0 after calls with zeros")
        else:
            took = self._checked(contender, calls)
        if keep:
            self._samples.setdefault(contender.name, []).extend(took)

    def _in_block(self) -> int:
        """Return the calls of a block."""
        return len(self._pairs) + self.calls if self._same else self.calls

    def count(self, contender: Contender) -> None:
        """Count the bytes that leave this node in one more block, if there is something to count.

        The times of the block are not kept: to read the counters takes time, too.
        """
        if self._fewest < traffic.LEAST or contender.name == AGAIN or not contender.checked:
            return
        before = traffic.read()
        self.block(contender, keep=False)
        collectives.barrier()  # what other nodes send has arrived, too
        self._taken[contender.name] = traffic.passed(before, traffic.read())

    def _traffic(self, name: str) -> float | None:
        """Return the bytes that leave a node : the fewest possible. Collective."""
        if name not in self._taken:
            return None
        of_ranks: list[Any] = [None] * self._n
        objects.all_gather_object(of_ranks, self._taken[name])
        return traffic.over_least(of_ranks, self._node, self._fewest)

    def _sides(self) -> list[Buffer]:
        return [side for pair in self._pairs for side in pair if side is not None]

    def _checked(self, contender: Contender, calls: list[Call]) -> list[int]:
        first = self._number
        self._number += len(calls)
        if self._gives is not None:
            for number, (send, recv) in enumerate(self._pairs, first):
                given = send or recv
                assert given is not None
                self._values.write(given.array, self._gives, number)
        collectives.barrier()
        took = stamped(calls)
        if contender.checked and self._gets is not None:
            for number, (_, recv) in enumerate(self._pairs, first):
                assert recv is not None
                self._found_wrong(contender, self._values.wrong(recv.array, self._gets, number))
        return took

    def _found_wrong(self, contender: Contender, what: str) -> None:
        if what and not self._wrong:
            self._wrong = (
                f"bench: {contender.name}: {self._operation.name} of {self._bytes} bytes gave a "
                f"wrong result on rank {self._rank}: {what}"
            )

    def raise_if_wrong(self) -> None:
        """Raise WrongResultError on all ranks if some rank found a wrong result."""
        for wrong in filter(None, of_all_ranks(self._wrong)):
            raise WrongResultError(wrong)

    def rows(self, measured: Sequence[Contender]) -> list[Row]:
        """Return the figures of the contenders, the same on all ranks. Collective."""
        cost = clock_cost()
        times = {
            contender.name: [
                max(ns - cost, 1.0) / 1000 for ns in slowest(self._samples[contender.name])
            ]
            for contender in measured
        }
        rounds = {name: self._medians(taken) for name, taken in times.items()}
        found = {name: quartiles(ratios(r, rounds[OURS])) for name, r in rounds.items()}
        control = found.get(AGAIN)
        ways = {contender.name: contender.way() for contender in measured}
        return [
            self._row(name, taken, found[name], control, ways[name])
            for name, taken in times.items()
        ]

    def _medians(self, taken: list[float]) -> list[float]:
        """Return the median of each round."""
        return [
            quantile(taken[at : at + self.calls], 0.5) for at in range(0, len(taken), self.calls)
        ]

    def _row(
        self, name: str, taken: list[float], ratio: Quartiles, control: Quartiles | None, way: str
    ) -> Row:
        p50 = quantile(taken, 0.5)
        gbps = self._bytes / p50 / 1000 if self._n > 1 else None
        enough = len(taken) >= LEAST_ROUNDS * self.calls
        compared = enough and name not in (OURS, AGAIN)
        return Row(
            operation=self._operation.name,
            bytes=self._bytes,
            contender=name,
            calls=len(taken),
            p50_us=p50,
            p99_us=quantile(taken, 0.99),
            algorithm_gbps=gbps,
            bus_gbps=None if gbps is None else gbps * self._operation.bus(self._n),
            path=self._paths[name],
            ratio=None if name == OURS else ratio,
            differs=ratio_differs(ratio, control) if compared and control else None,
            counted=name in self._taken,
            traffic=self._traffic(name),
            way=way,
        )


def of_all_ranks(text: str) -> list[str]:
    """Return the texts that the ranks give. Collective over the world."""
    texts = [""] * group.get_world_size()
    objects.all_gather_object(texts, text)
    return texts
