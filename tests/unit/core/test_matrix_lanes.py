"""How groups of tests run: what their time counts, second attempts, limits, what is left out."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools" / "matrix"))

import environments
import groups
import lanes


def measured(tmp_path: Path, limit: float, *words: str) -> dict[str, float]:
    report = tmp_path / "report"
    command = [
        sys.executable,
        "-S",
        str(lanes.HERE / "measured.py"),
        str(report),
        str(limit),
        *words,
    ]
    status = subprocess.run(command, stderr=subprocess.DEVNULL).returncode
    found: dict[str, float] = json.loads(report.read_text())
    assert found["status"] == status
    return found


BURN = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass\n"


def test_what_children_use_counts(tmp_path: Path) -> None:
    # A grandchild that has left its parent and its session counts, too.
    code = (
        "import os, subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {BURN!r}], start_new_session=True)\n"
        "sys.exit(3)\n"
    )
    took = measured(tmp_path, 0, sys.executable, "-c", code)
    assert took["status"] == 3 and not took["limit"]
    assert took["cpu"] >= 0.1


def test_nothing_is_left(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(pid)!r}, 'w').write(str(child.pid))\n"
    )
    measured(tmp_path, 0, sys.executable, "-c", code)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_limit(tmp_path: Path) -> None:
    began = time.monotonic()
    took = measured(tmp_path, 0.5, "sleep", "600")
    assert took["limit"] and took["status"] == 128 + 6
    assert time.monotonic() - began < 60


def a_group(name: str, code: str, kind: str = "program", **fields: Any) -> groups.Group:
    words = ("python", "-c", code, "@results")
    return groups.Group(name, "family", "test", kind, "here", 10, words, "shows", **fields)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for results, and an environment that is this Python's."""
    things = {
        "here": environments.Thing(lambda: None),
        "missing": environments.Thing(lambda: None),
    }
    monkeypatch.setattr(environments, "THINGS", things)
    monkeypatch.setattr(environments, "python", lambda _: sys.executable)
    monkeypatch.setattr(lanes, "RESULTS", tmp_path / "results")

    def is_made(name: str) -> bool:
        if name == "missing":
            raise environments.LeftOut("no apt on this machine")
        return True

    monkeypatch.setattr(environments, "is_made", is_made)
    return tmp_path / "results"


def said(results: Path, name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((results / f"{name}.group.json").read_text())
    return found


def test_groups_run_and_are_noted(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [a_group("good", f"{BURN}print('hello')"), a_group("bad", "raise SystemExit(5)")]
    assert lanes.run(rows, {"tier": "test", "wall": 1, "cpu": 2}) == 1
    assert "hello" in capfd.readouterr().out
    good, bad = said(here, "good"), said(here, "bad")
    assert good["status"] == 0 and good["attempts"] == 1 and float(str(good["cpu"])) >= 0.1
    assert bad["status"] == 5 and bad["left_out"] is None
    tier = json.loads((here / "tier.json").read_text())
    assert tier["tier"] == "test" and tier["cpu_used"] >= 0.1 and tier["ended"] > tier["began"]


def test_what_cannot_run_is_left_out(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [
        a_group("apt", "", also=("missing",)),
        a_group("large", "", memory=1e6),
        a_group("gpu", "", on="gpu"),
        a_group("runs", "print('ran')"),
    ]
    gpu = groups.Group.reason(rows[2])
    assert lanes.run(rows, {"tier": "test", "wall": 1, "cpu": 2}) == 0
    assert said(here, "apt")["left_out"] == "no apt on this machine"
    assert "GiB of memory" in str(said(here, "large")["left_out"])
    assert said(here, "gpu")["left_out"] == gpu
    assert said(here, "runs")["left_out"] is None
    assert "apt: left out: no apt on this machine" in capfd.readouterr().out


@pytest.mark.parametrize("version", lanes.LIMITS)
def test_the_memory_of_a_control_group(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, limit, usage, prefix = lanes.LIMITS[version]
    monkeypatch.setitem(lanes.LIMITS, version, (f"{tmp_path}", limit, usage, prefix))
    inner = tmp_path / "job" / "step"
    inner.mkdir(parents=True)
    files = f"{prefix}active_file 30\n{prefix}inactive_file 20\n"
    for folder, most in ((tmp_path, "max"), (inner.parent, "1000"), (inner, "5000")):
        (folder / limit).write_text(f"{most}\n")
        (folder / usage).write_text("400\n")
        (folder / "memory.stat").write_text(f"anon 350\n{files}")
    assert list(lanes.left_in_groups(version, "/job/step")) == [4650, 650]


def test_a_limit_of_memory_counts() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import lanes; print(lanes.memory())"
    words = ["prlimit", f"--as={2**30}", sys.executable, "-S", "-c", code, str(lanes.HERE)]
    assert 0 < float(subprocess.check_output(words)) <= 1


def test_a_group_in_step_is_tried_twice(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys, pathlib\nmark = pathlib.Path(sys.argv[1], 'mark')\n"
        "report = pathlib.Path(sys.argv[1], 'flaky.xml')\nassert report.read_text() == ''\n"
        "report.write_text('<testsuites/>')\n"
        "first = not mark.exists()\nmark.touch()\nsys.exit(first)\n"
    )
    command = [sys.executable, "-c", code, str(here)]
    monkeypatch.setattr(groups.Group, "command", lambda *_: command)
    assert lanes.run([a_group("flaky", code, kind="ranks")]) == 0
    note = said(here, "flaky")
    assert note["status"] == 0 and note["attempts"] == 2
    assert (here / "first" / "flaky.xml").exists() and (here / "flaky.xml").exists()


def test_a_thing_that_fails_fails_its_groups(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "is_made", lambda _: False)
    rows = [a_group("one", "print('never')")]
    assert lanes.run(rows, {"tier": "test", "wall": 1, "cpu": 2}) == 1  # `make here` is unknown
    assert said(here, "one")["status"] == 1


def test_a_group_that_is_alone(here: Path) -> None:
    """No other group runs beside it, also none that stands behind it."""
    code = (
        "import sys, time, pathlib\nnotes = pathlib.Path(sys.argv[1], 'notes')\n"
        "for word in ('begins', 'ends'):\n"
        "    with notes.open('a') as file: file.write(f'{sys.argv[2]} {word}\\n')\n"
        "    time.sleep(0.3)\n"
    )
    rows = []
    for name in ("a", "b", "alone", "c", "d"):
        row = a_group(name, code, alone=name == "alone")
        rows.append(dataclasses.replace(row, words=(*row.words, name)))
    assert lanes.run(rows, {"tier": "test", "wall": 1, "cpu": 2}) == 0
    notes = (here / "notes").read_text().splitlines()
    begun = notes.index("alone begins")
    assert notes[begun + 1] == "alone ends"
    assert {line.split()[0] for line in notes[:begun]} == {"a", "b"}


def test_a_group_that_cannot_be_started_fails(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> list[str]:
        raise OSError("no such command")

    monkeypatch.setattr(groups.Group, "command", broken)
    assert lanes.run([a_group("one", "")], {"tier": "test", "wall": 1, "cpu": 2}) == 1
    assert "no such command" in capfd.readouterr().err
