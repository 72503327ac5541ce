"""Plans of ``paddlempi.torch.apply`` for models of transformers, which say how they are cut."""

from __future__ import annotations

from pathlib import Path

import programs
import pytest


@programs.needs("torch", "transformers")
@pytest.mark.parametrize(
    "ranks, plans", [(2, ["fsdp2", "tp"]), (4, ["ddp", "hsdp", "fsdp2+tp"])], ids=["2", "4"]
)
def test_losses_are_those_of_one_process(tmp_path: Path, ranks: int, plans: list[str]) -> None:
    for numbers in programs.over_mpi("llama_plans", tmp_path, ranks=ranks):
        for name, losses in numbers["losses"].items():
            wanted = losses.pop("alone")
            assert wanted[-1] < wanted[0] and list(losses) == plans
            for plan, found in losses.items():
                assert found == pytest.approx(wanted, abs=1e-4), (name, plan)
