"""``python -m paddlempi run train.py``: run an unchanged script over MPI."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import runpy
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import launcher

__all__ = ["add_to", "run"]

_FRAMEWORKS = ("paddle", "torch")


def add_to(commands: Any) -> None:
    """Add the command to the parser of ``python -m paddlempi``."""
    parser = commands.add_parser(
        "run",
        help="run a script whose paddle.distributed and torch.distributed go over MPI",
        description="Run a Python script, or with -m a module, as it is: when it imports Paddle or "
        "PyTorch, their collectives go over MPI. Start it with mpirun or srun: "
        "mpirun -np 4 python -m paddlempi run train.py",
    )
    parser.add_argument("-m", action="store_true", dest="module", help="SCRIPT is a module's name")
    parser.add_argument("script", metavar="SCRIPT", help="the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Run the script. Exceptions of the script, also SystemExit, are raised from here.

    Returns:
        0.
    """
    # Variables come first, because the script may read its rank before it imports the framework.
    found = launcher.find_in_fork()
    if launcher.PADDLE.fill(found):
        launcher.watch(found)
    sys.meta_path.insert(0, _Fronts())
    sys.argv[:] = [chosen.script, *chosen.arguments]
    try:
        if chosen.module:
            sys.path.insert(0, "")
            runpy.run_module(chosen.script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(chosen.script).resolve().parent))
            runpy.run_path(chosen.script, run_name="__main__")
    except SystemExit as stop:
        launcher.note_exit(stop.code)
        raise
    return 0


class _Fronts(MetaPathFinder):
    """A finder that imports a framework's front after the framework."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _FRAMEWORKS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenFront(spec.loader)
        return spec


class _ThenFront(Loader):
    """The loader of a framework, which imports the front when the framework is loaded."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        importlib.import_module(f"paddlempi.{module.__name__}")
