"""Files of torch's profiler on the clock of a timeline, with its lanes beside theirs.

torch (Kineto) writes a file of Chrome's JSON for every rank, with stamps of the clock of its host
in microseconds after ``baseTimeNanoseconds``, and the rank in ``distributedInfo``. They are shifted
as the timeline's own stamps of that host are.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import chrome, clock
from .model import ASYNC, Timeline
from .replacing import replacing

__all__ = ["Agreement", "TorchTrace", "agreement", "read_folder", "write"]

SPANS = "mpi:"  # what the names of our operations begin with in torch's files
_SUFFIXES = (".json", ".json.gz")
_HEAD = ("schemaVersion", "deviceProperties", "distributedInfo", "with_stack", "record_shapes")


@dataclasses.dataclass(frozen=True)
class TorchTrace:
    """A file of torch's profiler.

    Attributes:
        head: what it has beside the events.
        base: ``baseTimeNanoseconds``; 0 in files of old releases, whose stamps are whole.
        events: those that are objects.
    """

    path: Path
    rank: int
    head: Mapping[str, Any]
    base: int
    events: Sequence[dict[str, Any]]

    def stamps(self) -> npt.NDArray[np.int64]:
        """Return when each event was, in nanoseconds of its host's clock; 0: it has no time."""
        ts = np.array([_number(event.get("ts")) for event in self.events], np.float64)
        known = np.abs(ts) < 1e16
        return np.where(
            known, self.base + np.rint(np.where(known, ts, 0) * 1e3).astype(np.int64), 0
        )


def _number(value: object) -> float:
    """The number that a file has, NaN if it has none there, or an integer of hundreds of digits."""
    try:
        return float(value) if isinstance(value, (int, float)) else math.nan
    except OverflowError:
        return math.nan


@dataclasses.dataclass(frozen=True)
class Agreement:
    """How well the spans of our operations in a torch file lie on the timeline's operations.

    A span begins before Python hands the operation to the core, and ends after that: its ends are
    some microseconds off. torch ends the span of an asynchronous operation when it completes the
    future, which may be much later than the operation's end.

    Attributes:
        spans: how many there are while the rank was recorded.
        begins, ends: how much later each that was found is than its operation, in nanoseconds.
        is_async: of each.
    """

    spans: int
    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    is_async: npt.NDArray[np.bool_]

    def within(self, ns: int) -> float:
        """Return the share of the spans that are so near; of asynchronous ones, their begins."""
        ends = np.where(self.is_async, 0, self.ends)
        near = (np.abs(self.begins) <= ns) & (np.abs(ends) <= ns)
        return float(near.sum()) / max(self.spans, 1)

    @property
    def clocks(self) -> float:
        """How far torch's clock may be from the timeline's, in nanoseconds; infinite: not known.

        As a span has its operation in it, torch's clock is no more ahead than the span that ends
        soonest after its operation says, and no more behind than the one that begins latest before.
        One in a hundred is left out: it may have been compared with another operation.
        """
        if len(self.begins) == 0:
            return math.inf
        ahead, behind = np.quantile(self.ends, 0.01), -np.quantile(self.begins, 0.99)
        return float(max(abs(ahead), abs(behind)))


def read_folder(folder: Path, timeline: Timeline) -> tuple[list[TorchTrace], list[str]]:
    """Read the files of torch's profiler in a folder that are of the job of a timeline.

    Returns:
        The files by rank, and sentences on those that are left out.

    Raises:
        OSError: the folder cannot be read.
    """
    found, left = [], []
    for path in sorted(folder.iterdir()):
        if not path.name.endswith(_SUFFIXES) or not path.is_file():
            continue
        try:
            found.append(_read(path, timeline))
        except (_NotOurs, OSError, ValueError, EOFError, RecursionError, zlib.error) as error:
            left.append(f"{path} is left out: {error}")
    return sorted(found, key=lambda trace: (trace.rank, str(trace.path))), left


class _NotOurs(Exception):
    pass


def _read(path: Path, timeline: Timeline) -> TorchTrace:
    raw = path.read_bytes()
    data = json.loads(gzip.decompress(raw) if path.name.endswith(".gz") else raw)
    events = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list):
        raise _NotOurs("it has no traceEvents, so it is no file of torch's profiler")
    events = [event for event in events if isinstance(event, dict)]
    base = data.get("baseTimeNanoseconds", 0)
    if type(base) is not int or not 0 <= base < 1 << 62:
        raise _NotOurs(f"baseTimeNanoseconds is {base!r}")
    head = {key: value for key, value in data.items() if key != "traceEvents"}
    return TorchTrace(path, _rank(data, events, timeline), head, base, events)


def _rank(data: Mapping[str, Any], events: Sequence[dict[str, Any]], timeline: Timeline) -> int:
    """The rank that wrote a file: the one whose process it names."""
    pids = {event.get("pid") for event in events if type(event.get("pid")) is int}
    told = data.get("distributedInfo")
    rank = told.get("rank") if isinstance(told, dict) else None
    if type(rank) is int:
        if rank not in timeline.ranks:
            raise _NotOurs(f"it is of rank {rank}, of which there is no recording")
        if timeline.ranks[rank].pid not in pids:
            raise _NotOurs(
                f"it is of another run: rank {rank} was process {timeline.ranks[rank].pid}, "
                "which it does not name"
            )
        return rank
    ranks = [rank for rank, one in timeline.ranks.items() if one.pid in pids]
    if len(ranks) != 1:
        raise _NotOurs(f"it names processes of {len(ranks)} recorded ranks and no rank")
    return ranks[0]


def agreement(timeline: Timeline, trace: TorchTrace) -> Agreement:
    """Compare torch's spans of our operations with a timeline that is on one clock.

    A span is compared with the operation of its name that was submitted nearest to its begin.
    """
    o = timeline.operations[timeline.operations["rank"] == trace.rank]
    shift = _shift(timeline, trace.rank)
    stamps = shift.of(trace.stamps())
    if len(o) == 0:
        return Agreement(0, *(np.zeros(0, np.int64),) * 2, np.zeros(0, bool))
    first, last = int(o["submitted"].min()), int(o["submitted"].max())
    spans: dict[str, list[tuple[int, int]]] = {}
    for event, begin in zip(trace.events, stamps.tolist(), strict=True):
        name, length = str(event.get("name")), _number(event.get("dur"))
        if not name.startswith(SPANS) or not 0 <= length < 1e16:
            continue
        if first - 1_000_000 <= begin <= last + 1_000_000:
            end = begin + round(length * 1e3)
            spans.setdefault(name.removeprefix(SPANS), []).append((begin, end))
    begins, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    is_async = [np.zeros(0, bool)]
    for name, pairs in spans.items():
        if name not in timeline.names.operations:
            continue
        mine = o[(o["name"] == timeline.names.operations.index(name)) & (o["ended"] > 0)]
        if len(mine) == 0:
            continue
        at = np.array(pairs, np.int64)
        right = np.clip(np.searchsorted(mine["submitted"], at[:, 0]), 1, len(mine) - 1)
        left = np.maximum(right - 1, 0)
        if len(mine) == 1:
            right = left
        nearer = at[:, 0] - mine["submitted"][left] < mine["submitted"][right] - at[:, 0]
        row = mine[np.where(nearer, left, right)]
        begins.append(at[:, 0] - row["submitted"])
        ends.append(at[:, 1] - row["ended"])
        is_async.append(row["flags"] & ASYNC != 0)
    count = sum(map(len, spans.values()))
    return Agreement(count, *map(np.concatenate, (begins, ends, is_async)))


def _shift(timeline: Timeline, rank: int) -> Any:
    clocks: clock.Clocks = timeline.clocks
    return clocks.hosts[clocks.of_rank[rank]].shift


def write(timeline: Timeline, traces: Sequence[TorchTrace], path: Path) -> list[Path]:
    """Write torch's files on the clock of a timeline, with its lanes.

    Args:
        timeline: what ``clock.align`` has returned.
        traces: of its ranks.
        path: a file for all ranks, whose name ends with .json or .json.gz, which Perfetto opens;
            or a folder, which gets a file for every rank, as Holistic Trace Analysis wants them.

    Returns:
        The files.

    Raises:
        OSError: one cannot be written.
    """
    stamps = [_shift(timeline, trace.rank).of(trace.stamps()) for trace in traces]
    first = [int(of[of > 0].min()) for of in stamps if (of > 0).any()]
    base = min([chrome.base(timeline), *first])
    if path.name.endswith(_SUFFIXES):
        head = dict(traces[0].head) if len(traces) == 1 else _common(traces)
        events = _all(timeline, traces, stamps, base)
        _write(path, {**head, "baseTimeNanoseconds": base}, (text for _, text in events))
        return [path]
    path.mkdir(parents=True, exist_ok=True)
    texts: dict[int, list[str]] = {trace.rank: [] for trace in traces}
    for rank, text in _all(timeline, traces, stamps, base):
        # The other end of a message is in another file.
        if rank in texts and '"cat":"message"' not in text[-60:]:
            texts[rank].append(text)
    written = []
    for rank, of in texts.items():
        head = next(dict(trace.head) for trace in traces if trace.rank == rank)
        written.append(path / f"rank-{rank}.json.gz")
        _write(written[-1], {**head, "baseTimeNanoseconds": base}, of)
    return written


def _common(traces: Sequence[TorchTrace]) -> dict[str, Any]:
    """What is said of all ranks: what the first file says, without its rank."""
    head = {key: value for key, value in traces[0].head.items() if key in _HEAD}
    if isinstance(told := head.get("distributedInfo"), dict):
        head["distributedInfo"] = {key: value for key, value in told.items() if key != "rank"}
    return {**head, "displayTimeUnit": "ms"}


def _all(
    timeline: Timeline,
    traces: Sequence[TorchTrace],
    stamps: Sequence[npt.NDArray[np.int64]],
    base: int,
) -> Iterator[tuple[int, str]]:
    """Every event with its rank: the timeline's, whose processes are the ranks, and torch's."""
    for text in chrome.events(timeline, base):
        pid = re.search(r'"pid":(\d+)', text)
        if pid is not None and '"process_sort_index"' not in text:
            yield int(pid[1]), text
    order = max(timeline.ranks) + 1
    for rank in timeline.ranks:
        yield rank, _metadata(rank, "process_sort_index", {"sort_index": 100 * rank})
    processes: dict[tuple[int, Any], int] = {}
    for trace, at in zip(traces, stamps, strict=True):
        for event, moment in zip(trace.events, at.tolist(), strict=True):
            of = trace.rank, event.get("pid")
            if of not in processes:
                processes[of] = order + len(processes)
                place = {"sort_index": 100 * trace.rank + 1 + len(processes) % 99}
                yield trace.rank, _metadata(processes[of], "process_sort_index", place)
            if event.get("name") != "process_sort_index":
                made = _moved(event, trace.rank, processes[of], moment, base)
                yield trace.rank, json.dumps(made, separators=(",", ":"))


def _metadata(pid: int, name: str, args: Mapping[str, Any]) -> str:
    made = {"ph": "M", "pid": pid, "tid": 0, "name": name, "args": args}
    return json.dumps(made, separators=(",", ":"))


def _moved(event: dict[str, Any], rank: int, pid: int, moment: int, base: int) -> dict[str, Any]:
    made = {**event, "pid": pid}
    if moment:
        made["ts"] = (moment - base) / 1e3
    if "id" in event:  # of an arrow, which joins events of one rank
        made["id"] = f"{rank}.{event['id']}"
    if event.get("name") == "process_name" and isinstance(event.get("args"), dict):
        made["args"] = {**event["args"], "name": f"rank {rank}: {event['args'].get('name')}"}
    return made


def _write(path: Path, head: Mapping[str, Any], events: Iterable[str]) -> None:
    opened = gzip.open if path.name.endswith(".gz") else open
    with replacing(path) as staged, opened(staged, "wt", encoding="utf-8") as out:
        out.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        for number, text in enumerate(events):
            out.write(f",\n{text}" if number else text)
        out.write("\n]}\n")
