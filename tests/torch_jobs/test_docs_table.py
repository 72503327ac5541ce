"""The table in docs/torch.md is what this torch does over us."""

from __future__ import annotations

import sys
from pathlib import Path

from paddlempi.testing import run

ROOT = Path(__file__).resolve().parents[2]


def test_our_column_is_true_and_a_false_cell_is_noticed(tmp_path: Path) -> None:
    """One cell is spoilt on purpose, so that this run shows both."""
    text = (ROOT / "docs" / "torch.md").read_text()
    right, false = "| `barrier`; `all_gather_object`", "| `all_gather_object`"
    assert text.count(right) == 1
    page = tmp_path / "torch.md"
    page.write_text(text.replace(right, false))
    command = [sys.executable, str(ROOT / "tools" / "torch_table" / "table.py"), "--check"]
    result = run(2, [*command, f"--page={page}"], timeout=300, env={"PYTHONWARNINGS": "ignore"})
    assert result.returncode == 1, result.output
    (line,) = result.stdout.splitlines()
    assert line == "`barrier` -: the page says None, but it is 'yes'", result.output
