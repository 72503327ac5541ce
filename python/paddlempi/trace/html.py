"""Timelines as one page that a browser opens: no server, no network.

The calls are columns of numbers, compressed, in the page; a script draws them on a canvas (folder
viewer). Names of hosts and groups come from other processes: the page has them as JSON without "<",
and the script shows them as text. The page's policy lets nothing else run or load.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import zlib
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt

from . import findings, report
from .chrome import base
from .model import Timeline
from .replacing import replacing
from .slices import FAMILIES, Slices, families, messages, notes, slices
from .svg import LEGEND, headline, until
from .thinning import thin

__all__ = ["page", "write"]

_MOST = 500_000
"""So many slices a page has at most: some 10 MB, which a browser still draws at once."""

_MOST_GROUP_RANKS = 16  # that the name of a group lists


def write(timeline: Timeline, path: str | os.PathLike[str]) -> list[str]:
    """Write a page.

    Args:
        timeline: of one clock (``clock.align``).

    Returns:
        Sentences on what the page does not have. It says them, too.

    Raises:
        OSError: the file cannot be written. An older file of that name is then still there.
    """
    text, told = page(timeline)
    with replacing(path) as staged:
        staged.write_text(text, encoding="utf-8")
    return told


def page(timeline: Timeline, most: int = _MOST) -> tuple[str, list[str]]:
    """Return a page as text, and sentences on what it does not have.

    Args:
        most: slices; of more, the short ones are left out.
    """
    drawn = slices(timeline)
    thinned = thin(timeline, drawn, most)
    told = [*notes(timeline), *([thinned.rule] if thinned.rule else [])]
    table = thinned.list[
        np.lexsort((thinned.list["begin"], thinned.list["lane"], thinned.list["rank"]))
    ]
    columns = _columns(timeline, drawn, table)
    meta = {
        **_words(timeline, drawn, table),
        "notes": told,
        "columns": [[name, list_.dtype.str[1:], len(list_)] for name, list_ in columns.items()],
    }
    packed = zlib.compress(b"".join(list_.tobytes() for list_ in columns.values()), 6)
    script, style = _file("page.js"), _file("palette.css") + _file("page.css")
    policy = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    text = Template(_file("page.html")).substitute(
        policy=policy,
        title=html.escape(f"Timeline: {headline(timeline, drawn)}"),
        style=style,
        meta=json.dumps(meta, separators=(",", ":")).replace("<", "\\u003c"),
        data=base64.b64encode(packed).decode(),
        script=script,
    )
    return text, told


def _file(name: str) -> str:
    return files(__package__).joinpath("viewer").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _columns(
    timeline: Timeline, drawn: Slices, table: npt.NDArray[Any]
) -> dict[str, npt.NDArray[Any]]:
    """Return what the script reads of every slice, little endian, the widest numbers first.

    Times are nanoseconds: ``begin`` after that of the timeline, ``wait`` after ``begin``.
    """
    of = timeline.operations[table["operation"]]
    waited = table["waited"] - table["wait"]
    place = np.full(len(timeline.operations), -1, np.int64)
    whole = np.flatnonzero(~table["caller"])
    place[table["operation"][whole]] = whole
    pairs: npt.NDArray[Any] = place[np.array(messages(timeline), np.int64).reshape(-1, 2)]
    pairs = pairs[(pairs >= 0).all(axis=1)]
    return {
        "begin": (table["begin"] - base(timeline)).astype("<f8"),
        "last": (table["end"] - table["begin"]).astype("<f8"),
        "wait": np.where(waited > 0, table["wait"] - table["begin"], 0).astype("<f8"),
        "waited": waited.astype("<f8"),
        "bytes": of["nbytes"].astype("<f8"),
        "seq": of["seq"].astype("<f8"),
        "awaited": drawn.awaited[table["operation"]].astype("<i4"),
        "group": of["group"].astype("<i4"),
        "sent": pairs[:, 0].astype("<i4"),
        "got": pairs[:, 1].astype("<i4"),
        **{name: of[name].astype("<i2") for name in ("name", "dtype", "algorithm", "outcome")},
        "family": families(timeline, of),
        "caller": table["caller"].astype("u1"),
    }


def _words(timeline: Timeline, drawn: Slices, table: npt.NDArray[Any]) -> dict[str, Any]:
    """Return what the script reads once."""
    begins, names, made = base(timeline), timeline.names, report.make(timeline)
    used = set(families(timeline, timeline.operations).tolist())
    return {
        "span": until(timeline, drawn) - begins,
        "order": sorted(timeline.ranks),
        "lanes": _lanes(timeline, drawn, table),
        "names": {
            "operations": names.operations,
            "dtypes": names.dtypes,
            "algorithms": names.algorithms,
            "outcomes": names.outcomes,
        },
        "groups": [_group_name(g.key, g.ranks, timeline) for g in timeline.groups],
        "families": FAMILIES,
        "legend": [[name, LEGEND[name]] for i, name in enumerate(FAMILIES) if i in used],
        "marks": _marks(timeline, drawn, begins),
        "table": _table(made),
        "findings": [f"{one.text} {one.advice}" for one in findings.of(made)],
        "said": f"{len(table):,} calls and waits are drawn. Ctrl and the wheel zoom, dragging "
        "moves; keys: w s a d 0 /",
    }


def _group_name(key: str, ranks: tuple[int, ...], timeline: Timeline) -> str:
    size = next((rank.size for rank in timeline.ranks.values()), 0)
    if ranks == tuple(range(size)):
        return f"the group of all {size} ranks ({key})"
    listed = ", ".join(map(str, ranks[:_MOST_GROUP_RANKS]))
    more = f" and {len(ranks) - _MOST_GROUP_RANKS} more" * (len(ranks) > _MOST_GROUP_RANKS)
    return f"the group of ranks {listed}{more} ({key})"


def _lanes(timeline: Timeline, drawn: Slices, table: npt.NDArray[Any]) -> list[dict[str, Any]]:
    """Return the rows of the picture, each with the slices that are its own."""
    rows = []
    key = table["rank"].astype(np.int64) << 32 | table["lane"]
    for rank in sorted(timeline.ranks):
        callers, lanes = drawn.lanes[rank]
        for lane in range(max(lanes, 1)):
            first, behind = np.searchsorted(key, [(rank << 32) + lane, (rank << 32) + lane + 1])
            number = lane if lane < callers else lane - callers
            name = "callers" if lane < max(callers, 1) else "under way"
            name += f" {number + 1}" if number else ""
            rows.append({"rank": rank, "name": name, "from": int(first), "to": int(behind)})
    return rows


def _marks(timeline: Timeline, drawn: Slices, begins: int) -> list[dict[str, Any]]:
    operations = timeline.operations
    marks = []
    for late in drawn.late:
        row = operations[late.operation]
        at = int(row["begun"] or row["submitted"]) - begins
        marks.append({"rank": int(row["rank"]), "at": at, "ended": False, "died": False})
    died = {death.rank for death in report.deaths(timeline)}
    for of in timeline.ranks.values():
        if of.ended:
            at, is_dead = of.ended - begins, of.rank in died
            marks.append({"rank": of.rank, "at": at, "ended": True, "died": is_dead})
    return marks


def _table(made: report.Report) -> dict[str, Any]:
    """Return the table of the ranks: heads with the kinds of their values, and the lines."""
    heads = [
        *(("rank", ""), ("host", ""), ("others waited", "time"), ("it waited", "time")),
        *(("hidden", "share"), ("calls", "count"), ("bytes", "bytes"), ("lost", "count")),
    ]
    lines = []
    for one in made.ranks:
        part, waits = one.part, (one.cost, one.part.waited)
        lines.append([one.rank, one.host, *waits, part.hidden, part.calls, part.nbytes, one.lost])
    return {"heads": heads, "lines": lines, "by": 2}
