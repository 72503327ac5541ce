"""examples/train_torch.py does what its first lines say, on any number of ranks and over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
from example import alone, check_report, curve, on_ranks

pytest.importorskip("torch", reason="torch is not installed")


def test_trains_alone_without_a_launcher() -> None:
    """One rank, no mpirun: the accuracy is reached and printed."""
    check_report(alone("train_torch.py"), ranks=1, epochs=15)


@pytest.mark.parametrize("ranks", [2, 3])
def test_trains_on_several_ranks(ranks: int) -> None:
    text = on_ranks(ranks, "train_torch.py")
    assert f"{ranks} rank(s) over mpi" in text
    check_report(text, ranks=ranks, epochs=15)


def test_trains_over_gloo_with_the_same_launcher() -> None:
    """``import paddlempi.torch`` sets what gloo needs from the launcher's variables."""
    text = on_ranks(2, "train_torch.py", "--backend=gloo")
    assert "2 rank(s) over gloo" in text
    check_report(text, ranks=2, epochs=15)


def test_loss_does_not_depend_on_the_number_of_ranks(tmp_path: Path) -> None:
    """The same global batches on 1, 2 and 3 ranks give the same curve but for rounding."""
    one, two, three = (curve(n, "train_torch.py", tmp_path / f"{n}.json") for n in (1, 2, 3))
    gloo = curve(2, "train_torch.py", tmp_path / "gloo.json", "--backend=gloo")
    for other in (two, three, gloo):
        assert other == pytest.approx(one, rel=2e-4)
    assert one[-1] < 0.5 * one[0]
    # Floats that are added in another order give other bits. Equal bits would mean that the
    # ranks did not divide the work.
    assert one != two
