"""docs/benchmarks.md: the head in ``figures_head.md``, and tables of the files in docs/figures."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from figures_rows import EQUAL

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
HEAD = HERE / "figures_head.md"
STEP = "![A step of DDP over paddlempi, plain MPI and gloo](img/step.svg)"
FAR = 2  # times the lower quartile: a median alone would say more than was seen
FLOORS = ("memcpy", "no communication")  # no peers: nothing can be faster

Table = Mapping[str, Any]


def page(machines: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of what some machines have measured."""
    lines = [HEAD.read_text().rstrip(), "", "## Where and when", ""]
    for found in machines:
        lines += [*about(found), ""]
    names = dict.fromkeys(name for found in machines for name in found["parts"])
    for name in names:
        of_name = [found for found in machines if name in found["parts"]]
        lines += [f"## {of_name[0]['parts'][name]['title']}", ""]
        if name == "step":
            lines += [STEP, ""]
        for found in of_name:
            if len(machines) > 1:
                lines += [f"### {found['machine']}", ""]
            lines += part_lines(found["parts"][name])
    return "\n".join(lines).rstrip() + "\n"


def about(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a machine's figures depend on."""
    versions: dict[str, str] = {}
    for part in found["parts"].values():
        versions |= part["versions"]
    words = ", ".join(
        version if name == "MPI" else f"{name} {version}" for name, version in versions.items()
    )
    yield from wrapped(f"{found['machine']}: {words}.")
    yield ""
    yield "| date | load before and after | others' CPU, % | parts |"
    yield "|---|---|---|---|"
    for date, of_day in groupby(sorted(found["parts"].items(), key=_date), _date):
        names, parts = zip(*of_day, strict=True)
        loads = [load for part in parts for load in part["load"]]
        others = 100 * max(part["others"] for part in parts)
        yield f"| {date} | {min(loads)} to {max(loads)} | {others:.0f} | {', '.join(names)} |"


def _date(part: tuple[str, Mapping[str, Any]]) -> str:
    return str(part[1]["date"])


def part_lines(part: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tables of a part, and what was left out."""
    for table in part["tables"]:
        yield from table_lines(table)
    for means, reason in part["left_out"].items():
        yield from wrapped(f"Not measured: {means}: {reason}.")
        yield ""


def table_lines(table: Table) -> Iterator[str]:
    """Yield the sentence of a table, the table, and the names of what was not measured."""
    peers = list(dict.fromkeys(peer for row in table["rows"] for peer in row["ratio"]))
    means = ", ".join(filter(None, (table["means"], table["where"])))
    yield from wrapped(f"{means}; {behind(table['rows'], peers)}.")
    yield ""
    head = ["", f"ours, {table['unit']}", *peers, *filter(None, [table["note"]])]
    yield f"| {' | '.join(head)} |".replace("|  |", "| |")
    yield "|---" * len(head) + "|"
    for row in table["rows"]:
        cells = [f"{row['what']} {row['case']}".strip(), time(row["ours"])]
        cells += [ratio(row["ratio"].get(peer)) for peer in peers]
        cells += [row["note"] or "-"] if table["note"] else []
        yield f"| {' | '.join(cells)} |"
    yield ""
    missing = [name for name in table["missing"] if name.rpartition(", ")[2] not in peers]
    if missing:  # a peer that has a column has a - in it
        yield from wrapped(f"Not measured: {'; '.join(missing)}.")
        yield ""


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def time(value: float) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def ratio(found: Any) -> str:
    """Show a peer's time over ours: the median; the quartiles, too, where they are far apart."""
    if found is None:
        return "-"
    if found == EQUAL:
        return EQUAL
    values = [f"{value:.2f}" if value < 10 else f"{value:.0f}" for value in found]
    if len(values) == 1:
        return values[0]
    return values[1] + (f" ({values[0]}-{values[2]})" if found[2] > FAR * found[0] else "")


def behind(rows: Sequence[Mapping[str, Any]], peers: Sequence[str]) -> str:
    """Say in which rows a peer is faster, in three rounds of four or more."""
    if not peers:
        return "no peer is installed here"
    said = []
    for peer in peers:
        if peer in FLOORS:
            continue
        cases: dict[str, list[str]] = {}
        for row in rows:
            found = row["ratio"].get(peer)
            if found is not None and found != EQUAL and found[-1] < 1:
                cases.setdefault(row["what"], []).append(row["case"])
        if cases:
            where = "; ".join(f"{what} {', '.join(of)}".strip() for what, of in cases.items())
            said.append(f"than {peer} in {where}")
    return "slower " + ", ".join(said) if said else "nowhere slower"
