"""The program of docs/ps.md trains, with roles and without."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from paddlempi.testing import run

PAGE = Path(__file__).resolve().parents[3] / "docs" / "ps.md"

BATCHES = """
torch.set_num_threads(1)
torch.manual_seed(0)
batches = []
for _ in range(40):
    ids = torch.randint(-50, 50, (32, 4))
    batches.append((ids, (ids > 0).sum(1, keepdim=True).float()))
first = None
"""

CHECK = """
    first = float(loss) if first is None else first
print(float(loss) < 0.5 * first, ps.role(), flush=True)
"""


@pytest.mark.parametrize("roles", ["trainer:2,pserver:1", ""])
def test_the_program_of_the_page(tmp_path: Path, roles: str) -> None:
    (program,) = re.findall(r"^```python\n# train.py\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    script = tmp_path / "train.py"
    ready = program.replace("\nps.init()\n", f"\nps.init()\n{BATCHES}").replace("1e-3", "1e-2")
    script.write_text(ready.rstrip("\n") + CHECK)
    through = ["-m", "paddlempi", "run", "--roles", roles] if roles else []
    ended = run(3, [sys.executable, *through, str(script)], timeout=90)
    assert ended.returncode == 0, ended.output
    told = ["True trainer"] * 2 if roles else ["True trainer+pserver"] * 3
    assert ended.stdout.splitlines() == told, ended.output
