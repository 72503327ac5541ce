"""The examples of windows end with what one process computes, on any number of ranks."""

from __future__ import annotations

import re

import pytest
from example import alone, on_ranks


@pytest.mark.parametrize("ranks", [2, 3])
def test_work_is_stolen(ranks: int) -> None:
    text = on_ranks(ranks, "window_stealing.py")
    assert "the picture equals that of one process: yes" in text
    lines = re.findall(
        r"^(no stealing|\d+ rows stolen): ([\d. ]+) s a rank, balance ([\d.]+)$", text, re.M
    )
    (_, alone_seconds, _), (stolen, seconds, balance) = lines
    # How long a rank computes depends on what else the machine does. The shares differ by more.
    assert lines[0][0] == "no stealing" and int(stolen.split()[0]) > 0
    assert len(alone_seconds.split()) == len(seconds.split()) == ranks
    assert 0 < float(balance) <= 1


def test_a_table_is_read_by_all() -> None:
    for ranks in (1, 2, 3):
        words = ("window_embedding.py", "--words=2000", "--sentences=300")
        text = alone(*words) if ranks == 1 else on_ranks(ranks, *words)
        assert "the sentences equal those of one process: yes" in text
        parts = re.findall(r"^rank \d+: ([\d.]+) of ([\d.]+) MB, read \d+ rows", text, re.M)
        assert len(parts) == ranks
        assert sum(float(part) for part, _ in parts) == pytest.approx(float(parts[0][1]), abs=0.2)


@pytest.mark.parametrize("ranks", [2, 3])
def test_batches_are_streamed(ranks: int) -> None:
    text = on_ranks(ranks, "window_stream.py", "--batches=31")
    assert "the results equal those of one process: yes" in text
    assert f"31 batches, {ranks - 1} consumer(s)" in text
