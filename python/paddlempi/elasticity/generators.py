"""The part of the random numbers: of NumPy, Python, and a framework."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from .. import group
from .sharing import told

__all__ = ["Generators"]


class Generators(ABC):
    """Generators of this process.

    A repeated step draws the numbers again that it drew. Each rank keeps its own generators. A
    replacement gets those of the root if the program seeds all ranks alike, and otherwise a seed
    that depends on the root's state and on the rank.
    """

    def __init__(self) -> None:
        self._kept: Any = None
        self._new = True

    @abstractmethod
    def seeded(self) -> int:
        """With what the program has seeded the framework."""

    @abstractmethod
    def get(self) -> Any:
        """The state of the framework's generator."""

    @abstractmethod
    def set(self, state: Any) -> None:
        """Give the framework's generator a state."""

    @abstractmethod
    def seed(self, number: int) -> None:
        """Seed the framework."""

    def state(self) -> Any:
        """Return the states."""
        return self.get(), np.random.get_state(), random.getstate()

    def load(self, state: Any) -> None:
        """Take states."""
        self.set(state[0])
        np.random.set_state(state[1])
        random.setstate(state[2])

    def before(self) -> None:
        """Keep the states."""
        self._kept = self.state()
        self._new = False

    def back(self) -> None:
        """Give the states back."""
        self.load(self._kept)

    def whole(self) -> bool:
        """Whether the state is not torn."""
        return True

    def reformed(self, job: Any) -> None:  # noqa: B027 (nothing to do is no default)
        """Do nothing: generators know no group."""

    def share(self, root: int) -> None:
        """Seed a process that has made no step yet, if the root has made some."""
        seeded, begun, states = told((self.seeded(), not self._new, self.state()), root)
        if not (self._new and begun):
            return
        if self.seeded() == seeded:
            self.load(states)
            return
        text = f"{group.get_rank()} {states[2]}"
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
        self.seed(number)
        np.random.seed(number)
        random.seed(number)
