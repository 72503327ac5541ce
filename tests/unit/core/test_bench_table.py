"""The table of python -m paddlempi bench --table, and the page that is made of its records."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from paddlempi.cli.bench import report, steps, table
from paddlempi.cli.bench.collectives import AGAIN, OURS, Row
from paddlempi.cli.bench.figures import Quartiles

ROOT = Path(__file__).resolve().parents[3]


def row(contender: str, p50: float, size: int = 65536, **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"path": "", "operation": "all_reduce"} | more
    operation = fields.pop("operation")
    made = Row(operation, size, contender, 100, p50, 2 * p50, 1.5, 3.0, **fields)
    kept: dict[str, Any] = json.loads(json.dumps(made.record()))  # as it is read from a file
    return kept


def step(more: float, rounds: int = 20) -> dict[str, Any]:
    """Return the record of a step: 3 ms above no communication, and some ms more over gloo."""
    ms = {steps.SILENT: 10.0, steps.BARRIER: 11.0, OURS: 13.0, steps.ALONE: 2.0}
    samples = {name: [value] * rounds for name, value in ms.items()}
    samples["gloo"] = [13 + more] * rounds
    samples[AGAIN] = [13.0 + 0.3 * (at % 4 - 1) for at in range(rounds)]
    made = steps.summary("ddp", "mlp-1M", "1 MiB", samples, {"mpi": "why"}).record()
    kept: dict[str, Any] = json.loads(json.dumps(made))
    return kept


AGAIN_ROW = row(AGAIN, 12.4, ratio=Quartiles(0.9, 1.0, 1.1))
RECORD: dict[str, Any] = {
    "date": "2030-01-02T03:04:05+00:00",
    "paddlempi": "1",
    "python": "3.12",
    "processor": "X",
    "cpus": 2,
    "versions": {"numpy": "2"},
    "load": [0.1, 0.2, 0.3],
    "mpi": {"name": "Open MPI", "version": "Open  MPI v5, a package\nand more"},
    "shape": "2 x 1",
    "rows": [
        row(OURS, 12.5, path="mpi", way="mpi in pieces", counted=True, traffic=1.004),
        row("mpi4py", 1250, ratio=Quartiles(90, 100, 110), differs=True),
        row("gloo", 12.6, ratio=Quartiles(0.9, 1.01, 1.1), differs=False),
        AGAIN_ROW,
        row(OURS, 9.875, 0, operation="barrier", path="inline"),
    ],
    "steps": [],
    "not_measured": {"barrier, gloo": "reason"},
}


def test_a_line_for_each_operation_and_size() -> None:
    head, first, second = table.cells(RECORD)
    assert head == [
        *("operation", "bytes", "ours, us", "mpi4py, us", "gloo, us", "mpi4py / ours"),
        *("gloo / ours", "way", "traffic", "control"),
    ]
    assert first == [
        *("all_reduce", "64 KiB", "12.5", "1,250", "12.6", "100.00 (90.00 to 110.00)"),
        *("equal", "mpi in pieces", "1.00", "1.00 (0.90 to 1.10)"),
    ]
    assert second == ["barrier", "-", "9.88", "-", "-", "-", "-", "inline", "-", "-"]


def test_too_few_rounds_say_nothing_about_a_difference() -> None:
    rows = [row(OURS, 8, 8), row("gloo", 8.5, 8, ratio=Quartiles(0.9, 1.05, 1.1))]
    line = table.cells(RECORD | {"rows": rows})[1]
    assert line[1:5] == ["8", "8.00", "8.50", "1.05 (0.90 to 1.10)"]
    assert table.cells(RECORD | {"rows": [], "steps": [step(3, rounds=5)]})[1][4] == "-"


def test_traffic_that_could_not_be_counted() -> None:
    rows = [row(OURS, 8, 1 << 20, path="slices", counted=True)]
    assert table.cells(RECORD | {"rows": rows})[1] == [
        *("all_reduce", "1 MiB", "8.00", "slices", "?", "-")
    ]


@pytest.mark.parametrize(
    ("more", "us", "ratio"),
    [(6, "9,000", "3.00 (3.00 to 3.00)"), (0.2, "3,200", "equal"), (-4, "-1,000", "-")],
)
def test_a_step_is_a_line(more: float, us: str, ratio: str) -> None:
    """Its time is that above no communication; one that is not above 0 has no ratio."""
    head, line = table.cells(RECORD | {"rows": [], "steps": [step(more)]})
    assert [word for word in head if "gloo" in word] == ["gloo, us", "gloo / ours"]
    assert line == ["ddp mlp-1M", "-", "3,000", us, ratio, "-", "-", "1.00 (0.90 to 1.10)"]


def test_the_text_of_the_table() -> None:
    text = table.lines(RECORD | {"steps": [step(6)]})
    assert [line.split()[0] for line in text] == [
        *("#", "#", "operation", "all_reduce", "barrier", "ddp", "not", "not")
    ]
    assert len({line.index("12.5") + 4 for line in text if "12.5" in line}) == 1
    assert text[2].index("ours, us") + 8 == text[3].index("12.5") + 4  # figures end together
    assert text[-2:] == [
        "not measured: barrier, gloo: reason",
        "not measured: ddp mlp-1M, mpi: why",
    ]


def test_the_record_says_what_figures_depend_on() -> None:
    assert set(report._versions("numpy", "nosuch")) == {"numpy"}
    assert isinstance(report._processor(), str)


# The page


@pytest.fixture
def hosts_page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("hosts_page")


def test_the_page_has_a_table_for_each_run(
    hosts_page: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{hosts_page.BEGIN}\nold\n{hosts_page.END}\nafter\n")
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, shape in zip(files, ("2 x 1", "2 x 2"), strict=True):
        file.write_text(json.dumps({"runs": [RECORD | {"shape": shape}]}))
    monkeypatch.setattr(hosts_page, "PAGE", page)
    hosts_page.main(*map(str, files))
    written = page.read_text()
    hosts_page.main(*map(str, files))
    assert page.read_text() == written
    lines = written.splitlines()
    assert lines[:2] == ["before", hosts_page.BEGIN] and lines[-2:] == [hosts_page.END, "after"]
    assert "old" not in written
    assert [line for line in lines if line.startswith("#")] == [
        "### Open MPI, 2 x 1",
        "### Open MPI, 2 x 2",
    ]
    assert "2030-01-02, X, 2 CPUs, a load of 0.1 0.2 0.3 before" in written
    assert "paddlempi 1, Open MPI v5, Python 3.12, numpy 2." in written
    columns = {line.count("|") for line in lines if line.startswith("|")}
    assert columns == {11}
    assert "| all_reduce | 64 KiB | 12.5 |" in written
    assert "* not measured: barrier, gloo: reason" in written


def test_the_markers_are_in_the_document(hosts_page: ModuleType) -> None:
    text = hosts_page.PAGE.read_text()
    assert text.count(hosts_page.BEGIN) == text.count(hosts_page.END) == 1
    with pytest.raises(SystemExit, match="the markers are not there"):
        hosts_page.page("a page", [])
