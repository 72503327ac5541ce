"""Draws times over bytes, losses over time, and steps, as SVG. It needs nothing but Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .collectives import AGAIN, Row

__all__ = ["bars", "curves", "draw"]

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


_MOST_POINTS = 240  # of a curve: one for each pixel, about
_OF_CURVES = ("#1060c0", "#208040", "#d08020", "#a03080", "#c02020", "#444444", "#00868b")


def curves(
    title: str, panels: Sequence[tuple[str, Mapping[str, Sequence[tuple[float, float]]]]]
) -> str:
    """Return a picture of panels beside each other, with a line for each name.

    Args:
        title: the words above the picture.
        panels: of each its words, and the curves by name: pairs of x from 0 and of y above 0, in
            the order of x. All panels have the same axes; that of y is logarithmic.
    """
    names = list(dict.fromkeys(name for _, lines in panels for name in lines))
    points = [pair for _, lines in panels for line in lines.values() for pair in line]
    most = max((x for x, _ in points), default=0.0) or 1.0
    low = math.floor(math.log10(min((y for _, y in points), default=1.0)))
    high = max(low + 1, math.ceil(math.log10(max((y for _, y in points), default=1.0))))
    wide = (_WIDTH - _LEFT - _RIGHT - 20 * (len(panels) - 1)) / len(panels)
    top = _TOP + 20
    out = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}'>",
        f"<rect width='{_WIDTH}' height='{_HEIGHT}' fill='white'/>",
        _text(_WIDTH / 2, 22, title),
    ]

    def y(value: float) -> float:
        part = (math.log10(value) - low) / (high - low)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - top - _BOTTOM)

    for number, (words, lines) in enumerate(panels):
        left = _LEFT + number * (wide + 20)
        out.append(_text(left + wide / 2, top - 8, words))
        for power in range(low, high + 1):
            at = y(10.0**power)
            out.append(f"<path d='M{left:.1f} {at:.1f}h{wide:.1f}' stroke='{_RULE}'/>")
            if number == 0:
                out.append(_text(left - 8, at + 4, f"{10.0**power:g}", "end"))
        for quarter in range(5):
            at = left + wide * quarter / 4
            out.append(_text(at, _HEIGHT - _BOTTOM + 18, f"{most * quarter / 4:.3g}"))
        for name, line in lines.items():
            every = -(-len(line) // _MOST_POINTS) or 1
            kept = [*line[::every], *line[-1:]]
            drawn = " ".join(f"{left + wide * at / most:.1f},{y(value):.1f}" for at, value in kept)
            color = _OF_CURVES[names.index(name) % len(_OF_CURVES)]
            out.append(
                f"<polyline points='{drawn}' fill='none' stroke='{color}' stroke-width='1.5'/>"
            )
    for number, name in enumerate(names):
        color = _OF_CURVES[number % len(_OF_CURVES)]
        out.append(_text(_WIDTH - _RIGHT + 10, top + 20 + 18 * number, name, "start", color))
    return "\n".join([*out, "</svg>", ""])


def bars(title: str, what: str, groups: Sequence[tuple[str, float, Mapping[str, float]]]) -> str:
    """Return a picture of bars below each other, all on one axis that begins at 0.

    Args:
        title: the words above the picture.
        what: the words of the grey part of each bar.
        groups: of each its words, the length of the grey part, and what comes on top of it for
            each contender. A length below 0 is drawn as 0.
    """
    wide = _WIDTH - 2 * _RIGHT
    most = max(max(base + above for above in on_top.values()) for _, base, on_top in groups)
    out, at = [_text(_WIDTH / 2, 22, title)], float(_TOP)
    for words, base, on_top in groups:
        out.append(_text(20, at + 14, words, "start"))
        at += 24
        for name, above in on_top.items():
            grey, more = (wide * max(length, 0.0) / most for length in (base, above))
            color = _COLORS[name]
            out.append(_text(_RIGHT - 10, at + 13, name, "end", color))
            for left, width, fill in ((0.0, grey, _RULE), (grey, more, color)):
                place = f"x='{_RIGHT + left:.1f}' y='{at:.1f}' width='{width:.1f}' height='18'"
                out.append(f"<rect {place} fill='{fill}'/>")
            end = _RIGHT + grey + more + 6
            out.append(_text(end, at + 13, f"{base:.1f} + {above:.1f} ms", "start", color))
            at += 24
        at += 12
    out.append(f"<rect x='{_RIGHT}' y='{at:.1f}' width='18' height='12' fill='{_RULE}'/>")
    out.append(_text(_RIGHT + 26, at + 11, what, "start"))
    height = at + 28
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {height:.0f}'>",
        f"<rect width='{_WIDTH}' height='{height:.0f}' fill='white'/>",
    )
    return "\n".join([*head, *out, "</svg>", ""])


def readable(size: int) -> str:
    """Return 1048576 as "1 Mi"."""
    for unit, factor in (("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return str(size)


def _text(x: float, y: float, words: str, anchor: str = "middle", ink: str = _INK) -> str:
    at = f"x='{x:.0f}' y='{y:.0f}' text-anchor='{anchor}'"
    return f"<text {at} fill='{ink}' {_FONT}>{words}</text>"
