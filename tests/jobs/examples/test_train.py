"""examples/train.py does what its first lines say, on any number of ranks."""

from __future__ import annotations

from pathlib import Path

from example import check_curves, check_report, train


def test_on_any_number_of_ranks(tmp_path: Path) -> None:
    """One rank without mpirun, 2 and 3 ranks: the accuracy, and the same losses."""
    curves = []
    for ranks in 1, 2, 3:
        text, losses = train(ranks, "train.py", tmp_path / f"{ranks}.json")
        check_report(text, ranks=ranks, epochs=15)
        curves.append(losses)
    check_curves(*curves)
