"""The table of python -m paddlempi bench call --table, and the page of benchmarks/figures.py."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from paddlempi import cli
from paddlempi.cli.bench import report, steps, table
from paddlempi.cli.bench.collectives import AGAIN, OURS, Row
from paddlempi.cli.bench.figures import Quartiles
from paddlempi.planner import machine

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
    assert isinstance(machine.processor(), str)


# The figures


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """Return benchmarks/figures.py, which writes into a folder of the test."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("figures")
    monkeypatch.setattr(module, "FOLDER", tmp_path / "figures")
    monkeypatch.setattr(module, "PICTURE", tmp_path / "step.svg")
    monkeypatch.setattr(module.figures_page, "PAGE", tmp_path / "page.md")
    return module


def measured(figures: ModuleType, monkeypatch: pytest.MonkeyPatch, busy: float) -> None:
    """Let every command give RECORD with a step, while others use a part of the CPUs."""
    record = RECORD | {"steps": [step(6)], "ranks": 2}
    monkeypatch.setattr(figures, "measure", lambda *_: [record])
    monkeypatch.setattr(figures.Meter, "others", lambda _: busy)
    monkeypatch.setattr(figures.time, "sleep", lambda _: None)
    for name in ("message", "nodes"):
        part = figures.PARTS[name]
        runs = tuple(dataclasses.replace(run, lacks=str) for run in part.runs)
        monkeypatch.setitem(figures.PARTS, name, dataclasses.replace(part, runs=runs))


def test_the_parts_are_kept_and_shown(
    figures: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured(figures, monkeypatch, busy=0.02)
    assert figures.main(["--only", "message"]) == 0
    assert figures.main(["--only", "nodes"]) == 0
    (file,) = (tmp_path / "figures").iterdir()
    kept = json.loads(file.read_text())
    assert list(kept["parts"]) == ["message", "nodes"] and max(map(len, file.open())) < 200
    (first, barrier, training) = kept["parts"]["message"]["tables"][0]["rows"]
    assert first["ratio"] == {"mpi4py": [90, 100, 110], "gloo": "equal"}
    assert barrier["case"] == "" and training["ratio"] == {"gloo": [3, 3, 3]}
    text = (tmp_path / "page.md").read_text()
    assert "| all_reduce 64 KiB | 12.5 | 100 | equal |" in text
    assert "| ddp mlp-1M | 3,000 | - | 3.00 |" in text
    assert "nowhere slower." in text
    assert "Not measured: ddp mlp-1M, mpi." in text  # gloo has a column, where barrier has a -
    date = kept["parts"]["nodes"]["date"]
    assert re.search(rf"^\| {date} \| .* \| 2 \| message, nodes \|$", text, re.MULTILINE)
    assert "numpy 2, Open MPI v5." in text


def test_quartiles_are_shown_where_they_are_far_apart(figures: ModuleType) -> None:
    ratio = figures.figures_page.ratio
    shown = [ratio(found) for found in ([1.1, 1.5, 2.2], [1.1, 1.5, 2.3], [4, 9.5, 12], [3], None)]
    assert shown == ["1.50", "1.50 (1.10-2.30)", "9.50 (4.00-12)", "3.00", "-"]


def test_figures_beside_others_are_refused(
    figures: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured(figures, monkeypatch, busy=0.02)
    assert figures.main(["--only", "message"]) == 0
    before = (tmp_path / "page.md").read_text()
    measured(figures, monkeypatch, busy=0.11)
    assert figures.main(["--only", "message"]) == 1
    assert "message: others used 11% of the CPUs before it; at most 10%" in capsys.readouterr().err
    assert (tmp_path / "page.md").read_text() == before
    with pytest.raises(SystemExit):
        figures.main(["--only", "gone"])
    assert "--only gone is none of call, message" in capsys.readouterr().err


def test_what_is_left_out_has_its_reason(
    figures: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(figures.ctypes, "CDLL", lambda _: (_ for _ in ()).throw(OSError))
    monkeypatch.setattr(figures.Meter, "others", lambda _: 0.0)
    monkeypatch.setattr(figures.time, "sleep", lambda _: None)
    lacking = dataclasses.replace(figures.PARTS["gpu"].runs[0], lacks=figures._gpu)
    monkeypatch.setitem(figures.PARTS, "gpu", figures.Part("On a GPU", 1, (lacking,)))
    assert figures.main(["--only", "gpu"]) == 0
    text = (tmp_path / "page.md").read_text()
    assert "## On a GPU\n\nNot measured: `all_reduce` of" in text and ": no CUDA driver." in text


def test_own_time_is_no_time_of_others(
    figures: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = os.getpid()
    processes = {1: (0, 0), 2: (0, 0), 5: (2, 0), 9: (1, 0), me: (9, 0), -7: (me, 0), -8: (-7, 0)}
    ours = [pid for pid in processes if figures._ours(pid, processes)]
    assert ours == [2, 5, me, -7, -8]  # the kernel's, and what we have started
    read = iter([(30.0, 1000.0), (40.0, 1100.0), (29.0, 1100.0)])
    monkeypatch.setattr(figures.Meter, "_read", staticmethod(lambda: next(read)))
    meter = figures.Meter()
    assert meter.others() == pytest.approx(0.1)
    assert meter.others() == 0  # of what has ended nobody has waited for


def test_the_time_of_others_is_found(figures: ModuleType) -> None:
    """A process that is not below this one: its parent has ended."""
    before = figures.Meter._read()[0]
    loop = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\n"
    loop += "while time.process_time() < 0.3: pass\nprint('done', flush=True)"
    subprocess.run([sys.executable, "-c", loop], stdout=subprocess.PIPE, check=True)
    assert figures.Meter._read()[0] - before >= 0.2


def test_where_a_peer_is_faster_is_said(figures: ModuleType) -> None:
    def line(what: str, case: str, **ratio: Any) -> dict[str, Any]:
        return figures.rows.row(what, case, 1.0, ratio)

    rows = [
        line("a", "8 B", x=[0.5, 0.6, 0.9], memcpy=[0.1, 0.1, 0.1]),
        line("a", "1 MiB", x=[0.5, 0.6, 1.1], y=figures.rows.EQUAL),
        line("b", "", x=[0.4], y=[2, 3, 4]),
    ]
    said = figures.figures_page.behind(rows, ["x", "y", "memcpy"])
    assert said == "slower than x in a 8 B; b"
    assert figures.figures_page.behind(rows[:1], ["memcpy"]) == "nowhere slower"
    assert figures.rows.compared([0.9, 0.95, 0.99], differ=False) == figures.rows.EQUAL


OF_PROGRAMS: list[tuple[str, dict[str, Any], list[tuple[str, str, float, dict[str, Any], str]]]] = [
    (
        "files",
        {
            "bytes": 1 << 20,
            "save_s": {OURS: [2, 4], "DCP, FileSystemWriter": [4, 8]},
            "load_s": {OURS: [1, 1]},
        },
        [("save", "1 MiB", 3, {"DCP": [2, 2, 2]}, ""), ("load", "1 MiB", 1, {}, "")],
    ),
    (
        "windows",
        {
            "rows": [
                {
                    "bytes": 8,
                    OURS: {"p50_us": 2},
                    "C, allocated": {"ratio": [0.9, 1, 1.1]},
                    "computing_ms": {OURS: 1.25, "C": 10},
                }
            ]
        },
        [("put", "8 B", 2, {"C (allocated)": "equal"}, "1.2, 10.0")],
    ),
    (
        "servers",
        {
            "rows": [
                {"dim": 64, "ids": 10, "unique": 5, "what": what, "contender": name, "p50_us": 3.0}
                | {"ratio": ratio, "differs": None}
                for what in ("pull", "pull + push")
                for name, ratio in ((OURS, None), ("gRPC", [2, 3, 4]), (AGAIN, [1, 1, 1]))
            ]
        },
        [("pull", "dim 64, ids 10", 3, {"gRPC": [2, 3, 4]}, "")],
    ),
    (
        "jax",
        {
            "rows": [
                {"bytes": 8, "what": "loop of 100"}
                | {name: {"p50_us": 300, "ratio": [2, 3, 4]} for name in ("ordered", "unordered")}
            ]
        },
        [
            (f"loop of 100, {name}", "8 B", 3, {"gloo": [2, 3, 4]}, "")
            for name in ("ordered", "unordered")
        ],
    ),
    (
        "gpu",
        {
            "rows": [
                {"bytes": 8, "us": {"ours": 5, "gloo": 9}, "ratios": {"gloo : ours": [1, 2, 3]}}
            ]
        },
        [("gloo : ours", "8 B", 5, {"ratio": "equal"}, "")],
    ),
    (
        "inference",
        {
            "inference": {
                "prompt": 256,
                "ms": {
                    OURS: {"token": [10.0], "prefill": [20.0]},
                    "gloo": {"token": [20.0], "prefill": [10.0]},
                    steps.SILENT: {"token": [8.0], "prefill": [20.0]},
                },
            }
        },
        [
            ("token", "", 10, {"gloo": [2, 2, 2], steps.SILENT: [0.8, 0.8, 0.8]}, "20 %"),
            ("prefill", "256 tokens", 20, {"gloo": [0.5, 0.5, 0.5], steps.SILENT: "equal"}, "0 %"),
        ],
    ),
]


@pytest.mark.parametrize(("program", "record", "wanted"), OF_PROGRAMS)
def test_the_rows_of_each_program(
    figures: ModuleType, program: str, record: Any, wanted: list[tuple[Any, ...]]
) -> None:
    names = ("what", "case", "ours", "ratio", "note")
    found = list(figures.PARTS[program].runs[0].rows(record))
    assert found == [dict(zip(names, line, strict=True)) for line in wanted]


def test_what_is_measured_can_be_typed(
    figures: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of figures.py, and those that on_hosts.py runs by default."""
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "cluster"))
    on_hosts = importlib.import_module("on_hosts")
    tools = []
    for words in (on_hosts.OPERATIONS, on_hosts.STEPS, on_hosts.SLOWLY):
        tools.append(cli.parser().parse_args(["bench", *words]).tool)
    for run in (run for part in figures.PARTS.values() for run in part.runs):
        words = run.command(Path("out"), quick=True)
        if words[1].endswith("on_hosts.py") and "--program" not in words:
            words = ["bench", *words[words.index("--") + 1 :]]
        elif "paddlempi" in words:
            words = words[words.index("paddlempi") + 1 :]
        else:
            continue
        tools.append(cli.parser().parse_args(words).tool)
    assert {"all_reduce", "pingpong", "step", "inference", "ps", "io"} <= {*tools}


def test_the_record_goes_to_a_file_of_ours(figures: ModuleType) -> None:
    parts = figures.PARTS
    of_ranks = parts["files"].runs[0].command(Path("out"), quick=False)
    assert of_ranks[1:6] == ["-m", "paddlempi.testing.launch", "-np", "4", "--"]
    assert of_ranks[-2:] == ["--json", "out"]
    hosts = parts["nodes"].runs[1].command(Path("out"), quick=True)
    assert hosts[1:4] == ["benchmarks/on_hosts.py", "--json", "out"]
    assert hosts.index("--") > 3 and hosts[-2:] == ["--rounds", "12"]


def test_the_page_is_made_of_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run ``benchmarks/figures.py --page`` after a change by hand."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    pages = importlib.import_module("figures_page")
    files = sorted((ROOT / "docs" / "figures").glob("*.json"))
    assert files
    found = [json.loads(file.read_text()) for file in files]
    assert (ROOT / "docs" / "benchmarks.md").read_text() == pages.page(found)
    two = pages.page([found[0], found[0] | {"machine": "another"}])
    assert two.count("### another\n") == len(found[0]["parts"])
