"""DeepSpeed's ZeRO of stages 2 and 3, and its sum for inference, on the CPU."""

from __future__ import annotations

from pathlib import Path

import programs

pytestmark = programs.needs("torch", "deepspeed")


def test_zero_2_and_3(tmp_path: Path) -> None:
    """mpi4py is hidden: DeepSpeed would find the ranks by mpi4py if the variables were missing."""
    program = "deepspeed_zero"
    ours = programs.over_mpi(program, tmp_path / "mpi", mpi4py=False)
    gloo = programs.over_gloo(program, tmp_path / "gloo", "--backend=gloo")
    programs.same(ours, gloo)
    for rank, numbers in enumerate(ours):
        assert numbers["backend"] == "mpi" and numbers["ranks"] == 2
        assert numbers["sums"] == [[1, 3, 5, rank + 1, rank + 1]] * 4
        for stage in ("zero2", "zero3"):
            found = numbers[stage]
            assert sum(found["losses"][-6:]) < sum(found["losses"][:6])
            assert found["weights"] == found["weights_again"] == ours[0][stage]["weights"]
    assert ours[0]["zero2"]["losses"] != ours[1]["zero2"]["losses"], "ranks have different rows"
