"""Programs of Paddle, unchanged, under ``python -m paddlempi run``."""

from __future__ import annotations

from pathlib import Path

import programs

pytestmark = programs.needs("paddle")


def both(program: str, folder: Path) -> programs.Numbers:
    """Run a program over MPI and over gloo. Check that the numbers agree, and return them."""
    ours = programs.over_mpi(program, folder / "mpi", as_it_is=True)
    assert [(numbers["ranks"], numbers["backend"]) for numbers in ours] == [(2, "MPI")] * 2
    programs.same(ours, programs.over_paddles_gloo(program, folder / "gloo"))
    assert ours[0]["weights"] == ours[1]["weights"]
    return ours


def test_hapi_fit(tmp_path: Path) -> None:
    for numbers in both("paddle_hapi", tmp_path):
        accuracies = [entry["acc_top1"] for entry in numbers["history"]]
        assert len(accuracies) == 6 and accuracies[-1] > accuracies[1]
        assert len(numbers["outputs"]) == 5, "a rank must predict half of the 10 rows"
        assert numbers["restored"] != numbers["weights"], "restored are those of the second epoch"


def test_fleet(tmp_path: Path) -> None:
    for rank, numbers in enumerate(both("paddle_fleet", tmp_path)):
        assert numbers["first"] == (rank == 0)
        assert sum(numbers["losses"][-4:]) < sum(numbers["losses"][:4])


def test_guarded_init(tmp_path: Path) -> None:
    """The guard asks for the number of ranks before anything is initialised."""
    for rank, numbers in enumerate(both("paddle_guarded", tmp_path)):
        assert len(numbers["losses"]) == 3 * 6, "a rank must train on half of the rows"
        assert sum(numbers["means"][-6:]) < sum(numbers["means"][:6])
        assert numbers["gathered"] == [[0, 18], [1, 18]]
        assert numbers["objects"] == [{"rank": 0}, {"rank": 1}]
        assert numbers["rate"] == 0.05 and numbers["restored"] != numbers["weights"]
        assert (numbers["statistics"] is None) == (rank == 1)
