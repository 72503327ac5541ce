"""What the documents say of torch: their programs run, and their table is true of this torch."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import job

ROOT = Path(__file__).resolve().parents[3]

# One step of the model that the programs build, with different data on every rank.
STEP = """
rank, size = dist.get_rank(), dist.get_world_size()
assert size == 2 and dist.get_backend() == "mpi"
model(torch.full((4, 8), rank + 1.0)).sum().backward()
(weights, bias) = model.parameters()
assert torch.equal(weights.grad, torch.full((1, 8), 4 * 1.5)), weights.grad
dist.destroy_process_group()
print("done")
"""


def test_the_program_averages(tmp_path: Path) -> None:
    """The README's program with DDP is as short; tests/jobs/docs runs both as they are."""
    text = (ROOT / "docs" / "torch.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (program,) = (program for program in programs if "DistributedDataParallel" in program)
    script = tmp_path / "train.py"
    # A checkout on PYTHONPATH has no entry point.
    script.write_text(f"import paddlempi.torch\n{program}{STEP}")
    result = job.run(2, script, timeout=120).result
    assert result.returncode == 0, result.output
    assert result.stdout.count("done") == 2, result.output


def test_our_column_is_true_and_a_false_cell_is_noticed(tmp_path: Path) -> None:
    """One cell is made false on purpose, so that one run shows both."""
    text = (ROOT / "docs" / "torch.md").read_text()
    right, false = "| `barrier`; `all_gather_object`", "| `all_gather_object`"
    assert text.count(right) == 1
    page = tmp_path / "torch.md"
    page.write_text(text.replace(right, false))
    command = [sys.executable, str(ROOT / "tools" / "torch_table" / "table.py"), "--check"]
    command.append(f"--page={page}")
    result = job.run(2, command, timeout=300, env={"PYTHONWARNINGS": "ignore"}).result
    assert result.returncode == 1, result.output
    (line,) = result.stdout.splitlines()
    assert line == "`barrier` -: the page says None, but it is 'yes'", result.output
