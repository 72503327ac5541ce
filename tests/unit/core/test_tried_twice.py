"""A run of ranks that fails is started once more, and the closing lines of ``make test`` say so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import results

TOOLS = results.ROOT / "tools"

# Stands for mpirun and pytest: it fails as often as the second argument says.
RUN = """
import sys
from pathlib import Path

report, failures = Path(sys.argv[1].partition("=")[2]), int(sys.argv[2])
assert report.read_text() == ""
attempts = report.parent.parent / "attempts"
attempts.write_text((attempts.read_text() if attempts.exists() else "") + "x")
failed = len(attempts.read_text()) <= failures
what = "<failure/>" if failed else ""
if failures < 9:
    report.write_text(
        '<testsuites><testsuite time="2"><testcase classname="c" name="good"/>'
        f'<testcase classname="c" name="flaky">{what}</testcase></testsuite></testsuites>'
    )
sys.exit(failed)
"""


def closing(results: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOLS / "results.py"), str(results)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("failures", "attempts", "line", "twice"),
    [
        (0, 1, "2 passed, 0 failed, 0 skipped in 2 s", None),
        (1, 2, "2 passed, 0 failed, 0 skipped, 1 tried twice in 4 s", "c::flaky"),
        (2, 2, "1 passed, 1 failed, 0 skipped, 1 tried twice in 4 s", "c::flaky"),
        (9, 2, "0 passed, 1 failed, 0 skipped, 1 tried twice in 0 s", "ended without a report"),
    ],
)
def test_once_more(
    tmp_path: Path, failures: int, attempts: int, line: str, twice: str | None
) -> None:
    results = tmp_path / "results"
    results.mkdir()
    words = [sys.executable, "-c", RUN, f"--junitxml={results / 'r.xml'}", str(failures)]
    done = subprocess.run([str(TOOLS / "launched.sh"), *words], check=False)
    assert len((tmp_path / "attempts").read_text()) == attempts
    assert (done.returncode == 0) == (failures < 2)
    said = closing(results)
    assert line in said.stdout
    assert ("tried twice: " in said.stdout) == (twice is not None)
    assert twice is None or f"tried twice: {twice} (not in tests/known_flakes.txt" in said.stdout
    assert said.returncode == (failures >= 2), said.stderr
    # A run that passes at once says nothing of an earlier one.
    (tmp_path / "attempts").unlink()
    words[-1] = "0"
    subprocess.run([str(TOOLS / "launched.sh"), *words], check=True)
    assert "tried twice" not in closing(results).stdout


def test_known_flakes_say_why() -> None:
    assert results.cause("a.b::c[1]", [r"a\.b::c\[\d\]: the clock"]) == "a known flake: the clock"
    assert results.cause("a.b::d", ["a.b::c: the clock"]).startswith("not in")
    for rule in results.rules_of("known_flakes.txt"):
        pattern, why = rule.split(": ", 1)
        assert re.compile(pattern) and why
        module, _, name = pattern.replace("\\", "").partition("::")
        source = TOOLS.parent / f"{module.replace('.', '/')}.py"
        assert f"def {name.partition('[')[0]}(" in source.read_text(), rule
