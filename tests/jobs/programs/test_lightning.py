"""Lightning finds the ranks by mpi4py or, if it is not installed, by torchrun's variables."""

from __future__ import annotations

from pathlib import Path

import programs
import pytest

pytestmark = programs.needs("torch", "pytorch_lightning")
PROGRAM = "lightning_ddp"


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> programs.Numbers:
    out = tmp_path_factory.mktemp("gloo")
    return programs.over_gloo(PROGRAM, out, "--backend=gloo", "--workers=0")


def check(ours: programs.Numbers, gloo: programs.Numbers, environment: str) -> None:
    programs.same(ours, gloo, but=("backend", "environment"))
    for numbers in ours:
        assert numbers["backend"] == "mpi" and numbers["ranks"] == 2
        assert numbers["environment"] == environment
        # The means of 3 and -7, 3 and -8, 1 and 2: still int64, rounded towards zero.
        assert numbers["means"] == [[-2, "torch.int64"], [-2, "torch.int64"], [1, "torch.int64"]]
        losses = [epoch["loss_epoch"] for epoch in numbers["history"]]
        assert len(losses) == 3 and losses == sorted(losses, reverse=True)
        # The callback kept the epoch with the least loss, and the trainer restored it.
        least = min(epoch["val_loss"] for epoch in numbers["history"])
        assert numbers["best"][1] == least == numbers["tested"]["val_loss"]
        assert numbers["history_again"] == numbers["history"][1:]
        assert numbers["weights_again"] == numbers["weights"] == numbers["saved"]
    assert ours[0] == ours[1]


def test_with_mpi4py(gloo: programs.Numbers, tmp_path: Path) -> None:
    check(programs.over_mpi(PROGRAM, tmp_path), gloo, "MPIEnvironment")


def test_without_mpi4py(gloo: programs.Numbers, tmp_path: Path) -> None:
    """Lightning uses the variables that ``import torch`` sets from mpirun's."""
    ours = programs.over_mpi(PROGRAM, tmp_path, mpi4py=False)
    check(ours, gloo, "LightningEnvironment")
