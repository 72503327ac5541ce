"""The part of the random numbers that Paddle draws on the CPU, NumPy and Python."""

from __future__ import annotations

from typing import Any

import paddle
from paddle.base import core

from ...elasticity.generators import Generators

__all__ = ["Random"]


class Random(Generators):
    """Generators of a process that uses Paddle."""

    def seeded(self) -> int:
        return int(core.default_cpu_generator().initial_seed())

    def get(self) -> Any:
        return core.default_cpu_generator().get_state()

    def set(self, state: Any) -> None:
        core.default_cpu_generator().set_state(state)

    def seed(self, number: int) -> None:
        paddle.seed(number)
