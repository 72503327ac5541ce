"""Draw what overhead.py measured: python benchmarks/plot.py RECORD.json PICTURE.svg

The picture shows the median time of a call over the size of the tensor, with logarithmic axes and
a line for each contender. It needs nothing but Python.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 70, 120, 40, 50
COLORS = {"C": "#555555", "mpi4py": "#d08020", "paddlempi": "#1060c0"}
INK, RULE, FONT = "#222222", "#dddddd", "font-family='sans-serif' font-size='12'"


def readable(size: int) -> str:
    """Return 1048576 as "1 Mi"."""
    for unit, factor in (("Mi", 1 << 20), ("Ki", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return str(size)


def draw(record: dict[str, Any]) -> str:
    rows = record["rows"]
    sizes = [row["bytes"] for row in rows]
    times = [row[name]["p50_us"] for row in rows for name in COLORS]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    first, last = math.log2(sizes[0]), math.log2(sizes[-1])

    def x(size: float) -> float:
        span = max(last - first, 1)
        return LEFT + (math.log2(size) - first) / span * (WIDTH - LEFT - RIGHT)

    def y(time: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(time) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def text(at_x: float, at_y: float, words: str, anchor: str = "middle", ink: str = INK) -> str:
        return (
            f"<text x='{at_x:.0f}' y='{at_y:.0f}' text-anchor='{anchor}' fill='{ink}' {FONT}>"
            f"{words}</text>"
        )

    name = record["mpi"]["name"]
    out = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}'>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>",
        text(WIDTH / 2, 22, f"all_reduce, float32 SUM, {record['ranks']} ranks, {name}: median"),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "bytes"),
        text(LEFT - 8, TOP - 10, "us a call", "end"),
    ]
    for power in range(low, high + 1):
        at = y(10**power)
        out.append(f"<path d='M{LEFT} {at:.1f}H{WIDTH - RIGHT}' stroke='{RULE}'/>")
        out.append(text(LEFT - 8, at + 4, f"{10**power:g}", "end"))
    out += [text(x(size), HEIGHT - BOTTOM + 18, readable(size)) for size in sizes]
    for number, (contender, color) in enumerate(COLORS.items()):
        points = " ".join(f"{x(r['bytes']):.1f},{y(r[contender]['p50_us']):.1f}" for r in rows)
        out.append(f"<polyline points='{points}' fill='none' stroke='{color}' stroke-width='2'/>")
        out.append(text(WIDTH - RIGHT + 10, TOP + 20 + 18 * number, contender, "start", color))
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    Path(sys.argv[2]).write_text(draw(json.loads(Path(sys.argv[1]).read_text())))
