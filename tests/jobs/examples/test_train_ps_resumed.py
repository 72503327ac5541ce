"""examples/train_ps_resumed.py ends with the same loss, whether or not a trainer dies."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from example import DEADLINE, FOLDER
from paddlempi.testing import launch

pytest.importorskip("torch", reason="torch is not installed")

NAME = "train_ps_resumed.py"


def train(cuts: Path, *options: str) -> tuple[str, str]:
    """Run the example as its first lines say. Return what it printed, and the last line."""
    inner = [sys.executable, "-m", "paddlempi", "run", "--roles", "trainer:2,pserver:1"]
    ranks = launch.command(3, [*inner, str(FOLDER / NAME), "--cuts", str(cuts), *options])
    done = subprocess.run(
        [sys.executable, "-m", "paddlempi", "run", "--restarts", "1", "--", *ranks.argv],
        env=ranks.env,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    (last,) = re.findall(r"^loss \d\.\d+e-\d+, rows \d+$", done.stdout, re.M)
    return text, last


def test_dies_and_goes_on(tmp_path: Path) -> None:
    text, expected = train(tmp_path / "one")
    assert "goes on" not in text
    text, last = train(tmp_path / "two", "--die-at", "50")
    assert "goes on at step 40" in text and "a rank died" in text, text
    assert last == expected
    assert len(list((tmp_path / "two").glob("cut-*"))) == 2  # keep=2
    page = (FOLDER.parent / "docs" / "ps-checkpoint.md").read_text()
    program = (FOLDER / NAME).read_text().partition('"""\n\n')[2]
    assert f"```python\n# {NAME}\n{program}```\n" in page, "the page shows another program"
