"""examples/elastic_torch.py goes on without the rank that it kills."""

from __future__ import annotations

import re

import example
import pytest

pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.launcher("run --elastic")
def test_a_rank_dies() -> None:
    output = example.elastic(3, "elastic_torch.py", "--steps", "150", "--kill", "60")
    found = re.search(r"150 steps, the last on 2 ranks: ([\d.]+)% of the test data", output)
    assert found is not None and float(found[1]) > 85, output
