"""examples/train_language.py learns, and learns the same on any number of ranks, with ZeRO too."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from example import alone, on_ranks


def check(text: str, ranks: int) -> None:
    reached = re.search(
        r"^perplexity ([\d.]+), of the words' frequencies alone ([\d.]+)$", text, re.M
    )
    assert reached and float(reached[1]) < 0.8 * float(reached[2]), text
    assert f"parameters equal bit for bit on all {ranks} ranks: yes" in text


def test_learns_the_same_on_any_number_of_ranks(tmp_path: Path) -> None:
    check(on_ranks(2, "train_language.py", "--steps=200", "--zero=2"), 2)
    losses = []
    for ranks, options in ((1, ()), (2, ()), (3, ("--zero=1",))):
        out = tmp_path / f"{ranks}.json"
        words = ("train_language.py", "--steps=200", f"--losses={out}", *options)
        check(alone(*words) if ranks == 1 else on_ranks(ranks, *words), ranks)
        losses.append(json.loads(out.read_text()))
    one, two, three = losses
    assert two == pytest.approx(one, rel=2e-3)
    assert three == pytest.approx(one, rel=2e-3)
    assert one != two  # the floats were added in another order
