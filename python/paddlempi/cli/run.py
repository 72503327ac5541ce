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
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from paddlempi_bootstrap import starters

from ..errors import UnsupportedError
from ..ps import session
from ..startup import unused_rank
from ..startup.paddle_variables import PADDLE
from . import elastic_ranks, local_ranks, restart

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
    parser.add_argument(
        "--bind",
        action="store_true",
        help="with -np: bind each rank to its share of the CPUs; more ranks than CPUs take turns",
    )
    parser.add_argument(
        "--prefix", action="store_true", help="with -np: begin each line with its rank: [rank 3]"
    )
    parser.add_argument(
        "--log-dir",
        metavar="DIR",
        default="",
        help="with -np: write what ranks print into DIR/rank-N.log, and not to the terminal",
    )
    parser.add_argument(
        "--tee", action="store_true", help="with --log-dir: to the terminal as well"
    )
    parser.add_argument(
        "--elastic",
        type=_bounds,
        metavar="MIN[:MAX]",
        help="with -np: when a rank dies, those that are left go on, and it is replaced; the job "
        "ends when fewer than MIN are left and none comes. MAX: start more ranks, up to so many. "
        "SCRIPT uses paddlempi.elastic",
    )
    parser.add_argument(
        "--no-replace", action="store_true", help="with --elastic: go on with the ranks that live"
    )
    parser.add_argument(
        "--timeline",
        metavar="FILE",
        default="",
        help="with -np or -- COMMAND: record all operations of the ranks of this host into FILE "
        "(trace record)",
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


def _bounds(text: str) -> tuple[int, int]:
    """Read MIN[:MAX]; MAX is 0 if it is not there."""
    least, colon, most = text.partition(":")
    return _number(least), _number(most) if colon else 0


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
        _check_without_mpi(chosen)
        return _recorded(chosen, lambda: restart.run(chosen, words))
    _check_without_mpi(chosen)
    if chosen.number:
        return _recorded(chosen, lambda: _start_ranks(chosen, words, options))
    if chosen.timeline:
        chosen.parser.error(
            "--timeline: give -np N or -- COMMAND; beside another launcher's ranks, on each host, "
            f"run: python -m paddlempi trace record -o {chosen.timeline}"
        )
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


def _recorded(chosen: argparse.Namespace, job: Callable[[], int]) -> int:
    """Run a job, whose operations are recorded if ``--timeline`` is there."""
    if not chosen.timeline:
        return job()
    from .trace import record

    try:
        with record.beside(chosen.timeline):
            return job()
    except OSError as error:
        print(f"paddlempi run: {error}", file=sys.stderr)
        return 1


def _check_without_mpi(chosen: argparse.Namespace) -> None:
    """End the program if an option is for ranks that this command does not start itself."""
    names = ("bind", "prefix", "log_dir", "tee", "elastic")
    named = [name for name in names if getattr(chosen, name)]
    if named and (chosen.mpi or not chosen.number):
        others = "an mpirun has options of its own"
        if chosen.bind:
            others = (
                "other launchers bind by mpirun --bind-to core (Open MPI), -bind-to core (MPICH), "
                "srun --cpu-bind=cores, torchrun --numa-binding (near GPUs only)"
            )
        option = f"--{named[0].replace('_', '-')}"
        chosen.parser.error(f"{option}: give -np N, without --mpi; {others}")
    if chosen.tee and not chosen.log_dir:
        chosen.parser.error("--tee: give --log-dir DIR too")
    if chosen.no_replace and not chosen.elastic:
        chosen.parser.error("--no-replace: give --elastic MIN too")
    if chosen.elastic:
        least, most = chosen.elastic
        if least > chosen.number or 0 < most < chosen.number:
            chosen.parser.error(
                f"--elastic {least}{f':{most}' if most else ''}: -np {chosen.number} must be from "
                "MIN to MAX"
            )
        if chosen.keep_survivors:
            chosen.parser.error("--keep-survivors: --elastic leaves them alone already")


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
        if options or chosen.timeline:
            return restart.run(chosen, by_mpi.argv)
        os.execv(by_mpi.argv[0], by_mpi.argv)
    if options and not chosen.supervised:
        keep = ["--keep-survivors"] if chosen.keep_survivors else []
        lines = [f"--log-dir={chosen.log_dir}"] if chosen.log_dir else []
        lines += [f"--{name}" for name in ("bind", "prefix", "tee") if getattr(chosen, name)]
        if chosen.elastic:
            lines.append("--elastic={}:{}".format(*_all_bounds(chosen)))
            lines += ["--no-replace"] if chosen.no_replace else []
        again = [*this, "-np", str(chosen.number), "--supervised", *keep, *lines, *script]
        return restart.run(chosen, again)
    output = local_ranks.Output(chosen.prefix, chosen.tee)
    bounds = None
    if chosen.elastic:
        bounds = elastic_ranks.Bounds(*_all_bounds(chosen), replace=not chosen.no_replace)
    try:
        if chosen.log_dir:
            output = output.into(chosen.log_dir, bounds.most if bounds else chosen.number)
    except OSError as error:
        print(f"paddlempi run: --log-dir {chosen.log_dir}: {error}", file=sys.stderr)
        return 1
    keep_all = bool(chosen.keep_survivors)
    try:
        if bounds is not None:
            command = [*this, *script]
            return elastic_ranks.run(chosen.number, bounds, command, output, chosen.bind)
        return local_ranks.run(chosen.number, [*this, *script], keep_all, output, chosen.bind)
    except UnsupportedError as error:
        print(f"paddlempi run: --{error}", file=sys.stderr)
        return 1


def _all_bounds(chosen: argparse.Namespace) -> tuple[int, int]:
    """Return MIN and MAX of ``--elastic``."""
    least, most = chosen.elastic
    return least, most or chosen.number


def _run_script(script: str, arguments: Sequence[str], module: bool) -> None:
    # Variables come first, because the script may read its rank before it imports the framework.
    found, _ = starters.nearest()
    if PADDLE.fill(found):
        unused_rank.watch(found)
    sys.meta_path.insert(0, _Fronts())
    shown = sys.excepthook  # frameworks put their own on top of it
    sys.excepthook = lambda kind, error, trace: shown(kind, *_of_the_script(error, trace))
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


def _of_the_script(
    error: BaseException, trace: TracebackType | None
) -> tuple[BaseException, TracebackType | None]:
    """Return an error that is to be shown with its traceback, without the frames that led here."""
    found = trace
    while found is not None and found.tb_frame.f_code is not _run_script.__code__:
        found = found.tb_next
    while found is not None and (
        found.tb_frame.f_code is _run_script.__code__
        or found.tb_frame.f_globals.get("__name__") == runpy.__name__
    ):
        found = found.tb_next
    return (error.with_traceback(found), found) if found else (error, trace)


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
