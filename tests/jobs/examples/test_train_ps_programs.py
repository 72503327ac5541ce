"""The programs that trainers and servers run reach what one process reaches."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from example import DEADLINE, FOLDER, alone
from paddlempi.testing import run

pytest.importorskip("torch", reason="torch is not installed")

ROLES = {
    3: "trainer:2,pserver+master:1",
    4: "trainer:2,pserver:1,pserver+master:1",
    5: "trainer:2,pserver:2,master:1",
}
# The modes beside sync, and how far their AUC may be from that of one process after few steps. What
# a queue merges is one step, and how much that is depends on the load.
NEAR = {"async": 0.02, "half_async": 0.03, "ssp": 0.02, "geo": 0.02, "dc_asgd": 0.02}


def on_servers(ranks: int, script: Path, *options: str) -> str:
    """Run a program with roles. Return what it printed."""
    command = [sys.executable, "-m", "paddlempi", "run", "--roles", ROLES[ranks], str(script)]
    result = run(ranks, [*command, *options], timeout=DEADLINE)
    assert result.returncode == 0, result.output
    return result.stdout


def check_sync(one: Path, two: Path) -> float:
    """Check that two courses are equal but for rounding. Return the last quality."""
    expected, found = (
        [quality for _, quality in json.loads(file.read_text())["points"]] for file in (one, two)
    )
    assert len(found) == 11
    # Rounding adds up with the steps.
    assert found[:5] == pytest.approx(expected[:5], rel=2e-4)
    assert found == pytest.approx(expected, rel=2e-3)
    return found[-1]


@pytest.mark.parametrize(
    ("name", "ranks", "shards", "good"), [("words", 5, 64, 5.75), ("ratings", 3, 40, 0.8)]
)
def test_sync_is_one_process(
    tmp_path: Path, name: str, ranks: int, shards: int, good: float
) -> None:
    """A step of two trainers is one of a process that has both batches, and it learns."""
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    script, data = f"train_ps_{name}.py", f"--shards={shards}"
    alone(script, "--trainers=2", f"--out={one}", data)
    on_servers(ranks, FOLDER / script, f"--beside={one}", f"--out={two}", data)
    assert check_sync(one, two) < good


def test_modes_reach_the_auc_of_one_process(tmp_path: Path) -> None:
    """All in one job: a plan ends with its parameter server, and another one begins."""
    data = "--shards=12"
    one, both = tmp_path / "one.json", tmp_path / "both.json"
    alone("train_ps_dlrm.py", f"--out={one}", data)
    alone("train_ps_dlrm.py", f"--out={both}", "--trainers=2", data)
    words = [f"sync:{both}:{tmp_path / 'sync'}:{data}"]
    for mode, near in NEAR.items():
        words.append(f"{mode}:{one}:{tmp_path / mode}:{data}:--near={near}:--geo-step=10")
    text = on_servers(4, Path(__file__).parent / "ps_modes.py", *words)
    assert len(re.findall(r"^AUC \d\.\d+ after .*; of one process ", text, re.M)) == len(words)
    assert check_sync(both, tmp_path / "sync") > 0.73
