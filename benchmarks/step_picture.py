"""A picture of one training step, beside gloo's and plain MPI's: docs/img/step.svg.

    make bench-step
    python benchmarks/step_picture.py OUT.svg RECORD.json [RECORD.json ...]

``python -m paddlempi bench --step ddp --model NAME --against mpi,gloo --json FILE`` writes a
record. Each gives a group of bars: the step without communication in grey, and behind
it the time above that, over paddlempi, plain MPI and gloo.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from paddlempi.cli.bench import picture
from paddlempi.cli.bench.steps import SILENT

CONTENDERS = ("paddlempi", "mpi", "gloo")


def group(record: dict[str, Any]) -> tuple[str, float, dict[str, float]]:
    """Return the bars of a record: its words, the step without communication, and what is above."""
    (step,) = record["steps"]
    absent = [name for name in CONTENDERS if name not in step["tanc_ms"]]
    if absent:
        raise SystemExit(f"step_picture: {absent[0]} is not measured: {step['absent']}")
    nodes = record["nodes"]
    on = f"{nodes} nodes ({record['shape']})" if nodes > 1 else f"one node, {record['ranks']} ranks"
    words = (
        f"{on}, {record['mpi']['name']}: {step['kind']} {step['model']}, {step['rounds']} rounds"
    )
    above = {name: float(step["tanc_ms"][name][1]) for name in CONTENDERS}
    return words, float(step["ms"][SILENT]), above


def main(out: str, *records: str) -> None:
    groups = [group(json.loads(Path(file).read_text())) for file in records]
    title = "A training step: the time without communication, and above it (ms, medians)"
    Path(out).write_text(picture.bars(title, "without communication", groups))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
