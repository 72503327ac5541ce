"""Functions for ranks: those of the programs that :mod:`job` runs, and those of ``pytest --mpi``.

Only a program of :mod:`job` may call ``start``, ``stamp`` and ``done``.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paddlempi as dist
import pytest
from paddlempi import errors as errors
from paddlempi_bootstrap import mpi_launcher

# A busy machine may give a process no core for seconds.
LATE = 7.0


def late() -> None:
    """Sleep for up to TEST_DELAYS seconds, where tests wait for each other (tools/flakes.py).

    So ranks come to each of these points in another order in every run.
    """
    time.sleep(random.uniform(0, float(os.environ.get("TEST_DELAYS", 0))))


def start(timeout: float = 30.0, **arguments: Any) -> int:
    """Initialise a world of all ranks of the job; return this rank."""
    late()
    dist.init_process_group("mpi", timeout=timeout, **arguments)
    size = dist.get_world_size()
    assert size == int(os.environ["FAULTS_NP"]), size
    return dist.get_rank()


def stop_later(pid: int, after: float, seconds: float, strike: int = 0) -> int:
    """Stop a process after a while, for some seconds. Return the pid of the child that does it.

    Args:
        strike: a process that gets Ctrl-C after a third of these seconds; 0: none.
    """
    child = os.fork()
    if child:
        return child
    time.sleep(after)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds / 3)
    if strike:
        os.kill(strike, signal.SIGINT)
    time.sleep(seconds * 2 / 3)
    os.kill(pid, signal.SIGCONT)
    os._exit(0)


@contextmanager
def little_memory(more: int) -> Iterator[None]:
    """Let this process map ``more`` bytes at the most, beyond what it has (``ulimit -v``)."""
    old = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + more, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)


@contextmanager
def raises(
    kind: type[BaseException],
    *words: str,
    ranks: Sequence[int] | None = None,
    among: Sequence[int] | None = None,
    least: float = 0.0,
    most: float | None = None,
) -> Iterator[None]:
    """Check that the block raises an error.

    Args:
        kind: exactly the error's class.
        words: parts of the error's text.
        ranks: the error's ``ranks``.
        among: ranks of which the error names one at least, and no other.
        least: seconds that the block takes at the least.
        most: seconds that the block takes at the most, on a machine that is idle. ``LATE`` more
            are allowed.
    """
    late()
    began = time.monotonic()
    try:
        yield
    except BaseException as error:
        took = time.monotonic() - began
        if type(error) is not kind:
            raise AssertionError(f"expected {kind.__name__}, got {error!r}") from error
        for word in words:
            assert word in str(error), f"{word!r} is not in: {error}"
        if ranks is not None:
            assert error.ranks == tuple(ranks), f"{error.ranks} for {tuple(ranks)}: {error}"
        if among is not None:
            assert error.ranks and {*error.ranks} <= {*among}, f"{error.ranks}: {error}"
        assert took >= least, f"{error!r} after {took} s"
        assert most is None or took <= most + LATE, f"{error!r} took {took} s"
        return
    raise AssertionError(f"no {kind.__name__} was raised")


def works(group: Any = None) -> None:
    """Check that the group carries an all_reduce."""
    import numpy as np

    late()
    x = np.full(3, dist.get_rank(group) + 1.0)
    dist.all_reduce(x, group=group)
    size = dist.get_world_size(group)
    assert (x == size * (size + 1) / 2).all(), x


def impatient_group(seconds: float, ranks: Sequence[int] | None = None) -> Any:
    """Make a group whose operations have a short deadline. ``new_group`` itself has the world's.

    With ``new_group(timeout=0.3)`` the ranks of a busy machine may not even meet in time.
    """
    late()
    group = dist.new_group(ranks)
    set_timeout(group, seconds)
    return group


def set_timeout(group: Any, seconds: float) -> None:
    """Give the operations of a group that begin from now on another deadline."""
    dist._native.control("set_timeout", group=group._id, timeout=seconds)


def carried_by_mpi() -> bool:
    """Whether the newest world of this process is carried by an MPI."""
    return bool(mpi_launcher.find(hidden=True))


def needs_mpi() -> None:
    """Skip the test if no MPI carries this world."""
    if not carried_by_mpi():
        pytest.skip("no MPI carries this world")


def over_nodes() -> bool:
    """Whether the job has several nodes."""
    return dist.get_local_size() < dist.get_world_size()


def skip_over_nodes(why: str) -> None:
    """Skip a test in a job of several nodes."""
    import pytest

    if over_nodes():
        pytest.skip(why)


def repeat_over_nodes(call: Callable[[], object]) -> None:
    """Call a collective that another rank has given up. It raises, over nodes at the second call.

    There the input of the rank that gave up may have come with its announcement. Then the first
    call has the right result.
    """
    call()
    if over_nodes():
        call()


def refuse_system_calls(numbers: Sequence[int]) -> None:
    """Install a seccomp filter: these system calls fail with EPERM, here and in all children."""
    refuse = 0x00050001
    _filter_system_calls(numbers, refuse, 0)


def hold_system_call(number: int) -> Callable[[], None]:
    """Install a seccomp filter: the system call waits until what is returned is called.

    From then on it fails with ENOSYS.
    """
    notify, all_threads, new_listener, no_thread_is_named = 0x7FC00000, 1, 8, 16
    flags = all_threads | new_listener | no_thread_is_named
    listener = _filter_system_calls([number], notify, flags)
    return lambda: os.close(listener)


def _filter_system_calls(numbers: Sequence[int], action: int, flags: int) -> int:
    """Let these system calls end in an action; return what seccomp(2) does."""
    import ctypes
    import struct

    from system_calls import number

    load, equal, give, allow = 0x20, 0x15, 0x06, 0x7FFF0000
    program = [(load, 0, 0, 0)]
    program += [(equal, len(numbers) - i, 0, call) for i, call in enumerate(numbers)]
    program += [(give, 0, 0, allow), (give, 0, 0, action)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    described = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    set_no_new_privileges, set_filter = 38, 1
    if libc.prctl(set_no_new_privileges, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    result = libc.syscall(int(number("seccomp")), set_filter, flags, described)
    if result < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return int(result)


def stamp(name: str) -> None:
    """Write the time to a file, for the test that started the job.

    It is not printed, because Open MPI drops what a rank printed last if it then kills the job.
    """
    late()
    with open(os.environ["FAULTS_STAMPS"], "a") as file:
        file.write(f"{name} {time.time()}\n")


def stamps() -> set[str]:
    """Return the names that ranks of this job have given to ``stamp``."""
    with open(os.environ["FAULTS_STAMPS"]) as file:
        return {line.split()[0] for line in file}


def stamped(name: str) -> bool:
    """Whether a rank of this job has called ``stamp(name)``."""
    return name in stamps()


def wait_until(holds: Callable[[], bool], most: float = 30.0) -> None:
    """Wait until something holds, for ``most`` seconds."""
    ended = time.monotonic() + most
    while not holds():
        assert time.monotonic() < ended, f"not after {most} s"
        time.sleep(0.01)


def end_first(me: bool) -> None:
    """End this process with status 0, if ``me``; else wait until the one has ended that does."""
    if me:
        stamp(f"ends-{os.getpid()}")
        sys.exit()
    wait_until(lambda: any(name.startswith("ends-") for name in stamps()))
    pid = next(name for name in stamps() if name.startswith("ends-")).partition("-")[2]
    wait_until(lambda: not _lives(pid))


def _lives(pid: str) -> bool:
    """Whether there is such a process. Intel MPI's launcher keeps those that have ended."""
    try:
        return ") Z " not in Path("/proc", pid, "stat").read_text()
    except OSError:
        return False


def leave_together(rank: int) -> None:
    """End this process, after both survivors of a death have come here.

    MPI cannot be finalized with a dead rank. A launcher ends the job when a rank ends without that.
    """
    stamp(f"raised-{rank}")
    ended = time.monotonic() + 10
    while time.monotonic() < ended:
        with open(os.environ["FAULTS_STAMPS"]) as file:
            if len({line.split()[0] for line in file if line.startswith("raised-")}) == 2:
                break
        time.sleep(0.01)
    os._exit(0)


def dump(folder: str, pids: Sequence[int]) -> subprocess.CompletedProcess[str]:
    """Run ``python -m paddlempi trace dump`` on processes of this host."""
    command = [sys.executable, "-m", "paddlempi", "trace", "dump", "-o", folder, *map(str, pids)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def dump_until(folder: str, pids: Sequence[int], holds: Callable[[Any], bool]) -> None:
    """Dump the traces of processes again and again, until something holds of the Judgement."""
    from paddlempi.cli.trace import judge
    from paddlempi.trace import rings

    ended = time.monotonic() + 30
    while time.monotonic() < ended:
        dumped = dump(folder, pids)
        assert dumped.returncode == 0, dumped.stderr
        found = judge.judge(rings.read_folder(Path(folder)))
        if found.findings and holds(found):
            return
    raise AssertionError(f"the traces do not say it: {found}")


def done() -> None:
    """Tell the test that this rank came to the end of its program."""
    sys.stdout.write("done\n")
    sys.stdout.flush()
