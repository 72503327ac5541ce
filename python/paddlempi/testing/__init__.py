"""Tests of programs that run on several ranks.

``mpirun -np 4 pytest --mpi tests/`` runs one pytest in every rank, in lock-step, with one
report (``paddlempi.testing.plugin``); ``run`` starts an ``mpirun`` from an ordinary test
(``paddlempi.testing.launch``). ``docs/testing.md`` is the guide.

Nothing is imported here: pytest loads this package in every session of an environment in
which paddlempi is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .launch import Result, run
    from .plugin import World
    from .session import RanksFailed

__all__ = ["RanksFailed", "Result", "World", "run"]

_HOMES = {"RanksFailed": "session", "Result": "launch", "World": "plugin", "run": "launch"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
