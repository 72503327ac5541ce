"""Read timelines into memory: parts that ``trace record`` has written, or dumps of dead jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import dumps, parts
from .model import MESSAGE, OPERATION, Group, Names, Rank, Timeline

__all__ = ["LoadError", "load", "read"]


class LoadError(Exception):
    """Nothing that was named can be read as a timeline."""


def load(*paths: str | Path, job: str | None = None) -> Timeline:
    """Read a timeline, with the hosts' clocks as they are.

    Args:
        paths: files of ``trace record``, one for each host; folders with such files; or folders
            of ``trace dump``, with what the ranks of a dead job have recorded last.
        job: which job, where there are several; by default the one with the most operations.

    Returns:
        All ranks that can be read. What cannot is named in its ``warnings``.

    Raises:
        LoadError: there is no rank that can be read.
    """
    return read(paths, job=job)


def read(paths: Iterable[str | Path], *, job: str | None = None) -> Timeline:
    """Read a timeline: :func:`load` with the paths as one argument."""
    named = [Path(path) for path in paths]
    warnings: list[str] = []
    found = list(_ranks_of(named, warnings))
    names = " ".join(map(str, named))
    if not found:
        raise LoadError("; ".join([f"no rank can be read from {names or 'no path'}", *warnings]))
    found = _of_one_job(found, job, warnings)
    return _merge(_each_once(found, warnings), warnings)


def _ranks_of(paths: Sequence[Path], warnings: list[str]) -> Iterator[parts.RankPart]:
    """Read all ranks of all files. What cannot be read is named in warnings."""
    for path in paths:
        try:
            if path.is_dir():
                files = sorted(file for file in path.glob("*.json") if parts.is_part(file))
                if not files:
                    yield from dumps.read_folder(path, warnings)
                    continue
            else:
                files = [path]
            for file in files:
                part = parts.read_part(file)
                warnings.extend(f"{file}: {note}" for note in part.notes)
                yield from part.ranks
        except (parts.PartError, dumps.DumpError, OSError) as error:
            warnings.append(str(error))


def _of_one_job(
    found: list[parts.RankPart], job: str | None, warnings: list[str]
) -> list[parts.RankPart]:
    """Return the ranks of one job; the others are named in warnings."""
    jobs: dict[str, int] = {}
    for part in found:
        jobs[part.rank.job] = jobs.get(part.rank.job, 0) + len(part.columns["number"]) + 1
    if job is not None and job not in jobs:
        raise LoadError(f"job={job!r}: there are only jobs {', '.join(sorted(jobs))}")
    chosen = job if job is not None else max(jobs, key=lambda name: (jobs[name], name))
    for other in sorted(set(jobs) - {chosen}):
        ranks = sorted({part.rank.rank for part in found if part.rank.job == other})
        warnings.append(
            f"ranks {', '.join(map(str, ranks[:8]))}{' ...' if len(ranks) > 8 else ''} are of "
            f"another job, {other or 'without a name'}, and left out; job {chosen} is shown"
        )
    return [part for part in found if part.rank.job == chosen]


def _each_once(found: list[parts.RankPart], warnings: list[str]) -> list[parts.RankPart]:
    """Return each rank once, by rank: the part of it that has the most operations."""
    ranks: dict[int, parts.RankPart] = {}
    size = max(found, key=lambda part: len(part.columns["number"])).rank.size
    for part in found:
        before = ranks.get(part.rank.rank)
        if part.rank.size != size:
            warnings.append(
                f"rank {part.rank.rank} of a job of {part.rank.size} ranks is left out: another "
                f"file is of {size}"
            )
            continue
        if before is not None:
            warnings.append(f"rank {part.rank.rank} is there twice; the longer part is shown")
            if len(before.columns["number"]) >= len(part.columns["number"]):
                continue
        ranks[part.rank.rank] = part
    missing = sorted(set(range(size)) - set(ranks)) if size <= 1 << 16 else []
    if missing:
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        listed = ", ".join(map(str, missing[:8]))
        warnings.append(f"no part has rank {listed}{more} of {size}")
    return [ranks[rank] for rank in sorted(ranks)]


@dataclasses.dataclass
class _Words:
    """Words by number, in the order in which they came."""

    places: dict[str, int] = dataclasses.field(default_factory=dict)

    def place(self, word: str | None) -> int:
        return -1 if word is None else self.places.setdefault(word, len(self.places))

    def all(self) -> tuple[str, ...]:
        return tuple(self.places)


def _merge(found: Sequence[parts.RankPart], warnings: list[str]) -> Timeline:
    words = {name: _Words() for name in ("operation", "dtype", "reduce_op", "algorithm")}
    outcomes = _Words({"ok": 0})
    groups: dict[tuple[str, tuple[int, ...]], int] = {}
    arrays = []
    for part in found:
        here = {
            number: groups.setdefault(group, len(groups)) for number, group in part.groups.items()
        }
        kinds = np.zeros(len(part.kinds), OPERATION)
        for row, kind in zip(kinds, part.kinds, strict=True):
            row["group"] = here.get(kind.group, -1)
            row["name"] = words["operation"].place(kind.operation)
            row["dtype"] = words["dtype"].place(kind.dtype)
            row["reduce"] = words["reduce_op"].place(kind.reduce_op)
            row["algorithm"] = words["algorithm"].place(kind.algorithm)
            row["outcome"] = outcomes.place(kind.outcome)
            row["flags"] = kind.flags
            row["root"] = -1 if kind.root is None else kind.root
            row["count"], row["nbytes"] = int(kind.counted), kind.nbytes
        arrays.append(_rows(part, kinds))
    operations = np.concatenate(arrays)
    operations = operations[np.argsort(operations["submitted"], kind="stable")]
    ranks: Mapping[int, Rank] = {part.rank.rank: part.rank for part in found}
    for rank in ranks.values():
        if rank.lost:
            warnings.append(f"rank {rank.rank}: {rank.lost} operations were not recorded")
        if rank.problem:
            warnings.append(f"rank {rank.rank}: {rank.problem}")
    return Timeline(
        ranks=dict(ranks),
        groups=tuple(Group(key, members) for key, members in groups),
        operations=operations,
        names=Names(
            operations=words["operation"].all(),
            dtypes=words["dtype"].all(),
            reduce_ops=words["reduce_op"].all(),
            algorithms=words["algorithm"].all(),
            outcomes=outcomes.all(),
        ),
        warnings=warnings,
    )


def _rows(part: parts.RankPart, kinds: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Make the rows of a rank, of what its kinds have and of its columns."""
    columns = part.columns
    rows: npt.NDArray[Any] = kinds[columns["kind"]]
    rows["rank"], rows["number"] = part.rank.rank, columns["number"].view(np.uint64)
    rows["seq"] = np.where(columns["seq"] > 0, columns["seq"], -1)
    rows["count"] *= columns["count"]  # 0 where that is no number of elements
    rows["nbytes"] *= rows["count"]
    rows["detail"] = columns["detail"].view(np.uint64)
    # A collective has no peers. One with shares of different lengths has its own there, plus 1.
    uneven = (rows["flags"] & MESSAGE == 0) & (columns["peer2"] > 0)
    rows["count"][uneven], rows["nbytes"][uneven] = -1, columns["peer2"][uneven] - 1
    columns = {**columns, "peer2": np.where(uneven, 0, columns["peer2"])}
    for name, first, second in (("peers", "peer", "peer2"), ("tags", "tag", "tag2")):
        rows[name][:, 0], rows[name][:, 1] = columns[first], columns[second]
    for name in ("submitted", "begun", "arrived", "waited", "ended"):
        rows[name] = columns[name]
    return rows
