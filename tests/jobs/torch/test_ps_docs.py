"""The program of docs/ps.md trains, with roles and without."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import job
import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "ps.md"


@pytest.mark.parametrize("roles", ["trainer:2,pserver:1", ""])
def test_the_program_of_the_page(tmp_path: Path, roles: str) -> None:
    (program,) = re.findall(r"^```python\n# train.py\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    script = tmp_path / "train.py"
    script.write_text(program.replace("\nps.init()\n", "\nps.init()\ntorch.manual_seed(0)\n"))
    through = [*job.PADDLEMPI, "run", "--roles", roles] if roles else [sys.executable]
    ended = job.run(3, [*through, str(script)], timeout=240)
    assert ended.returncode == 0, ended.output
    lines = [line.split(": loss ") for line in ended.result.stdout.splitlines()]
    assert [role for role, _ in lines] == (["trainer"] * 2 if roles else ["trainer+pserver"] * 3)
    assert all(float(loss) < 1.0 for _, loss in lines), lines  # it begins at 5
