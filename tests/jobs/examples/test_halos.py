"""The examples of docs/numpy.md give what one process gives, on any number of ranks."""

from __future__ import annotations

import pytest
from example import alone, on_ranks

EXAMPLES = {
    "heat.py": "equal bit for bit to one process: yes",
    "life.py": "equal to one process: yes",
    "convolve_torch.py": "equal: yes",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_equals_one_process(name: str) -> None:
    if name.endswith("_torch.py"):
        pytest.importorskip("torch", reason="torch is not installed")
    options = ["--steps=60"] if name == "heat.py" else []
    assert EXAMPLES[name] in alone(name, *options)
    on_four = () if name.endswith("_torch.py") else ((4, "2 x 2"),)
    for ranks, blocks in ((2, "2 x 1"), *on_four):
        text = on_ranks(ranks, name, *options)
        assert EXAMPLES[name] in text and f"{blocks} blocks" in text
