"""The faults of the matrix: what the victim, the last rank, does, and what the others do meanwhile.

A function for each fault is called on all ranks, with an operation of a class. What it raises is
the outcome on that rank.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import paddlempi as dist
from operations import Operation, check

LATE = 3.0
WAITING = 0.5
"""Seconds after which the other ranks are in their wait."""

LOOP = 60.0
"""Seconds after which a series of operations has not been struck, which is a defect of the test."""


class Stage:
    """Where the ranks of a job write what they see."""

    def __init__(self, place: Path, mpi: str) -> None:
        self.place, self.mpi, self.number = place, mpi, 0

    def struck(self) -> None:
        """Note the time of the fault."""
        self.path().write_text(str(time.time()))

    def path(self) -> Path:
        return self.place / f"struck-{self.number}"

    def seen(self, name: str, ranks: int) -> bool:
        """Wait until some ranks have left a note; leave this rank's, too."""
        (self.place / f"{name}-{self.number}-{dist.get_rank()}").touch()
        ended = time.monotonic() + 20
        while time.monotonic() < ended:
            if len(list(self.place.glob(f"{name}-{self.number}-*"))) >= ranks:
                return True
            time.sleep(0.02)
        return False


def die(fault: str, stage: Stage) -> None:
    """End this process, or its job, here and now."""
    stage.struck()
    if fault == "kill -9":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "os._exit(0)":
        os._exit(0)
    if fault == "exception":
        raise ValueError("the fault of the victim")
    if fault == "exit in a thread":  # of C, which ends the process while Python waits
        threading.Thread(target=lambda: ctypes.CDLL(None).exit(3)).start()
    if fault == "sys.exit in a thread":
        threading.Thread(target=sys.exit, args=(3,)).start()
    if fault == "mpi4py finalizes MPI":
        from mpi4py import MPI

        MPI.Finalize()
    if fault == "a host dies":
        time.sleep(LOOP)  # the test kills it


def strike_later(command: str, stage: Stage, delay: float) -> subprocess.Popen[bytes]:
    """Let a process note the time and run a shell's command on this process after some seconds."""
    script = f"sleep {delay}; date +%s.%N > {stage.path()}; {command}"
    return subprocess.Popen(["sh", "-c", script], start_new_session=True)


def a_moment(least: float = 0.15, most: float = 0.35) -> float:
    return least + (most - least) * int.from_bytes(os.urandom(2), "big") / 65535


def series(operation: Operation, is_over: Callable[[], bool]) -> None:
    """Repeat a round until the victim says that it is over."""
    ended = time.monotonic() + LOOP
    done = False
    while not done:
        done = operation.round(operation.rank == operation.victim and is_over())
        check(time.monotonic() < ended, "the series was not struck")


# Faults after which all ranks go on in the same world.


def late(operation: Operation, stage: Stage) -> None:
    if operation.rank == operation.victim:
        stage.struck()
        time.sleep(LATE)
    operation.round()


def stopped(operation: Operation, stage: Stage, seconds: float = LATE) -> None:
    """The victim is stopped at some moment of a series, and goes on after some seconds."""
    striker = None
    if operation.rank == operation.victim:
        pid = os.getpid()
        command = f"kill -STOP {pid}; sleep {seconds}; kill -CONT {pid}"
        striker = strike_later(command, stage, a_moment())
    series(operation, lambda: striker is not None and striker.poll() is not None)


def differing(how: str) -> Callable[[Operation, Stage], None]:
    """The victim calls something else."""

    def fault(operation: Operation, stage: Stage) -> None:
        others, victim = operation.differing(how)
        if operation.rank == operation.victim:
            stage.struck()
            victim()
        else:
            others()

    return fault


def another_group(operation: Operation, stage: Stage) -> None:
    """The victim calls the same on another group, until the deadline of both."""
    if type(operation).differing is not Operation.differing:
        with suppress(KeyError):
            differing("group")(operation, stage)
            return
    other = type(operation)(operation.limit)
    stage.struck()
    try:
        (other if operation.rank == operation.victim else operation).round()
    finally:
        dist.monitored_barrier(timeout=20.0)
        other.end()


def handler(operation: Operation, stage: Stage) -> None:
    """A handler calls a collective of the group, while its thread waits in one."""
    seen: list[BaseException | None] = []

    def handle(*_: object) -> None:
        try:
            dist.all_reduce(np.ones(3), group=operation.group)
            seen.append(None)
        except BaseException as error:
            seen.append(error)

    if operation.rank != operation.victim:
        time.sleep(2 * WAITING)
        operation.round()
        return
    before = signal.signal(signal.SIGUSR1, handle)
    stage.struck()
    threading.Timer(WAITING, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    try:
        operation.round()
    finally:
        signal.signal(signal.SIGUSR1, before)
    check(len(seen) == 1, seen)
    if seen[0] is not None:
        raise seen[0]


def forked(operation: Operation, stage: Stage) -> None:
    """The victim forks in the middle of an operation. The child's call raises ForkError."""

    def fork() -> None:
        stage.struck()
        child = os.fork()
        if child == 0:
            status = 9
            with suppress(BaseException):
                try:
                    dist.all_reduce(np.ones(3))
                except dist.errors.ForkError:
                    status = 0
            os._exit(status)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        check(code == 0, f"the child ended with {code}")

    if operation.rank == operation.victim:
        operation.middle = fork
    operation.round()


def in_a_thread(operation: Operation, stage: Stage) -> None:
    if operation.rank == operation.victim:
        threading.Timer(WAITING, die, ("sys.exit in a thread", stage)).start()
    else:
        time.sleep(2 * WAITING)
    operation.round()


def interrupted(operation: Operation, stage: Stage) -> None:
    """Ctrl-C reaches the victim while it waits for the others, which come later."""
    if operation.rank == operation.victim:

        def strike() -> None:
            stage.struck()
            os.kill(os.getpid(), signal.SIGINT)

        threading.Timer(WAITING, strike).start()
    else:
        time.sleep(4 * WAITING)
    operation.round()


@contextmanager
def limited(kind: int, now: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (now, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def no_memory(operation: Operation, stage: Stage) -> None:
    """The victim may map 8 MiB more."""
    if operation.rank == operation.victim:
        stage.struck()
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        with limited(resource.RLIMIT_AS, pages * resource.getpagesize() + (8 << 20)):
            operation.round()
    else:
        operation.round()


def no_descriptors(operation: Operation, stage: Stage) -> None:
    """The victim can open no file."""
    if operation.rank == operation.victim:
        stage.struck()
        free = os.dup(0)
        os.close(free)
        with limited(resource.RLIMIT_NOFILE, free):
            operation.round()
    else:
        operation.round()


SLOTS, SLOT, BLOCK = 32, 64, 34 * 64
"""Slots of a member, and bytes of a slot and of a member's block (gocore/arrive/slots.h)."""


def rubbish(operation: Operation, stage: Stage) -> None:
    """The victim's slots hold rubbish with the number of the next operation, and it never comes."""
    before = lines_of_groups()
    old, operation.group = operation.group, operation.new_group()
    if operation.rank == operation.victim:
        (begin,) = lines_of_groups() - before
        for slot in range(SLOTS):
            number = slot or SLOTS
            content = number.to_bytes(8, "little") + b"\xa5" * (SLOT - 8)
            ctypes.memmove(begin + operation.victim * BLOCK + slot * SLOT, content, SLOT)
        stage.struck()
    dist.barrier()
    try:
        if operation.rank != operation.victim:
            operation.round()
    finally:
        dist.monitored_barrier(timeout=20.0)
        dist.destroy_process_group(operation.group)
        operation.group = old


def lines_of_groups() -> set[int]:
    """Return the addresses of the memory with the announcements of groups."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {int(line.partition("-")[0], 16) for line in maps if "memfd:paddlempi-arrive" in line}


USABLE: dict[str, Callable[[Operation, Stage], None]] = {
    "late by 3 s": late,
    "late, deadline 1 s": late,
    "SIGSTOP and CONT": stopped,
    "SIGSTOP and CONT, deadline 1 s": stopped,
    "wrong shape": differing("shape"),
    "wrong dtype": differing("dtype"),
    "wrong op": differing("op"),
    "wrong root": differing("root"),
    "wrong order": differing("order"),
    "wrong argument": differing("argument"),
    "wrong group": another_group,
    "a handler's collective": handler,
    "fork in the middle": forked,
    "sys.exit in a thread": in_a_thread,
    "Ctrl-C to one": interrupted,
    "no memory": no_memory,
    "no descriptors": no_descriptors,
    "a corrupted slot": rubbish,
}


# Faults that end a rank or the job.


def ends(fault: str) -> Callable[[Operation, Stage, bool], None]:
    """The victim ends: before it comes, or in the middle of an operation in a series."""

    def run(operation: Operation, stage: Stage, comes: bool) -> None:
        if operation.rank != operation.victim:
            series(operation, bool)
            return
        if comes:
            for _ in range(3):
                operation.round()
            operation.middle = lambda: die(fault, stage)
        else:
            time.sleep(WAITING)
            die(fault, stage)
        series(operation, bool)

    return run


def killed(operation: Operation, stage: Stage, comes: bool) -> None:
    """The victim is killed from outside at some moment of a series, or before it comes."""
    if operation.rank != operation.victim:
        series(operation, bool)
    elif comes:
        operation.round()
        strike_later(f"kill -9 {os.getpid()}", stage, a_moment())
        series(operation, bool)
    else:
        time.sleep(WAITING)
        die("kill -9", stage)


def waits_to_be_struck(operation: Operation, stage: Stage, comes: bool) -> None:
    """Something outside strikes: a Ctrl-C to all, a cable, a host."""
    operation.round()
    (stage.place / f"ready-{dist.get_rank()}").write_text(str(os.getpid()))
    is_healed = stage.place / "healed"
    series(operation, is_healed.exists)


ENDING: dict[str, Callable[[Operation, Stage, bool], None]] = {
    "kill -9": killed,
    "os._exit(0)": ends("os._exit(0)"),
    "exception": ends("exception"),
    "exit in a thread": ends("exit in a thread"),
    "mpi4py finalizes MPI": ends("mpi4py finalizes MPI"),
    "Ctrl-C to all": waits_to_be_struck,
    "a cut cable": waits_to_be_struck,
    "a cut and healed cable": waits_to_be_struck,
    "a host dies": waits_to_be_struck,
}
