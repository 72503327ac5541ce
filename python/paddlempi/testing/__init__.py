"""Tests of programs that run on several ranks.

``mpirun -np 4 pytest --mpi tests/`` runs one pytest in every rank, in lock-step, and prints one
report (``paddlempi.testing.plugin``). ``run`` starts an ``mpirun`` from an ordinary test
(``paddlempi.testing.launch``), or with ``warm`` forks the ranks from a process that has imported
what they need (``paddlempi.testing.warm``). ``docs/testing.md`` is the guide.

This file imports nothing that it can avoid, because pytest loads the package in every session of
an environment in which paddlempi is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .launch import Result, run
    from .plugin import World
    from .session import RanksFailed
    from .warm import Warm

__all__ = ["RanksFailed", "Result", "Warm", "World", "run"]

_MODULES = {
    "RanksFailed": "session",
    "Result": "launch",
    "Warm": "warm",
    "World": "plugin",
    "run": "launch",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
