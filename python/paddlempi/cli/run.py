"""``python -m paddlempi run``: run a script in this rank, in N ranks, or a launcher with restarts.

``mpirun -np 4 python -m paddlempi run train.py`` is for the ranks: every one runs the script.
With ``--roles trainer:2,pserver:2`` the script's ``ps.init()`` takes these roles, and a rank that
only serves does so there, and then ends.
``python -m paddlempi run --restarts 3 -- mpirun -np 4 python train.py`` is for the job: it starts
the launcher, as often as needed (``restart.py``). ``--`` tells the two apart.
``python -m paddlempi run -np 4 train.py`` starts four ranks on this host, without MPI
(``ranks.py``), and with ``--mpi`` by the mpirun that is installed. With options of the second form
it starts them anew, too.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from paddlempi_bootstrap import starters

from ..ps import session
from ..startup import unused_rank
from ..startup.paddle_variables import PADDLE
from . import local_ranks, restart

__all__ = ["add_to", "run"]

_FRAMEWORKS = ("paddle", "torch")


def add_to(commands: Any) -> None:
    """Add the command to the parser of ``python -m paddlempi``."""
    parser = commands.add_parser(
        "run",
        help="run a script whose paddle.distributed and torch.distributed go over MPI; or, after "
        "--, a launcher, and start it anew when a rank dies",
        usage="%(prog)s [--roles ROLES] [-m] SCRIPT [ARGUMENT ...]\n"
        "       %(prog)s -np N [--mpi] [OPTION ...] [-m] SCRIPT [ARGUMENT ...]\n"
        "       %(prog)s [--restarts N] [OPTION ...] -- COMMAND [ARGUMENT ...]",
        description="In a rank: run a Python script, or with -m a module, as it is. When it "
        "imports Paddle or PyTorch, their collectives go over MPI: "
        "mpirun -np 4 python -m paddlempi run train.py. With -np: start so many ranks of it on "
        "this host, without MPI: python -m paddlempi run -np 4 train.py. Around a job: run its "
        "launcher, and start it anew when a rank has died: "
        "python -m paddlempi run --restarts 3 -- mpirun -np 4 python train.py",
    )
    parser.add_argument(
        "-np",
        "-n",
        dest="number",
        type=_number,
        metavar="N",
        help="start N ranks of SCRIPT on this host; without MPI, unless --mpi is there",
    )
    parser.add_argument(
        "--mpi", action="store_true", help="with -np: start them by mpirun, over MPI"
    )
    parser.add_argument("--supervised", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-m", action="store_true", dest="module", help="SCRIPT is a module's name")
    parser.add_argument(
        "--roles",
        metavar="ROLES",
        help="which ranks train and which have the tables of paddlempi.ps, such as "
        "trainer:2,pserver:2: ps.init() takes them, and serves in ranks that only serve",
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    restart.add_to(parser)
    parser.set_defaults(run=run, parser=parser)


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: it must be a whole number above 0")
    return int(text)


def run(chosen: argparse.Namespace) -> int:
    """Run the script, or the launcher.

    Exceptions of the script, also SystemExit, are raised from here.

    Returns:
        0 after a script, 1 if there is none. For a launcher see :func:`restart.run`.
    """
    around, options = chosen.words[:1] == ["--"], restart.given(chosen)
    words = chosen.words[1:] if around else chosen.words
    if not words:
        chosen.parser.error("name a SCRIPT, or -- and the COMMAND of a launcher")
    if around:
        if chosen.module:
            chosen.parser.error("-m is for a SCRIPT, not for -- COMMAND")
        if chosen.roles:
            chosen.parser.error("--roles is for a SCRIPT: put it into COMMAND, before the SCRIPT")
        if chosen.number or chosen.mpi:
            chosen.parser.error("-np and --mpi are for a SCRIPT, not for -- COMMAND")
        return restart.run(chosen, words)
    if chosen.number:
        return _start_ranks(chosen, words, options)
    if chosen.mpi:
        chosen.parser.error("--mpi: give -np N too")
    if options:
        chosen.parser.error(f"{options[0]}: put -- and the launcher's COMMAND after it")
    if chosen.roles is not None:
        os.environ["PADDLEMPI_ROLES"] = chosen.roles
        session.servers_end_in_init()
    try:
        _run_script(words[0], words[1:], chosen.module)
    except (OSError, ImportError) as error:  # there is no such script
        if not _is_of_runpy(error):
            raise
        text = error.strerror if isinstance(error, OSError) else str(error)
        name = f"-m {words[0]}" if chosen.module else words[0]
        print(f"paddlempi run: {name}: {text}", file=sys.stderr)
        return 1
    except SyntaxError as error:
        if not _is_of_runpy(error):
            raise
        traceback.print_exception(type(error), error, None)  # as Python does for a script
        return 1
    return 0


def _start_ranks(chosen: argparse.Namespace, words: Sequence[str], options: Sequence[str]) -> int:
    """Start ranks of the script on this host; with options of a launcher, as often as needed."""
    if chosen.roles is not None and not chosen.mpi:
        chosen.parser.error("--roles: parameter servers need MPI: give --mpi too")
    # Those of this Python: -O, -W, -X, -I ...; multiprocessing asks by the same function.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    this = [sys.executable, *flags, "-m", "paddlempi", "run"]
    script = [*(["-m"] if chosen.module else []), *words]
    if chosen.mpi:
        from ..testing import launch  # which a rank that runs a script need not load

        roles = [] if chosen.roles is None else ["--roles", chosen.roles]
        try:
            by_mpi = launch.command(chosen.number, [*this, *roles, *script])
        except FileNotFoundError as error:
            print(f"paddlempi run: --mpi: {error}", file=sys.stderr)
            return 127
        os.environ.clear()
        os.environ.update(by_mpi.env)
        if options:
            return restart.run(chosen, by_mpi.argv)
        os.execv(by_mpi.argv[0], by_mpi.argv)
    if options and not chosen.supervised:
        keep = ["--keep-survivors"] if chosen.keep_survivors else []
        again = [*this, "-np", str(chosen.number), "--supervised", *keep, *script]
        return restart.run(chosen, again)
    return local_ranks.run(chosen.number, [*this, *script], keep=bool(chosen.keep_survivors))


def _run_script(script: str, arguments: Sequence[str], module: bool) -> None:
    # Variables come first, because the script may read its rank before it imports the framework.
    found, _ = starters.nearest()
    if PADDLE.fill(found):
        unused_rank.watch(found)
    sys.meta_path.insert(0, _Fronts())
    sys.argv[:] = [script, *arguments]
    try:
        if module:
            sys.path.insert(0, "")
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(script).resolve().parent))
            runpy.run_path(script, run_name="__main__")
    except SystemExit as stop:
        unused_rank.note_exit(stop.code)
        raise


def _is_of_runpy(error: BaseException | None) -> bool:
    """Whether an error came before any code of the script, or of a package above it, ran."""
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            module = frame.f_globals.get("__name__", "")
            if module not in (__name__, "runpy") and not module.startswith("importlib."):
                return False
        error = error.__cause__  # runpy tells anew what it has caught
    return True


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
