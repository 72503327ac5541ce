"""The part of the random numbers that torch draws on the CPU, NumPy and Python."""

from __future__ import annotations

from typing import Any

import torch

from ...elasticity.generators import Generators

__all__ = ["Random"]


class Random(Generators):
    """Generators of a process that uses torch."""

    def seeded(self) -> int:
        return int(torch.initial_seed())

    def get(self) -> Any:
        return torch.get_rng_state()

    def set(self, state: Any) -> None:
        torch.set_rng_state(state)

    def seed(self, number: int) -> None:
        torch.manual_seed(number)
