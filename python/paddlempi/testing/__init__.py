"""Tests of programs that run on several ranks.

``mpirun -np 4 pytest --mpi tests/`` runs one pytest in every rank, in lock-step, with one
report (``paddlempi.testing.plugin``); ``run`` starts an ``mpirun`` from an ordinary test
(``paddlempi.testing.launch``). ``docs/testing.md`` is the guide.

Nothing is imported here: pytest loads this package in every session of an environment in
which paddlempi is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .launch import Launch, Result, launch, run
    from .plugin import World

__all__ = ["Launch", "Result", "World", "launch", "run"]


def __getattr__(name: str) -> Any:
    if name == "World":
        from .plugin import World

        return World
    if name in __all__:
        from . import launch as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
