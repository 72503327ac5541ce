"""The warm server: it has imported what ranks need, and forks a *starter* for every job.

The starter is the first process of the job, and the one to which all its orphans go. It forks the
*runner*, which does what ``python -m paddlempi run -np`` does, with ranks that it forks. When the
runner has ended, or the client goes or says so, the starter kills what is left of the job.

The server imports, accepts and forks, and does nothing else: a process that forks must have one
thread, and nothing of this package's core or of a framework's pools, which a fork would break.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from paddlempi._processes import GRACE
from paddlempi.cli import local_ranks
from paddlempi.testing import warm_rank, warm_wire

_CORE = "paddlempi._core"
_DYING = 10.0
"""Seconds that killed processes may take to end."""


class Server:
    """The server's process.

    Args:
        folder: private to this user. The server removes it if its owner has ended.
        address: the path of the socket in it.
        owner: a pid. The server ends when this process has ended.
    """

    def __init__(self, folder: str, address: str, owner: int) -> None:
        self._folder = folder
        self._owner = os.pidfd_open(owner)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._woken, self._wakes = os.pipe()
        self._starters: set[int] = set()

    def serve(self) -> socket.socket:
        """Serve until the owner ends. Returns in each starter, with the connection of its client.

        The starter owns the connection, and has nothing else of the server.
        """
        _adopt_orphans()
        os.set_blocking(self._wakes, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        selector = selectors.DefaultSelector()
        for file in (self._owner, self._woken, self._listener):
            selector.register(file, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == self._owner:
                    shutil.rmtree(self._folder, ignore_errors=True)
                    os._exit(0)
                if key.fileobj == self._woken:
                    os.read(self._woken, 4096)
                    self._reap()
                    continue
                try:
                    connection = self._listener.accept()[0]
                except OSError:  # the client has gone, or no descriptor is left
                    time.sleep(0.01)
                    continue
                if self._fork(connection):
                    selector.close()
                    self._leave()
                    return connection
                connection.close()

    def _fork(self, connection: socket.socket) -> bool:
        """Fork a starter; return whether this is the starter."""
        found = _hindrance()
        if found or not warm_wire.is_same_user(connection):
            warm_wire.answer(connection, {"error": found or "another user asks"})
            return False
        try:
            pid = os.fork()
        except OSError as error:
            warm_wire.answer(connection, {"error": f"fork: {error}"})
            return False
        if pid:
            self._starters.add(pid)
        return pid == 0

    def _leave(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._listener.close()
        for descriptor in (self._owner, self._woken, self._wakes):
            os.close(descriptor)

    def _reap(self) -> None:
        """Collect what has ended. If a starter was killed, kill what it has left of its job."""
        failed = False
        for pid, status in _ended():
            self._starters.discard(pid)
            failed |= status != 0
        if failed:
            kept = self._starters.union(*map(_descendants, self._starters))
            for pid in _descendants(os.getpid()) - kept:
                _kill(pid)


def _hindrance() -> str:
    """Return why this process must not fork; "": it may."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"it has {threads} threads, of which a fork would keep one"
    if _CORE in sys.modules:
        return f"{_CORE} is loaded, which does not work in a forked process"
    return ""


def _ended() -> list[tuple[int, int]]:
    """Collect the children that have ended; return their pids and statuses."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not pid:
            return found
        found.append((pid, os.waitstatus_to_exitcode(status)))


def _has_children() -> bool:
    """Whether this process has any. A process that adopts orphans has no other descendants."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _adopt_orphans() -> None:
    """Become the parent of descendants whose parents end (``prctl(2)``)."""
    set_subreaper = 36  # PR_SET_CHILD_SUBREAPER
    if ctypes.CDLL(None, use_errno=True).prctl(set_subreaper, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _descendants(above: int) -> set[int]:
    """Return the pids of all processes below one, also of those that wait to be collected."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(name)
            with open(f"/proc/{pid}/stat", "rb") as stat:
                # pid (name) state parent ...: the name may hold spaces and parentheses.
                words = stat.read().rpartition(b")")[2].split()
            children.setdefault(int(words[1]), []).append(pid)
    found: set[int] = set()
    ahead = [above]
    while ahead:
        below = children.pop(ahead.pop(), [])
        found.update(below)
        ahead += below
    return found


def start_job(connection: socket.socket) -> dict[str, Any]:
    """Be the starter of a job. Returns in the runner, with the request."""
    try:
        os.setsid()
        _adopt_orphans()
        request, files = warm_wire.receive_request(connection)
        for file, place in zip(files, (1, 2), strict=True):
            os.dup2(file, place)
            os.close(file)
        os.chdir(request["cwd"])
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        end = local_ranks.end_with(os.getpid())
        warm_wire.answer(connection, {"begun": True})
        runner = os.fork()
        if runner:
            _guard(connection, runner, woken)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.close()
        os.close(woken)
        os.close(wakes)
        end()
        os.setsid()
    except EOFError:  # the client has gone before it asked for anything
        os._exit(0)
    except BaseException as error:
        warm_wire.answer(connection, {"error": f"{type(error).__name__}: {error}"})
        os._exit(0)
    return request


def _guard(connection: socket.socket, runner: int, woken: int) -> None:
    """Wait for the runner, or until the client says or goes. Then end this process."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        status, stop, until = None, False, float("inf")
        while not stop and time.monotonic() < until:
            for key, _ in selector.select(None if status is None else 0.02):
                if key.fileobj is connection:
                    stop = True
                else:
                    os.read(woken, 4096)
            for pid, code in _ended():
                if pid == runner:
                    status, until = code, time.monotonic() + GRACE
            if not _has_children():
                break
    until = time.monotonic() + _DYING
    while _has_children() and time.monotonic() < until:
        for pid in _descendants(os.getpid()):
            _kill(pid)
        time.sleep(0.003)
        _ended()
    warm_wire.answer(connection, {"status": -9 if status is None else status})
    os._exit(0)


def _run_ranks(request: dict[str, Any]) -> dict[str, str]:
    """Be the runner of a job. Returns in each rank, with its variables."""
    try:
        os.umask(request["umask"])
        os.sched_setaffinity(0, request["cpus"])
        for number, values in request["limits"]:
            resource.setrlimit(number, values)
        os.environ.clear()
        os.environ.update(request["env"])
        status = local_ranks.run_started(request["np"], local_ranks.fork)
    except local_ranks.Forked as forked:
        return forked.rank.variables
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        status = 1
    os._exit(status)


def _keep() -> None:
    """Take what is imported out of the collector's hands, which in a rank copies what it touches.

    Not from the import of Triton on: at the end of a process nanobind lists on stderr what the
    collector was kept from.
    """
    gc.collect()
    if not any(name.partition(".")[0] in ("triton", "nanobind") for name in sys.modules):
        gc.freeze()


def main(arguments: list[str]) -> Callable[[], None]:
    """Import and serve. Returns in each rank, with what it has to do last."""
    fresh = warm_rank.Fresh()
    folder, address, owner, *modules = arguments
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)  # nohup and shells ignore some of them
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for module in modules:
        importlib.import_module(module)
        _keep()
    request = start_job(Server(folder, address, int(owner)).serve())
    variables = _run_ranks(request)
    return functools.partial(warm_rank.run, fresh, request["argv"], variables)


if __name__ == "__main__":
    _rank = main(sys.argv[1:])
    _rank()
