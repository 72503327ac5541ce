"""``python -m paddlempi tune`` without ranks, and what init, info and doctor say of its tables."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import paddlempi as dist
import pytest
from api_fake import FakeCore
from paddlempi.cli import doctor_judge, info, main, tune
from paddlempi.cli.tune import Kind
from paddlempi.startup import way_tables

WAYS = ["doubling", "slices", "inline"]


def row(best: str, *times: float) -> dict[str, Any]:
    kind = {"operation": "all_reduce", "half": False, "from": 1 << 20}
    return {**kind, "best": best, "ways": WAYS, "times": list(times), "tuned": True}


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what the command sets, so that it is gone after the test."""
    for name in (way_tables.VARIABLE, "PADDLEMPI_TUNE"):
        monkeypatch.setenv(name, "")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--sizes", "24K"], "24576 is no power of two from 16K on"),
        (["--sizes", "1M,8K"], "8192 is no power of two from 16K on"),
    ],
)
def test_wrong_sizes(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *words]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--sizes", "x"], "'x' is no number of bytes"),
        (["--seconds", "0"], "it must be a number of seconds"),
    ],
)
def test_wrong_words(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tune", *words])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.usefixtures("variables")
def test_on_one_node(
    fresh_core: FakeCore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = fresh_core.control

    def control(method: str, arguments: str) -> str:
        return json.dumps({"tuning": None}) if method == "info" else plain(method, arguments)

    fresh_core.rank = 0
    monkeypatch.setattr(fresh_core, "control", control)
    assert main(["tune"]) == 0
    assert "on one node: there is nothing to tune" in capsys.readouterr().out
    assert fresh_core.controls[-1][0] == "destroy"
    assert os.environ[way_tables.VARIABLE] == "none"  # the world has begun without a table


def test_init_warns_of_a_table_and_tells_where_tables_are(fresh_core: FakeCore) -> None:
    fresh_core.tuning_problem = "/x/table: it is no table"
    with pytest.warns(RuntimeWarning, match="no table of ways is taken: /x/table: it is") as seen:
        dist.init_process_group()
    assert len(seen) == 1 and seen[0].filename == __file__
    ((_, arguments),) = [told for told in fresh_core.controls if told[0] == "init"]
    assert arguments["way_tables"] == way_tables.folders()


def test_the_folders_of_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    package, user = way_tables.folders()
    assert package == str(Path(dist.__file__).parent / "tuned")
    assert user == f"{tmp_path}/paddlempi/tuned"
    for unusable in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert way_tables.cache() == "/home/someone/.cache/paddlempi/tuned"


def test_a_way_counts_that_is_found_twice() -> None:
    a, b, c = (row(WAYS[k], 3e-3, 2e-3, (k + 1) * 1e-3) for k in range(3))
    assert tune.combine([b])["best"] == "slices"
    assert tune.combine([b, b])["best"] == "slices"
    assert tune.combine([b, c, c])["best"] == "inline"
    assert tune.combine([b, c])["best"] == "doubling"  # there was no time for a third group
    assert tune.combine([c, b, a])["best"] == "doubling"
    made = tune.combine([a, row("slices", 3e-3, 0, 0)])
    assert made["times"] == [3e-3, 2e-3, 1e-3]
    assert set(made) == {"operation", "half", "from", "best", "ways", "times"}


def test_what_is_printed() -> None:
    found = {Kind("all_reduce", False, 1 << 20): [row("slices", 2e-3, 1e-3, 0)]}
    rows = [tune.combine(of_kind) for of_kind in found.values()]
    head, line = tune.lines(rows, found)
    assert head.split() == ["operation", "bytes", "us", "usual,", "us", "way"]
    assert line.split() == [
        *("all_reduce", "1", "MiB", "1000.0", "2000.0", "slices,", "not", "confirmed:", "no"),
        "time",
    ]


def test_a_table_is_written_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "table"
    file.write_text("an old one")
    tune.write(str(file), {"rows": []})
    assert json.loads(file.read_text()) == {"rows": []}
    with pytest.raises(FileNotFoundError):
        tune.write(str(tmp_path / "absent" / "table"), {})
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        tune.write(str(tmp_path / "folder"), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "table"]


def test_info_and_doctor_say_which_table_is_taken() -> None:
    told: dict[str, Any] = {"file": "/x/table", "rows": 7, "problem": ""}
    facts = [{"rank": 0, "core": {"initialized": True, "tuning": told}}]
    assert info._tuning(None) == "off"
    assert info._tuning(told) == "7 rows of /x/table"
    assert "tune writes one" in info._tuning({"file": "", "rows": 0, "problem": ""})
    assert doctor_judge.tuning(facts) == []
    told["problem"] = "/x/table: it was measured elsewhere"
    assert info._tuning(told) == "no table is taken: /x/table: it was measured elsewhere"
    (finding,) = doctor_judge.tuning(facts)
    assert finding.status == "warn" and "measured elsewhere" in finding.found
    assert "paddlempi tune" in finding.advice
