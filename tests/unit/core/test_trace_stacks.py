"""The Python stacks of another process, read without its help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from paddlempi.cli.trace import stacks

SCRIPT = """
import os, sys, threading, time

def wait(deeper):
    if deeper:
        return wait(deeper - 1)
    print("here", flush=True)
    if sys.argv[1] == "computes":
        x = 0
        while True:
            x += 1  # line 11
    values = [
        1,
        time.sleep(100),  # line 14
    ]

def gr\u00f6\u00dfe():
    wait(int(sys.argv[2]))

threading.Thread(target=time.sleep, args=[100], daemon=True).start()
gr\u00f6\u00dfe()
"""


@contextmanager
def process(folder: Path, what: str, deep: int = 2) -> Iterator[tuple[int, str]]:
    """A process that has come to the place, and its script."""
    script = folder / "r\u00e4nk.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, str(script), what, str(deep)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "here\n"
            yield child.pid, str(script)
        finally:
            child.kill()


def read(pid: int) -> stacks.Stacks:
    found = stacks.of([pid])[pid]
    assert not isinstance(found, str), found
    return found


@pytest.mark.parametrize("what", ["waits", "is stopped", "computes"])
def test_the_stack_of_each_thread(tmp_path: Path, what: str) -> None:
    with process(tmp_path, what) as (pid, script):
        lines = (10, 11) if what == "computes" else (14,)
        inner = [f"{script}:{line} in wait" for line in lines]
        deadline = time.monotonic() + 30
        while (found := read(pid))[0][0] not in inner and time.monotonic() < deadline:
            time.sleep(0.05)  # it may not have come there
        if what == "is stopped":
            os.kill(pid, signal.SIGSTOP)
            found = read(pid)
    main, other = found
    assert main[0] in inner
    assert main[1:] == [
        *[f"{script}:6 in wait"] * 2,
        f"{script}:18 in gr\u00f6\u00dfe",
        f"{script}:21 in <module>",
    ]
    assert "threading.py:" in other[0]
    assert other[0].split(" in ")[1] in ("run", "Thread.run")


def test_a_deep_stack_ends(tmp_path: Path) -> None:
    with process(tmp_path, "waits", 300) as (pid, script):
        main = read(pid)[0]
    assert main[-1] == f"{script}:6 in wait"
    assert len(main) == 64


def test_no_python() -> None:
    with subprocess.Popen(["sleep", "100"]) as child:
        try:
            assert "and no python of its own" in stacks.of([child.pid])[child.pid]
        finally:
            child.kill()


def test_several_processes_of_which_one_has_ended(tmp_path: Path) -> None:
    with process(tmp_path, "waits") as (ended, _):
        pass
    with process(tmp_path, "waits") as (pid, script):
        found = stacks.of([ended, pid, os.getpid()])
    assert "No such file" in found[ended]
    assert script in found[pid][0][0]
    assert "test_trace_stacks.py" in str(found[os.getpid()])
