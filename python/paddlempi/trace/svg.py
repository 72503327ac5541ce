"""Timelines as a picture that needs no program: ranks are rows, time goes to the right.

A call of two pixels or more is drawn by itself, and says what it is where a pointer rests. Shorter
ones are added up: the height of a column is the share of its time in calls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from .chrome import base
from .model import Timeline
from .replacing import replacing
from .report import deaths
from .slices import FAMILIES, Slices, families, family, messages, notes, slices

__all__ = ["LEGEND", "caused", "draw", "headline", "until", "write"]

_WIDTH, _LEFT, _RIGHT, _TOP = 1200, 150, 20, 70
_ACROSS = _WIDTH - _LEFT - _RIGHT
_MOST_ARROWS = 300
_MOST_RANKS = 256

_STYLE = """
svg { background: var(--ground); font: 12px system-ui, sans-serif; }
text { fill: var(--ink); } .faint { fill: var(--faint); }
.middle { text-anchor: middle; } h1, .title { font-size: 15px; font-weight: 600; }
.band { fill: var(--band); } .rule { stroke: var(--rule); fill: none; }
.late { fill: var(--late); } .death { stroke: var(--late); stroke-width: 2; fill: none; }
.end { stroke: var(--faint); fill: none; }
.arrow { stroke: var(--message); stroke-width: 1; fill: none; }
"""


def write(timeline: Timeline, path: str | os.PathLike[str]) -> list[str]:
    """Write a picture.

    Args:
        timeline: of one clock (``clock.align``).

    Returns:
        Sentences on what the picture does not have.

    Raises:
        OSError: the file cannot be written. An older file of that name is then still there.
    """
    text, told = draw(timeline)
    with replacing(path) as staged:
        staged.write_text(text, encoding="utf-8")
    return told


def caused(timeline: Timeline, drawn: Slices) -> dict[int, int]:
    """Return for every rank how many nanoseconds others waited for it, summed over them."""
    table = drawn.list[drawn.list["waited"] > drawn.list["wait"]]
    awaited = drawn.awaited[table["operation"]]
    others = (awaited >= 0) & (awaited != table["rank"])
    lasts = (table["waited"] - table["wait"])[others]
    sums = np.bincount(awaited[others], lasts, max([*timeline.ranks, 0]) + 1)
    return {rank: int(sums[rank]) for rank in timeline.ranks}


def draw(timeline: Timeline) -> tuple[str, list[str]]:
    """Return a picture as the text of an SVG file, and sentences on what it does not have."""
    picture = _Picture(timeline, slices(timeline))
    return "\n".join(picture.lines()) + "\n", picture.told


def until(timeline: Timeline, drawn: Slices) -> int:
    """Return when the last call or process ended, in nanoseconds since 1970."""
    ends = [int(drawn.list["end"].max())] if len(drawn.list) else []
    return max([*ends, *(rank.ended for rank in timeline.ranks.values()), base(timeline)])


def headline(timeline: Timeline, drawn: Slices) -> str:
    """Say what a picture shows: how many ranks, how long, and when."""
    hosts = len({rank.host for rank in timeline.ranks.values()})
    begin = base(timeline)
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(begin / 1e9))
    count = len(timeline.ranks)
    return (
        f"{count} rank{'s' * (count != 1)} on {hosts} host{'s' * (hosts != 1)}, "
        f"{_duration(until(timeline, drawn) - begin)} from {when}"
    )


class _Picture:
    """A picture that is made of a timeline: the places of its rows and times."""

    def __init__(self, timeline: Timeline, drawn: Slices) -> None:
        self._timeline, self._drawn, self.told = timeline, drawn, notes(timeline)
        self._shown = sorted(timeline.ranks)
        if len(self._shown) > _MOST_RANKS:
            by = caused(timeline, drawn)
            slowest = sorted(self._shown, key=lambda rank: (-by[rank], rank))
            self._shown = sorted(slowest[:_MOST_RANKS])
            self.told.append(
                f"{_MOST_RANKS} of {len(timeline.ranks)} ranks are drawn: those that others have "
                "waited for longest"
            )
        wanted = sum(drawn.lanes[rank][1] for rank in self._shown)
        self._most_lanes = 8 if wanted <= 80 else 3 if len(self._shown) <= 64 else 1
        rows = sum(self._lanes(rank) for rank in self._shown)
        self._row = 18.0 if rows <= 40 else 12.0 if rows <= 120 else 6.0
        self._y: dict[int, float] = {}
        at = float(_TOP)
        for rank in self._shown:
            self._y[rank] = at
            at += self._lanes(rank) * self._row + (6 if self._row > 6 else 2)
        self._bottom = at
        self._begin = base(timeline)
        self._title = headline(timeline, drawn)
        self._end = max(until(timeline, drawn), self._begin + 1000)

    def _lanes(self, rank: int) -> int:
        return max(1, min(self._drawn.lanes[rank][1], self._most_lanes))

    def _x(self, at: Any) -> Any:
        return _LEFT + (at - self._begin) * (_ACROSS / (self._end - self._begin))

    def lines(self) -> Iterator[str]:
        """Yield the lines of the file."""
        height = self._bottom + 34
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
            f'width="{_WIDTH}" height="{height:.0f}" role="img">'
        )
        yield f"<title>{escape(self._title)}</title>"
        yield f"<style>{_palette()}{_STYLE}{_fills()}</style>"
        yield f"<defs>{''.join(map(_hatched, FAMILIES))}</defs>"
        yield f'<rect width="{_WIDTH}" height="{height:.0f}" fill="var(--ground)"/>'
        yield f'<text class="title" x="10" y="24">{escape(self._title)}</text>'
        yield from self._legend()
        for number, rank in enumerate(self._shown):
            yield from self._name(number, rank)
        yield from self._axis()
        for rank in self._shown:
            yield from self._rank(rank)
        yield from self._arrows()
        yield from self._marks()
        yield "</svg>"

    def _legend(self) -> Iterator[str]:
        used = np.unique(families(self._timeline, self._timeline.operations)).tolist()
        x = 10.0
        for name in (FAMILIES[code] for code in used):
            yield f'<rect class="{name}" x="{x:.0f}" y="38" width="14" height="12"/>'
            yield f'<rect class="{name} w" x="{x + 16:.0f}" y="38" width="14" height="12"/>'
            label = f"{LEGEND[name]}: moves, waits"
            yield f'<text x="{x + 35:.0f}" y="48">{label}</text>'
            x += 47 + 6.8 * len(label)
        if self._drawn.late:
            yield f'<path class="late" d="M{x:.0f} 40h10l-5 9z"/>'
            yield f'<text x="{x + 15:.0f}" y="48">comes late</text>'

    def _name(self, number: int, rank: int) -> Iterator[str]:
        y, height = self._y[rank], self._lanes(rank) * self._row
        if number % 2 == 0:
            box = f'x="0" y="{y - 2:g}" width="{_WIDTH}" height="{height + 4:g}"'
            yield f'<rect class="band" {box}/>'
        of = self._timeline.ranks[rank]
        if self._row > 6 or number % 4 == 0:
            size = min(12.0, height)
            middle = y + height / 2 + size / 3
            host = f' <tspan class="faint">{escape(_short(of.host))}</tspan>'
            yield f'<text x="10" y="{middle:.1f}" font-size="{size:g}">rank {rank}{host}</text>'
        if of.problem:
            text = f'<text class="faint" x="{_LEFT + 6}" y="{y + 12:g}">'
            yield f"{text}not recorded: {escape(of.problem)}</text>"

    def _axis(self) -> Iterator[str]:
        whole = self._end - self._begin
        step = next(s for s in _steps() if whole / s <= 11)
        for number in range(whole // step + 1):
            x = self._x(self._begin + number * step)
            yield f'<path class="rule" d="M{x:.1f} {_TOP - 6}V{self._bottom:.1f}"/>'
            yield (
                f'<text class="faint middle" x="{x:.1f}" y="{self._bottom + 16:.0f}">'
                f"{_duration(number * step)}</text>"
            )

    def _rank(self, rank: int) -> Iterator[str]:
        table = self._drawn.list
        part = table[slice(*np.searchsorted(table["rank"], [rank, rank + 1]))]
        lanes = np.minimum(part["lane"], self._most_lanes - 1)
        for lane in range(self._lanes(rank)):
            yield from self._lane(part[lanes == lane], self._y[rank] + lane * self._row)

    def _lane(self, part: npt.NDArray[Any], y: float) -> Iterator[str]:
        left, right = self._x(part["begin"]), self._x(part["end"])
        wide = right - left >= 2
        height = self._row - 2
        for row, x, end in zip(part[wide], left[wide], right[wide], strict=True):
            yield from self._call(row, x, end, y, height)
        yield from self._columns(part[~wide], y, height)

    def _call(self, row: Any, x: float, end: float, y: float, height: float) -> Iterator[str]:
        """Yield a call by itself: what it waited is hatched."""
        operation = self._timeline.operations[row["operation"]]
        name = self._timeline.names.operations[operation["name"]]
        kind = family(name, int(operation["flags"]))
        parts = [(x, end, kind + " w" * bool(row["caller"]))]
        if row["waited"] > row["wait"]:
            begin, until = float(self._x(row["wait"])), float(self._x(row["waited"]))
            parts = [(x, begin, kind), (begin, until, f"{kind} w"), (until, end, kind)]
        yield f"<g><title>{escape(self._told(row, operation, name))}</title>"
        for begin, until, kinds in parts:
            if until - begin >= 0.05:
                place = f'x="{begin:.1f}" y="{y:g}" width="{until - begin:.1f}"'
                yield f'<rect class="{kinds}" {place} height="{height:g}"/>'
        yield "</g>"

    def _told(self, row: Any, operation: Any, name: str) -> str:
        if row["caller"]:
            return f"waits for {name}: {_duration(int(row['end'] - row['begin']))}"
        outcome = operation["outcome"]
        how = "under way" if outcome < 0 else self._timeline.names.outcomes[outcome]
        text = f"{name}, {operation['nbytes']:,} bytes, {how}: "
        text += _duration(int(row["end"] - row["begin"]))
        waited, awaited = int(row["waited"] - row["wait"]), self._drawn.awaited[row["operation"]]
        if waited > 0 and awaited not in (-1, row["rank"]):
            text += f", of which {_duration(waited)} for rank {awaited}"
        return text

    def _columns(self, part: npt.NDArray[Any], y: float, height: float) -> Iterator[str]:
        """Yield columns for calls that are too narrow to be seen alone, added up."""
        if not len(part):
            return
        codes = families(self._timeline, self._timeline.operations[part["operation"]])
        pixel = (self._x(part["begin"]) - _LEFT).astype(np.int64)
        busy = np.zeros((len(FAMILIES), _ACROSS + 1))
        waits = np.zeros(_ACROSS + 1)
        np.add.at(busy, (codes, pixel), part["end"] - part["begin"])
        waited = np.where(
            part["caller"], part["end"] - part["begin"], part["waited"] - part["wait"]
        )
        np.add.at(waits, pixel, waited)
        whole = (self._end - self._begin) / _ACROSS
        total = busy.sum(axis=0)
        # In steps of a quarter of a pixel; what is there is seen.
        tall = np.maximum(np.round(4 * height * np.minimum(total / whole, 1)) / 4, 2)
        share = np.divide(waits, total, out=np.zeros_like(waits), where=total > 0)
        pale = np.round(4 * tall * np.minimum(share, 1)) / 4
        kind = np.where(total > 0, busy.argmax(axis=0), -1)
        look = np.stack([kind, np.where(total > 0, tall, 0), np.where(total > 0, pale, 0)])
        changes = np.flatnonzero((look[:, 1:] != look[:, :-1]).any(axis=0)) + 1
        for begin, end in zip([0, *changes], [*changes, _ACROSS + 1], strict=True):
            code, full, waiting = look[:, begin]
            if code < 0:
                continue
            place, name = f'x="{_LEFT + begin}" width="{end - begin}"', FAMILIES[int(code)]
            top = y + height - full
            if waiting:
                yield f'<rect class="{name} w" {place} y="{top:g}" height="{waiting:g}"/>'
            if full > waiting:
                box = f'{place} y="{top + waiting:g}" height="{full - waiting:g}"'
                yield f'<rect class="{name}" {box}/>'

    def _arrows(self) -> Iterator[str]:
        pairs = messages(self._timeline)
        if len(pairs) > _MOST_ARROWS:
            self.told.append(f"{len(pairs):,} messages have no arrows: more than {_MOST_ARROWS}")
            return
        operations = self._timeline.operations
        for sent, received in pairs:
            ranks = [int(operations["rank"][i]) for i in (sent, received)]
            if all(rank in self._y for rank in ranks):
                x = [
                    self._x(operations[c][i]) for c, i in (("submitted", sent), ("ended", received))
                ]
                y = [self._y[rank] + self._row / 2 for rank in ranks]
                yield f'<path class="arrow" d="M{x[0]:.1f} {y[0]:g}L{x[1]:.1f} {y[1]:g}"/>'

    def _marks(self) -> Iterator[str]:
        operations = self._timeline.operations
        last: dict[int, float] = {}  # those that touch the one before are left out
        for late in self._drawn.late:
            rank = int(operations["rank"][late.operation])
            came = operations["begun"][late.operation] or operations["submitted"][late.operation]
            x = round(self._x(came))
            if rank in self._y and x - last.get(rank, 0) >= 8:
                last[rank] = x
                told = f"rank {rank} comes {_duration(late.by)} after the others"
                yield f'<path class="late" d="M{x - 4} {self._y[rank] - 4:g}h8l-4 7z">'
                yield f"<title>{told}</title></path>"
        died = {death.rank for death in deaths(self._timeline)}
        for rank in self._shown:
            if ended := self._timeline.ranks[rank].ended:
                kind, how = ("death", "died") if rank in died else ("end", "ended")
                x, y = self._x(ended), self._y[rank]
                low = y + self._lanes(rank) * self._row
                yield f'<g class="{kind}"><title>rank {rank} {how}</title>'
                yield f'<path d="M{x:.1f} {y:g}V{low:g}M{x - 4:.1f} {y:g}l8 8m0 -8l-8 8"/></g>'


LEGEND = {
    "reduce": "reduces",
    "spread": "copies",
    "exchange": "exchanges",
    "barrier": "barrier",
    "message": "messages",
    "other": "other",
}


def _palette() -> str:
    return files(__package__).joinpath("viewer").joinpath("palette.css").read_text(encoding="utf-8")


def _fills() -> str:
    return "".join(
        f".{name} {{ fill: var(--{name}); }} .{name}.w {{ fill: url(#w-{name}); }}\n"
        for name in FAMILIES
    )


def _hatched(name: str) -> str:
    return (
        f'<pattern id="w-{name}" width="5" height="5" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)">'
        f'<rect width="5" height="5" fill="var(--{name})" opacity=".25"/>'
        f'<rect width="1.5" height="5" fill="var(--{name})" opacity=".8"/></pattern>'
    )


def _steps() -> Iterable[int]:
    """Nanoseconds between two lines of the axis, from short to long."""
    return (number * 10**power for power in range(1, 19) for number in (1, 2, 5))


def _duration(nanoseconds: int) -> str:
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= factor:
            return f"{nanoseconds / factor:.4g} {unit}"
    return f"{nanoseconds} ns" if nanoseconds else "0"


def _short(text: str) -> str:
    return text if len(text) <= 12 else f"{text[:11]}\u2026"
