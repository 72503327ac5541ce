"""The closing lines of the tests: what failed, what passed at its second try, and budgets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import results

ROOT = results.ROOT
HERE = "tests.unit.core.test_results"
KNOWN = rf"{HERE.replace('.', '[.]')}::test_known: the clock"


@pytest.fixture(autouse=True)
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"known_flakes.txt": [KNOWN], "expected_skips.txt": ["unit: no GPU.*"]}
    monkeypatch.setattr(results, "rules_of", files.__getitem__)


def group(folder: Path, name: str, **said: Any) -> None:
    """Write what tools/matrix says of a group."""
    again = "make try MPI=openmpi T={test}"
    common = {"name": name, "wall": 10.0, "cpu": 4.0, "status": 0, "attempts": 1, "budget": 20}
    text = json.dumps({**common, "again": again, "left_out": None, **said})
    (folder / f"{name}.group.json").write_text(text)


def junit(path: Path, *cases: str | tuple[str, str]) -> None:
    """Write a JUnit file of tests, each with what is inside its case."""
    path.parent.mkdir(exist_ok=True)
    pairs = [case if isinstance(case, tuple) else (case, "") for case in cases]
    inside = [
        f'<testcase classname="{HERE}" name="{name}" time="0.5">{what}</testcase>'
        for name, what in pairs
    ]
    suite = f'<testsuite time="3">{"".join(inside)}</testsuite>'
    path.write_text(f"<testsuites>{suite}</testsuites>")


def failure(message: str) -> str:
    return f'<failure message="{message}">Traceback\nmore</failure>'


def first(message: str) -> str:
    """Return what is in the case of a first try, as pytest-rerunfailures and conftest leave it."""
    return f'<properties><property name="first_failure" value="{message}"/></properties>'


def said_of(folder: Path, capsys: pytest.CaptureFixture[str], *names: str) -> tuple[int, list[str]]:
    """Return the status, and the lines that are printed."""
    status = results.main([str(folder), *names])
    return status, capsys.readouterr().out.splitlines()


def stored(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())


def columns(lines: list[str], name: str) -> list[str]:
    """Return the words of the line of a group."""
    return next(line.split() for line in lines if line.startswith(f"{name} "))


def test_a_run_in_which_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group(tmp_path, "unit")
    junit(tmp_path / "unit.xml", "test_a", "test_b", ("test_c", '<skipped message="no GPU here"/>'))
    group(tmp_path, "verify", cpu=6.4, wall=7.0, budget=None)
    group(tmp_path, "cluster", left_out="needs root", status=0, attempts=0, wall=0.0, cpu=0.0)
    (tmp_path / "cluster.xml").touch()  # of an earlier run
    status, lines = said_of(tmp_path, capsys)
    assert status == 0
    assert lines[0].split() == [
        *("group", "passed", "failed", "skipped", "twice"),
        *("wall", "s", "CPU", "s", "budget"),
    ]
    assert columns(lines, "unit") == ["unit", "2", "0", "1", "0", "10", "4", "20"]
    assert columns(lines, "verify") == ["verify", "1", "0", "0", "0", "7", "6", "-"]
    assert columns(lines, "cluster") == ["cluster", "left", "out:", "needs", "root"]
    assert lines[-2:] == ["wall 17 s, CPU 10 s", "3 passed, 0 failed, 2 skipped"]
    assert len(lines) == 6, lines


def test_what_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group(tmp_path, "unit", status=1)
    cases = [("test_a", failure("no")), ("test_b", first("at first")), "test_b"]
    junit(tmp_path / "unit.xml", *cases, ("test_c", '<skipped message="no GPU"/>'))
    said_of(tmp_path, capsys)
    whole = stored(tmp_path)
    assert whole["wall"] == 10.0 and whole["cpu"] == 4.0
    assert len(whole["load"]) == 3 and whole["cpu_model"]
    assert whole["commit"] is None or re.fullmatch("[0-9a-f]{40}", whole["commit"])
    (one,) = whole["groups"]
    assert one == {
        "name": "unit",
        "wall": 10.0,
        "cpu": 4.0,
        "budget": 20,
        "passed": 1,
        "failed": [f"{HERE}::test_a"],
        "skipped": {"no GPU": 1},
        "tried_twice": [{"test": f"{HERE}::test_b", "first_failure": "at first"}],
        "slowest": [
            {"test": f"{HERE}::test_b", "seconds": 1.0},  # both tries
            {"test": f"{HERE}::test_a", "seconds": 0.5},
        ],
    }
    # Only the slowest ten are, and a report of some groups leaves that of all alone.
    junit(tmp_path / "unit.xml", *(f"test_{n}" for n in range(12)))
    said_of(tmp_path, capsys, "unit")
    assert stored(tmp_path) == whole
    said_of(tmp_path, capsys)
    assert len(stored(tmp_path)["groups"][0]["slowest"]) == 10


def test_the_time_of_a_tier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group(tmp_path, "verify")
    tier = {"tier": "test", "wall": 50, "cpu": 100, "began": 1000.0, "ended": 1060.0}
    (tmp_path / "tier.json").write_text(json.dumps({**tier, "cpu_used": 90.0}))
    assert said_of(tmp_path, capsys)[1][-2] == "wall 60 s, CPU 90 s"
    (tmp_path / "tier.json").write_text(json.dumps({**tier, "ended": 1040.0}))
    assert said_of(tmp_path, capsys)[1][-2] == "wall 40 s, CPU 4 s"
    assert said_of(tmp_path, capsys, "verify")[1][-2] == "wall 10 s, CPU 4 s"


def test_a_failure_names_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group(tmp_path, "unit", status=1)
    junit(
        tmp_path / "unit.xml",
        ("test_a[x-1 y$]", failure("assert 1 == 2&#10;more")),
        ("test_b", failure("")),
        ("test_b", '<error message="failed on teardown"/>'),
    )
    group(tmp_path, "verify", status=2, again="make verify")
    status, lines = said_of(tmp_path, capsys)
    assert status == 1
    start = lines.index(f"FAILED unit: {HERE}::test_a[x-1 y$]: assert 1 == 2")
    path = "tests/unit/core/test_results.py"
    assert lines[start + 1 : start + 4] == [
        f"  again: make try MPI=openmpi T='{path}::test_a[x-1 y$$]'",
        f"FAILED unit: {HERE}::test_b: Traceback",
        f"  again: make try MPI=openmpi T={path}::test_b",
    ]
    assert lines[start + 4 : start + 6] == [
        "FAILED verify: its command ended with status 2",
        "  again: make verify",
    ]
    # A test whose teardown failed, too, was not tried twice, and is one failure.
    assert columns(lines, "unit")[1:5] == ["0", "2", "0", "0"]
    assert lines[-1] == "0 passed, 3 failed, 0 skipped"


def test_the_path_of_a_test() -> None:
    path = "tests/unit/core/test_results.py"
    assert results.path_of(f"{HERE}.TestIt::test_a[b.c::d]") == f"{path}::TestIt::test_a[b.c::d]"
    assert results.path_of(HERE) == path  # a module that cannot be imported
    assert results.path_of("github.com/x/y TestIt") == "github.com/x/y TestIt"


@pytest.mark.parametrize(
    ("said", "xml", "line"),
    [
        ({"status": 3}, "", "FAILED unit: unit::ended without a report"),
        ({"status": 134}, "<testsuites><testsuite", "FAILED unit: unit::ended without a report"),
        ({"status": 3}, "test_a", "FAILED unit: status 3, though no test failed"),
        ({}, None, "FAILED unit: not one test passed"),
        ({"status": 1, "attempts": 0}, "", "FAILED unit: it did not run, because what it needs"),
    ],
)
def test_a_group_that_fails_as_a_whole(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    said: dict[str, Any],
    xml: str | None,
    line: str,
) -> None:
    group(tmp_path, "unit", **said)
    if xml and xml.startswith("test_"):
        junit(tmp_path / "unit.xml", xml)
    elif xml is None:
        junit(tmp_path / "unit.xml")
    else:
        (tmp_path / "unit.xml").write_text(xml)
    status, lines = said_of(tmp_path, capsys)
    found = next(n for n, text in enumerate(lines) if text.startswith(line))
    assert status == 1 and lines[found + 1] == "  again: make test-unit", lines
    assert re.fullmatch(r"\d passed, 1 failed, 0 skipped", lines[-1])


def test_no_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = said_of(tmp_path, capsys)
    assert status == 1 and lines[-1] == "0 passed, 1 failed, 0 skipped"
    assert f"no results in {tmp_path}" in lines
    # Of a run that was killed the group's own file is missing.
    junit(tmp_path / "unit.xml", "test_a")
    status, lines = said_of(tmp_path, capsys)
    assert status == 0 and columns(lines, "unit")[1:] == ["1", "0", "0", "0", "3", "0", "-"]


def test_a_skip_that_nobody_expects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group(tmp_path, "unit")
    skips = [(f"test_{n}", '<skipped message="no time"/>') for n in range(2)]
    junit(tmp_path / "unit.xml", "test_a", *skips)
    status, lines = said_of(tmp_path, capsys)
    assert status == 1 and "unit: unexpected skip (2): no time" in lines
    assert lines[-1] == "1 passed, 1 failed, 2 skipped"


UNKNOWN = "passed only at the second try, and not known:"


@pytest.mark.parametrize("count", [0, 3, 4])
def test_flakes(tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int) -> None:
    group(tmp_path, "unit")
    flaky = [(f"test_{n}", first(f"{n} was too late&#10;more")) for n in range(count)]
    again = [name for name, _ in flaky]
    junit(tmp_path / "unit.xml", ("test_known", first("late")), *flaky, "test_known", *again)
    status, lines = said_of(tmp_path, capsys)
    assert f"unit: tried twice: {HERE}::test_known (a known flake: the clock)" in lines
    assert (UNKNOWN in lines) == (count > 0)
    for n in range(count):
        at = lines.index(f"  unit: {HERE}::test_{n}: {n} was too late")
        assert at == lines.index(UNKNOWN) + 1 + n
    assert columns(lines, "unit")[1:5] == [str(count + 1), "0", "0", str(count + 1)]
    too_many = "4 tests passed only at the second try; at most 3 may"
    assert (too_many in lines) == (count == 4) == (status == 1)
    assert lines[-1] == f"{count + 1} passed, {int(count == 4)} failed, 0 skipped"


def test_a_crash_is_told_with_its_stack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group(tmp_path, "unit")
    dump = ["AssertionError: SIGSEGV: segmentation violation", "PC=0x7f m=3", *map(str, range(90))]
    junit(tmp_path / "unit.xml", ("test_a", first("&#10;".join(dump))), "test_a")
    _, lines = said_of(tmp_path, capsys)
    at = lines.index(f"  unit: {HERE}::test_a: {dump[0]}")
    assert [line.strip() for line in lines[at + 1 : at + 40]] == dump[1:40]
    assert lines[at + 40].strip() != dump[40]


def test_a_second_attempt_of_a_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = [("test_a", failure("[rank 1] late")), ("test_b", failure("wrong")), "test_c"]
    junit(tmp_path / "first" / "mpi.xml", *cases)
    junit(tmp_path / "mpi.xml", "test_a", ("test_b", failure("still wrong")), "test_c")
    group(tmp_path, "mpi", attempts=2, status=1)
    status, lines = said_of(tmp_path, capsys)
    assert status == 1
    assert columns(lines, "mpi")[1:5] == ["2", "1", "0", "2"]
    assert f"FAILED mpi: {HERE}::test_b: still wrong" in lines
    assert lines[lines.index(UNKNOWN) + 1] == f"  mpi: {HERE}::test_a: [rank 1] late"
    # A run that passes at once says nothing of an earlier one.
    junit(tmp_path / "mpi.xml", "test_a", "test_b", "test_c")
    group(tmp_path, "mpi")
    status, lines = said_of(tmp_path, capsys)
    assert status == 0 and UNKNOWN not in lines and columns(lines, "mpi")[4] == "0"


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("", "mpi::ended without a report: its file is empty or ends early"),
        ("test_a", "mpi::failed after its tests: no test failed"),
    ],
)
def test_a_launcher_that_failed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str, why: str
) -> None:
    junit(tmp_path / "first" / "mpi.xml", *filter(None, [before]))
    if not before:
        (tmp_path / "first" / "mpi.xml").write_text("")
    junit(tmp_path / "mpi.xml", "test_a")
    group(tmp_path, "mpi", attempts=2)
    status, lines = said_of(tmp_path, capsys)
    assert status == 0 and lines[lines.index(UNKNOWN) + 1] == f"  mpi: {why}"


def events(*given: tuple[str, str, str]) -> str:
    """Return what go test -json writes: actions of tests of a package, and their output."""
    lines = ["go: a line that is not JSON"]
    for n, (action, test, output) in enumerate(given):
        event = {"Time": f"2026-01-01T00:00:0{n}.5Z", "Action": action, "Package": "x/y"}
        event |= {"Test": test} if test else {}
        event |= {"Output": output} if output else {}
        lines.append(json.dumps({**event, "Elapsed": 0.25}))
    return "\n".join(lines)


def test_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = ("output", "TestA/one", "    a_test.go:3: not equal\n")
    fails = [("fail", "TestA/one", ""), ("fail", "TestA", ""), ("fail", "", "")]
    (tmp_path / "go.json").write_text(
        events(
            ("output", "TestA/one", "=== RUN   TestA/one\n"),
            shown,
            ("output", "TestS", "    a_test.go:9: no GPU\n"),
            ("skip", "TestS", ""),
            ("pass", "TestB", ""),
            *fails,
        )
    )
    group(tmp_path, "go", status=1, again="make test-go")
    status, lines = said_of(tmp_path, capsys)
    assert status == 1
    assert lines[0] == "go: a line that is not JSON"
    assert shown[2].rstrip() in lines  # nobody else prints what a test of Go says
    assert columns(lines, "go")[1:4] == ["1", "1", "1"]
    at = lines.index("FAILED go: x/y TestA/one: a_test.go:3: not equal")
    assert lines[at + 1] == "  again: make test-go"
    assert "go: unexpected skip (1): a_test.go:9: no GPU" in lines
    # The packages that failed are tested once more.
    (tmp_path / "first").mkdir()
    (tmp_path / "go.json").rename(tmp_path / "first" / "go.json")
    (tmp_path / "go.json").write_text(events(("pass", "TestA", ""), ("pass", "TestA/one", "")))
    group(tmp_path, "go", attempts=2, again="make test-go")
    status, lines = said_of(tmp_path, capsys)
    assert status == 0 and shown[2].rstrip() in lines
    assert lines[lines.index(UNKNOWN) + 1] == "  go: x/y TestA/one: a_test.go:3: not equal"


def test_go_that_does_not_compile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = {"ImportPath": "x/y [x/y.test]", "Action": "build-output", "Output": "a.go:1: no\n"}
    lines = [
        json.dumps(built),
        json.dumps({**built, "Action": "build-fail"}),
        json.dumps(
            {
                "Time": "2026-01-01T00:00:00Z",
                "Action": "fail",
                "Package": "x/y",
                "FailedBuild": "x/y [x/y.test]",
            }
        ),
    ]
    (tmp_path / "go.json").write_text("\n".join(lines))
    group(tmp_path, "go", status=1, again="make test-go")
    _, said = said_of(tmp_path, capsys)
    assert said[0] == "a.go:1: no" and "FAILED go: x/y: a.go:1: no" in said
    assert said[-1] == "0 passed, 1 failed, 0 skipped"
    (tmp_path / "go.json").write_text("")
    _, said = said_of(tmp_path, capsys)
    assert "FAILED go: go::ended without a report" in said


def test_far_over_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    group(tmp_path, "some", cpu=30.0)
    group(tmp_path, "much", cpu=31.0)
    status, lines = said_of(tmp_path, capsys)
    assert status == 0
    assert columns(lines, "some")[-1] == "20" and columns(lines, "much")[-2:] == ["over", "budget"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    _, lines = said_of(tmp_path, capsys)
    (red,) = (line for line in lines if "much" in line)
    assert red.startswith("\033[31m") and red.endswith("20\033[0m")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033" not in "".join(said_of(tmp_path, capsys)[1])


def test_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert results.main(["--budget", str(tmp_path)]) == 1
    assert "run a tier first" in capsys.readouterr().err
    group(tmp_path, "a", cpu=21.0)
    group(tmp_path, "b", cpu=3.0)
    group(tmp_path, "c", budget=None)
    said_of(tmp_path, capsys)
    command = [sys.executable, str(ROOT / "tools" / "results.py"), "--budget", str(tmp_path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0] == "1 of 2 groups are over their budget of CPU seconds"
    assert [line.split() for line in lines[1:]] == [
        ["a", "21", "s", "of", "20:", "over", "budget"],
        ["all", "groups", "24", "s", "of", "40"],
    ]
    tier = {"tier": "test", "wall": 50, "cpu": 100, "began": 1000.0, "ended": 1060.0}
    (tmp_path / "tier.json").write_text(json.dumps({**tier, "cpu_used": 90, "foreign_cpu": 12.3}))
    said_of(tmp_path, capsys)
    for place in (tmp_path, tmp_path / "results.json"):
        assert results.main(["--budget", str(place)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split() for line in lines[3:5]] == [
            ["tier", "test,", "wall", "60", "s", "of", "50:", "over", "budget"],
            ["tier", "test,", "cpu", "90", "s", "of", "100"],
        ]
        assert lines[5] == "others used 12 CPU s of this machine meanwhile"


def test_known_flakes_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert results.cause(f"{HERE}::test_known", [KNOWN]) == "the clock"
    assert results.cause(f"{HERE}::test_other", [KNOWN]) is None
    monkeypatch.undo()
    for rule in results.rules_of("known_flakes.txt"):
        pattern, why = rule.split(": ", 1)
        assert re.compile(pattern) and why
        module, _, name = pattern.replace("\\", "").partition("::")
        source = ROOT / f"{module.replace('.', '/')}.py"
        assert f"def {name.partition('[')[0]}(" in source.read_text(), rule
