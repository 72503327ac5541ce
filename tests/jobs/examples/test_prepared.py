"""The example of docs/numpy.md gives what one process gives, on any number of ranks."""

from __future__ import annotations

from example import alone, on_ranks


def test_solve() -> None:
    assert "equal to one process: yes" in alone("solve.py")
    for ranks in (2, 3):
        text = on_ranks(ranks, "solve.py")
        assert f"on {ranks} ranks" in text and "equal to one process: yes" in text
