"""examples/plan_mlp.py and plan_language.py learn the same under every plan, and can be planned."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from example import DEADLINE, FOLDER, alone, on_ranks, train
from paddlempi.testing import run

pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize(
    ("name", "less", "ranks", "plan"),
    [("plan_mlp.py", 0.6, 2, "pipeline"), ("plan_language.py", 0.7, 4, "fsdp2+tp")],
)
def test_a_plan_learns_what_one_process_does(
    tmp_path: Path, name: str, less: float, ranks: int, plan: str
) -> None:
    _, one = train(1, name, tmp_path / "1", "--steps=30")
    assert one[-1] < less * one[0]
    text, losses = train(ranks, name, tmp_path / "several", "--steps=30", f"--plan={plan}")
    assert f"{ranks} rank(s): {plan} " in text
    assert losses[:10] == pytest.approx(one[:10], rel=2e-2)


def test_planned_and_trained_by_the_fastest_plan(tmp_path: Path) -> None:
    """What ``make plan`` does."""
    machine = tmp_path / "machine.json"
    words = ("-m", "paddlempi", "bench", "--calibrate", str(machine), "--seconds", "8")
    result = run(2, [sys.executable, *words], timeout=DEADLINE)
    assert result.returncode == 0, result.output
    script = str(FOLDER / "plan_mlp.py")
    job = ("--nodes", "1", "--ranks", "2", "--machine", str(machine))
    result = run(1, [sys.executable, "-m", "paddlempi", "plan", script, *job], timeout=DEADLINE)
    assert result.returncode == 0, result.output
    for plan in ("ddp replicate 2", "fsdp2 shard 2", "tp tensor 2"):
        assert re.search(rf"^{plan} +[\d.]+ ", result.stdout, re.M), result.stdout
    text = on_ranks(2, "plan_mlp.py", "--steps=5", "--plan=auto", f"--machine={machine}")
    tried = re.findall(r"^tried (.+): ([\d.]+) ms a step$", text, re.M)
    assert tried and f"2 rank(s): {min(tried, key=lambda one: float(one[1]))[0]}" in text, text
    assert "1 rank(s): ddp" in alone("plan_mlp.py", "--steps=1")
