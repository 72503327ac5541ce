"""Lines that fit between bounds: the geometry of ``clock``, which says where the bounds come from.

The offset of a clock at the time t is o(t) = a + b t, with the offset a and the drift b. A bound
o(t) < u or o(t) > l is a half-plane of (a, b); all of them leave a polygon, which is convex. For a
drift b the least a is L(b) = max(l - b t), over the corners of the upper hull of the points (t, l);
the greatest is U(b) = min(u - b t). Both are made of pieces of lines, so the corners of the polygon
are at the drifts at which a piece ends, and where L and U meet. Nothing is sampled or approximated,
but that of very many bounds only the tightest of each short while is looked at.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Bounds", "Fit", "Shift", "fit"]

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[Any]

MOST_DRIFT = 500e-6  # which NTP's kernel clock allows, and more than crystals have
WANDER = 1e-7  # how much a drift changes within a window, by the temperature
WINDOW = 60e9  # ns that one line has to fit
MOST_WINDOWS = 1000
LEAST_WINDOW = 0.25e9  # ns: where none fits even so, a stamp is wrong or a clock was set
NODES = 17  # moments of a window at which the extent of the polygon is taken
MOST_POINTS = 1024  # bounds of a window and side whose hull is computed


@dataclasses.dataclass(frozen=True)
class Shift:
    """What is added to the stamps of a clock: a line between each two of some moments.

    Attributes:
        since: the stamp from which ``at`` counts, nanoseconds since 1970.
        base: nanoseconds that are added to all stamps; an integer, as floats are too coarse.
        at: the moments, in nanoseconds of this clock after ``since``, which increase.
        offset: what is added to ``base`` there.
        error: how far that may be from the truth there; between two, at most on the line.
    """

    since: int
    base: int
    at: _Floats
    offset: _Floats
    error: _Floats

    @staticmethod
    def none(first: int, last: int, error: float = 0.0) -> Shift:
        """Return the shift of a clock that is left as it is."""
        at = np.array([0.0, float(max(last - first, 1))])
        return Shift(first, 0, at, np.zeros(2), np.full(2, error))

    @property
    def drift_ppm(self) -> float:
        """How much faster the offset grows than time, from the first moment to the last."""
        return float((self.offset[-1] - self.offset[0]) / (self.at[-1] - self.at[0]) * 1e6)

    def of(self, stamps: _Ints) -> _Ints:
        """Return shifted stamps; 0 stays 0."""
        moved = np.rint(np.interp(stamps - self.since, self.at, self.offset)).astype(np.int64)
        return np.where(stamps == 0, 0, stamps + self.base + moved)

    def error_at(self, shifted: _Ints) -> _Floats:
        """Return the error at moments that were shifted, in nanoseconds."""
        after = np.asarray(shifted, np.int64) - (self.since + self.base)
        return np.asarray(np.interp(after, self.at + self.offset, self.error), np.float64)

    def then(self, outer: Shift) -> Shift:
        """Return this shift and, of what it gives, another one."""
        begin = self.since + self.base - outer.since  # in the outer clock, where at + offset is 0
        mine = self.at + self.offset
        back = np.interp(outer.at - begin, mine, self.at)
        at = np.unique(np.concatenate([self.at, back]))
        offset = np.interp(at, self.at, self.offset)
        there = begin + at + offset
        return Shift(
            self.since,
            self.base + outer.base,
            at,
            offset + np.interp(there, outer.at, outer.offset),
            np.interp(at, self.at, self.error) + np.interp(there, outer.at, outer.error),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it; an error that is not known is null."""
        known = np.isfinite(self.error)
        errors = [round(e, 1) if k else None for e, k in zip(self.error, known, strict=True)]
        return {
            "since": self.since,
            "base": self.base,
            "at": [round(t, 1) for t in self.at],
            "offset": [round(o, 1) for o in self.offset],
            "error": errors,
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Shift:
        """Return what ``as_dict`` was of.

        Raises:
            KeyError, TypeError, ValueError: it was of no shift.
        """
        errors = [float("inf") if e is None else e for e in data["error"]]
        at, offset, error = (np.array(x, np.float64) for x in (data["at"], data["offset"], errors))
        if not (at.ndim == 1 and 2 <= len(at) == len(offset) == len(error)):
            raise ValueError(f"a shift has {len(at)} moments and {len(offset)} offsets")
        if not (np.all(np.diff(at) > 0) and np.all(np.isfinite(offset)) and np.isfinite(at[-1])):
            raise ValueError("the moments of a shift do not increase")
        return Shift(int(data["since"]), int(data["base"]), at, offset, error)


class _Side(NamedTuple):
    """Bounds of one side: at which stamps, and what they say there, in nanoseconds."""

    at: _Ints
    value: _Ints


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What bounds the offset of a clock.

    Attributes:
        less, more: upper and lower bounds.
        used: how many operations they are of.
    """

    less: _Side
    more: _Side
    used: int

    @staticmethod
    def of(less: tuple[_Ints, _Ints], more: tuple[_Ints, _Ints], used: int) -> Bounds:
        """Make bounds of pairs of stamps (x, y): in ``less`` x came later than y, in ``more`` y."""
        return Bounds(_Side(less[1], less[0] - less[1]), _Side(more[1], more[0] - more[1]), used)


class Fit(NamedTuple):
    """A shift within bounds, and in a sentence what is odd about them, "" if nothing is."""

    shift: Shift
    odd: str


class _Piece(NamedTuple):
    """A window of time, and the corners of the polygon that bounds leave of its lines."""

    begin: float
    end: float
    slack: float  # by which the bounds were loosened
    drift: _Floats
    least: _Floats  # a of the corners below
    most: _Floats  # a of the corners above

    def extent(self, t: float) -> tuple[float, float]:
        """Return between what the offset lies at t."""
        low = float((self.least + self.drift * t).min()) - self.slack
        return low, float((self.most + self.drift * t).max()) + self.slack


def fit(bounds: Bounds, first: int, last: int) -> Fit | None:
    """Find the offset of a clock between bounds.

    Args:
        bounds: of the offset.
        first, last: between which stamps it is wanted.

    Returns:
        None if the bounds are of one side only.
    """
    if len(bounds.less.at) == 0 or len(bounds.more.at) == 0:
        return None
    base = int(np.sort(bounds.less.value)[len(bounds.less.value) // 2])
    more, less = (
        ((side.at - first).astype(np.float64), (side.value - base).astype(np.float64))
        for side in (bounds.more, bounds.less)
    )
    span = float(max(last - first, 1))
    length = min(max(WINDOW, span / MOST_WINDOWS), span)
    while True:
        edges = np.linspace(0.0, span, int(np.ceil(span / length)) + 1)
        windows = itertools.pairwise(edges)
        found = [list(_pieces(more, less, *window)) for window in windows]
        if all(found) or length >= span:
            break
        length = min(4 * length, span)  # now this host comes last, now the other one, but rarely
    pieces = [piece for window in found for piece in window]
    if not pieces:
        return None
    at, offset, error, odd = _joined(pieces, span)
    return Fit(Shift(first, base, at, offset, error), odd)


_Points = tuple[_Floats, _Floats]


def _pieces(more: _Points, less: _Points, begin: float, end: float) -> Iterator[_Piece]:
    """Fit a line to a window, or several to its parts if none fits to all."""
    sides = []
    for t, v in (more, less):
        inside = (t >= begin) & (t <= end)
        if not inside.any():
            return
        sides.append((t[inside], v[inside]))
    slack = 1.0 + WANDER * (end - begin) / 2  # stamps are whole nanoseconds
    piece = _polygon(sides[0], sides[1], slack)
    if piece is not None:
        yield _Piece(begin, end, slack, *piece)
    elif end - begin > LEAST_WINDOW:
        middle = (begin + end) / 2
        yield from _pieces(more, less, begin, middle)
        yield from _pieces(more, less, middle, end)


def _polygon(more: _Points, less: _Points, slack: float) -> tuple[_Floats, _Floats, _Floats] | None:
    """The drifts at the corners, and the least and the greatest offsets there; None: no line."""
    t, low = _hull(more[0], more[1] - slack)
    s, high = _hull(less[0], -less[1] - slack)
    high = -high
    slopes = [np.diff(low) / np.diff(t), np.diff(high) / np.diff(s)]
    drift = np.unique(np.clip(np.concatenate([*slopes, [-MOST_DRIFT, MOST_DRIFT]]), *_DRIFTS))
    least = (low - drift[:, None] * t).max(axis=1)
    most = (high - drift[:, None] * s).min(axis=1)
    room = most - least  # concave, and a line between each two drifts
    fits = np.flatnonzero(room >= 0)
    if len(fits) == 0:
        return None
    first, last = int(fits[0]), int(fits[-1])
    ends = [_meeting(drift, least, room, i, j) for i, j in ((first - 1, first), (last + 1, last))]
    inner = slice(first, last + 1)
    corners = [e for e in ends if e is not None]
    extra = np.array(corners, np.float64).reshape(-1, 2)
    return (
        np.concatenate([drift[inner], extra[:, 0]]),
        np.concatenate([least[inner], extra[:, 1]]),
        np.concatenate([most[inner], extra[:, 1]]),
    )


_DRIFTS = (-MOST_DRIFT, MOST_DRIFT)


def _meeting(
    drift: _Floats, least: _Floats, room: _Floats, outside: int, inside: int
) -> tuple[float, float] | None:
    """Where both sides meet between two drifts: the drift, and the offset."""
    if not 0 <= outside < len(drift):
        return None
    part = room[inside] / (room[inside] - room[outside])
    return (
        float(drift[inside] + part * (drift[outside] - drift[inside])),
        float(least[inside] + part * (least[outside] - least[inside])),
    )


def _hull(t: _Floats, v: _Floats) -> _Points:
    """The corners of the upper hull of points, from left to right."""
    if len(t) > MOST_POINTS:
        while_of = ((t - t.min()) * (MOST_POINTS / (np.ptp(t) + 1.0))).astype(np.int64)
        order = np.lexsort((v, while_of))
        last = np.flatnonzero(np.diff(while_of[order], append=-1))
        t, v = t[order[last]], v[order[last]]
    order = np.lexsort((v, t))
    corners: list[tuple[float, float]] = []
    for x, y in zip(t[order].tolist(), v[order].tolist(), strict=True):
        if corners and corners[-1][0] == x:
            corners.pop()  # it is lower
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (y1 - y0) * (x - x0) > (y - y0) * (x1 - x0):
                break
            corners.pop()
        corners.append((x, y))
    made = np.array(corners)
    return made[:, 0], made[:, 1]


def _joined(pieces: Sequence[_Piece], span: float) -> tuple[_Floats, _Floats, _Floats, str]:
    """The moments, offsets and errors of windows, and of the gaps between them."""
    nodes: list[tuple[float, float, float]] = []
    odd: list[str] = []
    before: _Piece | None = None
    for piece in pieces:
        steps = [(float(t), *piece.extent(float(t))) for t in np.linspace(*piece[:2], NODES)]
        made = [(t, (low + high) / 2, (high - low) / 2) for t, low, high in steps]
        if before is not None and before.end == piece.begin:
            odd += _at_an_edge(nodes, made, before.extent(before.end), piece.extent(piece.begin))
        elif before is not None:
            odd += _over_a_gap(nodes, made)
        nodes += made
        before = piece
    t, offset, error = nodes[0]
    if t > 0:
        nodes = [(0.0, offset, error + MOST_DRIFT * t), *nodes]
    t, offset, error = nodes[-1]
    if t < span:
        nodes.append((span, offset, error + MOST_DRIFT * (span - t)))
    at, offsets, errors = np.array(nodes).T
    return at, offsets, errors, "; ".join(odd[:3])


_Nodes = list[tuple[float, float, float]]


def _at_an_edge(
    nodes: _Nodes, made: _Nodes, left: tuple[float, float], right: tuple[float, float]
) -> Iterator[str]:
    """Join two windows that share a moment, by what both know of it."""
    low, high = max(left[0], right[0]), min(left[1], right[1])
    if low <= high:
        # From there on each side has an error of its own, which this one may not be less than.
        middle = (low + high) / 2
        error = max(left[1] - middle, middle - left[0], right[1] - middle, middle - right[0])
        nodes[-1] = made[0][0], middle, error
        del made[0]
        return
    made[0] = made[0][0] + 1, *made[0][1:]
    yield f"its clock steps by {(made[0][1] - nodes[-1][1]) / 1e3:,.0f} us"


def _over_a_gap(nodes: _Nodes, made: _Nodes) -> Iterator[str]:
    """Join two windows between which no line fits."""
    (begin, before, error), (end, after, later) = nodes[-1], made[0]
    error = max(error, later) + MOST_DRIFT * (end - begin)
    step = abs(after - before)
    if step > error:
        error += step
    nodes += [(begin + 1, before, error), (end - 1, after, error)]
    yield f"no line fits its clock for {(end - begin) / 1e9:.2f} s"
