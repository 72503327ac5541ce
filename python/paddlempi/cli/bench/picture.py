"""Draws the times of an operation over its bytes, as SVG. It needs nothing but Python."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .collectives import AGAIN, Row

__all__ = ["draw"]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 420, 70, 130, 40, 50
_COLORS = {
    "paddlempi": "#1060c0",
    "mpi": "#208040",
    "mpi4py": "#d08020",
    "gloo": "#a03080",
    "memcpy": "#888888",
}
_INK, _RULE, _FONT = "#222222", "#dddddd", "font-family='sans-serif' font-size='12'"


def draw(title: str, rows: Sequence[Row]) -> str:
    """Return a picture: the median time of a call over the bytes, a line for each contender.

    Both axes are logarithmic. The control is left out.

    Args:
        title: the words above the picture.
        rows: of one operation, with bytes above 0.
    """
    sizes = sorted({row.bytes for row in rows})
    times = [row.p50_us for row in rows]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    first, last = math.log2(sizes[0]), math.log2(sizes[-1])

    def x(size: float) -> float:
        part = (math.log2(size) - first) / ((last - first) or 1)
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)

    def y(time: float) -> float:
        part = (math.log10(time) - low) / ((high - low) or 1)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)

    out = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}'>",
        f"<rect width='{_WIDTH}' height='{_HEIGHT}' fill='white'/>",
        _text(_WIDTH / 2, 22, title),
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, "bytes"),
        _text(_LEFT - 8, _TOP - 10, "us a call", "end"),
    ]
    for power in range(low, high + 1):
        at = y(10.0**power)
        out.append(f"<path d='M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}' stroke='{_RULE}'/>")
        out.append(_text(_LEFT - 8, at + 4, f"{10.0**power:g}", "end"))
    every = -(-len(sizes) // 10)  # more labels would touch
    out += [_text(x(size), _HEIGHT - _BOTTOM + 18, readable(size)) for size in sizes[::every]]
    contenders = [name for name in dict.fromkeys(row.contender for row in rows) if name != AGAIN]
    for number, name in enumerate(contenders):
        mine = sorted((row.bytes, row.p50_us) for row in rows if row.contender == name)
        points = " ".join(f"{x(size):.1f},{y(time):.1f}" for size, time in mine)
        color = _COLORS[name]
        dashes = " stroke-dasharray='5 4'" if name == "memcpy" else ""
        out.append(
            f"<polyline points='{points}' fill='none' stroke='{color}' stroke-width='2'{dashes}/>"
        )
        out.append(_text(_WIDTH - _RIGHT + 10, _TOP + 20 + 18 * number, name, "start", color))
    return "\n".join([*out, "</svg>", ""])


def readable(size: int) -> str:
    """Return 1048576 as "1 Mi"."""
    for unit, factor in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return str(size)


def _text(x: float, y: float, words: str, anchor: str = "middle", ink: str = _INK) -> str:
    at = f"x='{x:.0f}' y='{y:.0f}' text-anchor='{anchor}'"
    return f"<text {at} fill='{ink}' {_FONT}>{words}</text>"
