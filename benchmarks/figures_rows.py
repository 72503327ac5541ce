"""What docs/figures keeps of a record: a row for each thing that was measured.

A row has the time of paddlempi, and for each peer the time of the peer over it: lower quartile,
median and upper quartile of the rounds in which they took turns, or ``equal``. Two are equal if
their quartiles hold 1, or if they are no further apart than paddlempi is from itself.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paddlempi.cli.bench.collectives import AGAIN, LEAST_ROUNDS, OURS
from paddlempi.cli.bench.figures import Quartiles, differs, quartiles, ratios
from paddlempi.cli.bench.picture import readable
from paddlempi.cli.bench.ps import measured
from paddlempi.cli.bench.steps import SILENT

Record = Mapping[str, Any]
Row = dict[str, Any]

EQUAL = "equal"
# Short names of what bench io compares.
_OF_FILES = {
    "gather, safetensors' save_file": "gathered, then saved",
    "DCP, paddlempi's StorageWriter": "DCP, our writer",
    "DCP, FileSystemWriter": "DCP",
    "DCP, HuggingFaceStorageWriter": "DCP, consolidated",
    "safe_open().get_slice, every rank": "get_slice",
    "rank 0 reads and scatters": "read, then scattered",
    "DCP, paddlempi's StorageReader": "DCP, our reader",
}
_OF_A_ROW = {field.name for field in dataclasses.fields(measured.Row)}  # of bench ps


def row(what: str, case: str, ours: float, ratio: dict[str, Any], note: str = "") -> Row:
    """Return a row, with figures of four digits."""
    short = {
        peer: found if found == EQUAL else [_short(value) for value in found]
        for peer, found in ratio.items()
    }
    return {"what": what, "case": case, "ours": _short(ours), "ratio": short, "note": note}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def size(number: int) -> str:
    """Return 1048576 as "1 MiB", 8 as "8 B"."""
    return f"{readable(number)}B" if number >= 1024 else f"{number} B"


def compared(ratio: Sequence[float], differ: bool | None = None) -> Any:
    """Return a ratio, or ``equal``; ``differ`` is what a control says."""
    low, _, high = ratio
    return EQUAL if differ is False or low <= 1 <= high else list(ratio)


def operations(record: Record) -> Iterator[Row]:
    """Yield the rows of ``bench call`` or ``bench step``."""
    of_size: dict[tuple[str, int], dict[str, Record]] = {}
    for found in record["rows"]:
        of_size.setdefault((found["operation"], found["bytes"]), {})[found["contender"]] = found
    for (operation, number), rows in of_size.items():
        ratio = {
            name: compared(found["ratio"], found["differs"])
            for name, found in rows.items()
            if name not in (OURS, AGAIN)
        }
        ours = rows[OURS]
        note = ours["way"] or ours["path"]
        yield row(operation, size(number) if number else "", ours["p50_us"], ratio, note)
    yield from map(step, record["steps"])


def step(found: Record) -> Row:
    """Return the row of a kind of steps: the time above no communication, in us."""
    above = {name: quarters[1] for name, quarters in found["tanc_ms"].items()}
    ratio: dict[str, Any] = {}
    for name, times in found["others"].items():
        spread = found["spread"].get(name)
        if times is not None:
            ratio[name] = [spread[0], times, spread[1]] if spread else [times]
        elif found["rounds"] >= LEAST_ROUNDS and not differs(
            above[name] - above[OURS], Quartiles(*found["control_ms"])
        ):
            ratio[name] = EQUAL
    made = row(f"{found['kind']} {found['model']}", "", 1000 * above[OURS], ratio)
    bars = {name: _short(above[name]) for name in (OURS, "mpi", "gloo") if name in above}
    return made | {"bars": {SILENT: _short(found["ms"][SILENT])} | bars}


def files(record: Record) -> Iterator[Row]:
    """Yield the rows of ``bench io``: seconds."""
    case = f"{record['bytes'] >> 20} MiB"
    for what in ("save", "load"):
        seconds = record[f"{what}_s"]
        ours = seconds[OURS]
        ratio = {
            _OF_FILES.get(name, name): compared(quartiles(ratios(times, ours)))
            for name, times in seconds.items()
            if name != OURS
        }
        yield row(what, case, statistics.median(ours), ratio)


def windows(record: Record) -> Iterator[Row]:
    """Yield the rows of ``benchmarks/windows.py``; the note: the longest puts beside a loop, ms."""
    for found in record["rows"]:
        peers = ("C", "C, allocated", "mpi4py", "mpi4py, allocated", "memcpy")
        ratio = {
            re.sub(", (.*)", r" (\1)", name): compared(found[name]["ratio"])
            for name in peers
            if name in found
        }
        longest = found.get("computing_ms", {})
        note = ", ".join(f"{longest[name]:.1f}" for name in (OURS, "C") if name in longest)
        yield row("put", size(found["bytes"]), found[OURS]["p50_us"], ratio, note)


def servers(record: Record) -> Iterator[Row]:
    """Yield the rows of ``bench ps``, a row for each case and what was done in it."""
    of_case: dict[tuple[str, str], dict[str, Record]] = {}
    for found in record["rows"]:
        cases = [name for name in found if name not in {*_OF_A_ROW, "unique"}]
        case = ", ".join(
            size(found[name]) if name == "bytes" else f"{name} {found[name]}" for name in cases
        )
        of_case.setdefault((found["what"], case), {})[found["contender"]] = found
    for (what, case), rows in of_case.items():
        if " + " in what:  # a sum of rows
            continue
        base = next(name for name, found in rows.items() if found["ratio"] is None)
        ratio = {
            name: compared(found["ratio"], found["differs"])
            for name, found in rows.items()
            if name not in (base, AGAIN)
        }
        yield row(what, case, rows[base]["p50_us"], ratio)


def jax(record: Record, loop: int) -> Iterator[Row]:
    """Yield the rows of ``benchmarks/jax_primitives.py``, whose loops have some calls each."""
    for found in record["rows"]:
        calls = loop if found["what"].startswith("loop") else 1
        for name in ("ordered", "unordered"):
            ours = found[name]["p50_us"] / calls
            ratio = {"gloo": compared(found[name]["ratio"])}
            yield row(f"{found['what']}, {name}", size(found["bytes"]), ours, ratio)


def inference(record: Record) -> Iterator[Row]:
    """Yield the rows of ``bench inference``: ms; the note: the part that is communication."""
    found = record["inference"]
    for what, case in (("token", ""), ("prefill", f"{found['prompt']} tokens")):
        of_each = {name: times[what] for name, times in found["ms"].items()}
        ours = statistics.median(of_each[OURS])
        ratio = {
            name: compared(quartiles(ratios(times, of_each[OURS])))
            for name, times in of_each.items()
            if name != OURS
        }
        share = max(0.0, 1 - statistics.median(of_each[SILENT]) / ours)
        yield row(what, case, ours, ratio, f"{100 * share:.0f} %")


def gpu(record: Record) -> Iterator[Row]:
    """Yield the rows of ``benchmarks/cuda.py``; each names what it compares."""
    for found in record["rows"]:
        for name, ratio in found["ratios"].items():
            ours = found["us"].get("ours", min(found["us"].values()))
            yield row(name, size(found["bytes"]), ours, {"ratio": compared(ratio)})


def missing(record: Record) -> dict[str, str]:
    """Return what could not be measured, with the reasons."""
    reasons = dict(record.get("not_measured", {}))
    reasons |= record.get("inference", {}).get("not_measured", {})
    for found in record.get("steps", ()):
        for name, reason in found["absent"].items():
            reasons[f"{found['kind']} {found['model']}, {name}"] = reason
    return reasons
