"""A picture of one training step, beside gloo's and plain MPI's: docs/img/step.svg.

``benchmarks/figures.py`` draws it of a file in docs/figures. Each place where the step was measured
gives a group of bars: the step without communication in grey, and behind it the time above that,
over paddlempi, plain MPI and gloo.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paddlempi.cli.bench import picture
from paddlempi.cli.bench.steps import SILENT

STEP = "ddp mlp-16M"
CONTENDERS = ("paddlempi", "mpi", "gloo")


def groups(found: dict[str, Any]) -> Iterator[tuple[str, float, dict[str, float]]]:
    """Yield the bars of each place: its words, the step without communication, what is above."""
    for part in found["parts"].values():
        for table in part["tables"]:
            for row in table["rows"]:
                bars = row.get("bars", {})
                if row["what"] == STEP and all(name in bars for name in CONTENDERS):
                    words = f"{table['where']}: {STEP}"
                    yield words, bars[SILENT], {name: bars[name] for name in CONTENDERS}


def drawn(found: dict[str, Any]) -> str:
    """Return the picture; "" if no place has measured all contenders."""
    bars = list(groups(found))
    title = "A training step: the time without communication, and above it (ms, medians)"
    return picture.bars(title, "without communication", bars) if bars else ""
