"""examples/train_torch.py does what its first lines say, on any number of ranks and over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
from example import check_curves, check_report, train

pytest.importorskip("torch", reason="torch is not installed")


def test_on_any_number_of_ranks(tmp_path: Path) -> None:
    """One rank without mpirun, and 2 ranks: the accuracy, and the same losses. test_train.py has 3.

    Over gloo, too: ``import paddlempi.torch`` sets what it needs from the launcher's variables.
    """
    curves = []
    for ranks, backend in (1, ""), (2, "mpi"), (2, "gloo"):
        options = ["--backend=gloo"] if backend == "gloo" else []
        text, losses = train(ranks, "train_torch.py", tmp_path / f"{ranks}{backend}", *options)
        assert f"{ranks} rank(s) over {backend}" in text
        check_report(text, ranks=ranks, epochs=15)
        curves.append(losses)
    check_curves(*curves)
