"""Warm starts: jobs whose ranks are forked from a server that has imported what they need.

``run(warm=True)`` calls ``run_job``. ``Warm`` owns the servers, one for each list of modules. They
start when they are first asked. ``paddlempi.cli.warm_server`` is their program.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paddlempi_bootstrap.known_launchers import KINDS
from paddlempi_bootstrap.starters import STARTERS

from . import warm_wire

__all__ = ["VARIABLE", "Warm", "run_job"]

VARIABLE = "PADDLEMPI_TESTING_WARM"
"""The environment variable with the folder of the servers that processes share."""

_MODULES = ("numpy",)
_START_SECONDS = 180.0
_KILL_SECONDS = 30.0
"""For a job to be killed at its deadline."""
_LONGEST = 80  # bytes of a folder's path; that of a socket may have 107
_GONE = (EOFError, ConnectionError, FileNotFoundError)

# What a server must not inherit: what Python and libraries read while they start, and the place of
# a rank. Every rank has these variables as its job gives them.
_DROPPED = (
    *(prefix for kind in KINDS if not kind.any_mpi for prefix in kind.variable_prefixes),
    *("OMP_", "PYTHONWARNINGS", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONSAFEPATH"),
    *("PYTHONFAULTHANDLER", "PYTHONINSPECT", "PADDLEMPI_"),
    *(name for one in STARTERS for name in (one.sign, one.rank, one.size)),
)
# A pool of threads that a library makes at its import would not be there after a fork.
_ADDED = {"OPENBLAS_NUM_THREADS": "1"}

# The servers that this process has started. They may outlive it, if it is not their owner.
_started: list[subprocess.Popen[bytes]] = []


class Warm:
    """Servers that this process owns. Use it as a context manager, or call ``close``.

    Between, this process and its children share them: ``os.environ`` has their address.

    Args:
        modules: what ``run(warm=True)`` wants imported.
        export: put the address into ``os.environ``.
    """

    def __init__(self, modules: Sequence[str] = _MODULES, export: bool = True) -> None:
        parent = tempfile.gettempdir()
        self.folder = tempfile.mkdtemp(
            prefix="paddlempi-warm-", dir=parent if len(parent) < _LONGEST - 24 else "/tmp"
        )
        self._pid = os.getpid()
        Path(self.folder, "owner").write_text(str(self._pid))
        Path(self.folder, "modules").write_text(json.dumps(list(modules)))
        self._before = os.environ.get(VARIABLE)
        self._export = export
        if export:
            os.environ[VARIABLE] = self.folder

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the servers, and remove their folder. Jobs that run go on."""
        if os.getpid() != self._pid:  # a fork of the owner
            return
        if self._export and os.environ.get(VARIABLE) == self.folder:
            del os.environ[VARIABLE]
            if self._before is not None:
                os.environ[VARIABLE] = self._before
        for path in Path(self.folder).glob("*.sock"):
            with contextlib.suppress(OSError):
                _end(path)
        shutil.rmtree(self.folder, ignore_errors=True)


def _end(address: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_KILL_SECONDS)
        sock.connect(str(address))
        pid = warm_wire.peer(sock)[0]
    over = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        select.select([over], [], [], _KILL_SECONDS)
    finally:
        os.close(over)
    for process in _started:
        if process.pid == pid:
            process.wait()


_own: Warm | None = None


def _folder() -> str:
    """Return the folder of the servers for this process, which makes one if there is none."""
    global _own
    folder = os.environ.get(VARIABLE, "")
    if folder and os.path.isdir(folder):
        return folder
    if _own is None or not os.path.isdir(_own.folder):
        _own = Warm(export=False)
        atexit.register(_own.close)
    return _own.folder


def run_job(
    np: int,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None,
    files: tuple[int, int],
    timeout: float,
    modules: bool | Sequence[str],
) -> tuple[int, bool]:
    """Run a script as ``np`` forked ranks. Wait until every process of the job has ended.

    Args:
        np: number of ranks.
        argv: the script and its arguments.
        env: the whole environment of the job.
        cwd: working directory of the job; None: that of this process.
        files: descriptors for stdout and stderr of the job.
        timeout: in seconds; then the job is killed.
        modules: to import in the server; True: those of the ``Warm``.

    Returns:
        The status as of ``subprocess.Popen``, and whether the deadline has passed.

    Raises:
        RuntimeError: no server starts, it may not fork, or the job's first process was killed.
    """
    folder = _folder()
    if isinstance(modules, (bool, str)):
        names = [modules] if isinstance(modules, str) else _own_modules(folder)
    else:
        names = list(modules)
    request = {
        "np": np,
        "argv": list(argv),
        "env": dict(env),
        "cwd": os.path.abspath(os.fspath(cwd)) if cwd is not None else os.getcwd(),
        "umask": _umask(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": _limits(),
    }
    end = time.monotonic() + timeout
    sock = _begin(folder, names, request, files)
    with sock:
        try:
            sock.settimeout(max(0.001, end - time.monotonic()))
            return _status(warm_wire.receive_answer(sock)), False
        except TimeoutError:
            with contextlib.suppress(OSError):
                sock.sendall(b"\n")
            sock.settimeout(_KILL_SECONDS)
            return _killed(sock)
        except (EOFError, ConnectionError):
            raise RuntimeError("the first process of the warm job was killed") from None


def _killed(sock: socket.socket) -> tuple[int, bool]:
    try:
        return _status(warm_wire.receive_answer(sock)), True
    except (EOFError, OSError) as error:
        raise RuntimeError(f"the warm job does not end after its deadline: {error!r}") from None


def _status(answer: Mapping[str, Any]) -> int:
    if "error" in answer:
        raise RuntimeError(f"the warm server cannot start a job: {answer['error']}")
    return int(answer["status"])


def _begin(
    folder: str, modules: list[str], request: Mapping[str, Any], files: tuple[int, int]
) -> socket.socket:
    """Return the connection of a job that has begun. A server that died is replaced once."""
    for attempt in range(2):
        sock = _connected(folder, modules)
        try:
            sock.settimeout(_KILL_SECONDS)
            warm_wire.send_request(sock, request, list(files))
        except _GONE:  # it may have answered before it closed
            pass
        except BaseException:
            sock.close()
            raise
        try:
            answer = warm_wire.receive_answer(sock)
            if not answer.get("begun"):
                _status(answer)
            return sock
        except (*_GONE, TimeoutError) as error:
            sock.close()
            if attempt:
                raise RuntimeError(f"the warm server died twice: {error!r}") from None
        except BaseException:
            sock.close()
            raise
    raise AssertionError


def _connected(folder: str, modules: list[str]) -> socket.socket:
    """Return a connection with the server for some modules, which is started if it does not run."""
    digest = hashlib.sha256("\0".join(modules).encode()).hexdigest()[:16]
    address = os.path.join(folder, f"{digest}.sock")
    with contextlib.suppress(*_GONE):
        return _connect(address)
    with open(os.path.join(folder, "lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(*_GONE):  # another process has started it meanwhile
            return _connect(address)
        return _start(folder, address, modules)


def _connect(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(_KILL_SECONDS)
        sock.connect(address)
        if not warm_wire.is_same_user(sock):
            raise RuntimeError(f"{address} is a socket of another user")
    except BaseException:
        sock.close()
        raise
    return sock


def _start(folder: str, address: str, modules: list[str]) -> socket.socket:
    """Start a server, wait until it serves, and return a connection."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(address)
    env = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}
    owner = Path(folder, "owner").read_text()
    with tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", "paddlempi.cli.warm_server"]
        process = subprocess.Popen(
            [*command, folder, address, owner, *modules],
            env={**env, **_ADDED},
            cwd=folder,  # `python -m` looks for modules there
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
        _started.append(process)
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(*_GONE):
                return _connect(address)
            time.sleep(0.02)
        process.kill()
        process.wait()
        log.seek(0)
        text = log.read()[-4000:].decode(errors="replace")
    raise RuntimeError(f"the warm server did not start; it imports {', '.join(modules)}:\n{text}")


def _own_modules(folder: str) -> list[str]:
    return [str(name) for name in json.loads(Path(folder, "modules").read_text())]


def _umask() -> int:
    """Return the umask of this process, without setting it for a moment."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))


def _limits() -> list[tuple[int, tuple[int, int]]]:
    numbers = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    return [(number, resource.getrlimit(number)) for number in sorted(numbers)]
