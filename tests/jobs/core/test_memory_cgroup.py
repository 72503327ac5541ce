"""A process in a memory cgroup: tensors beyond its limit lie in ordinary memory, with a warning."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMIT = 256 << 20

PROGRAM = """
import json
import os
import sys
import warnings

import paddlempi as dist

MIB = 1 << 20


def heap():
    return json.loads(dist._native.core().control("info", "{}"))["heap"]


warnings.simplefilter("error")
first = dist.zeros(40 * MIB, "uint8")
assert heap()["reserved"] == 64 * MIB

# The kernel's copies of files fill the cgroup. It gives them up for memory.
with open(sys.argv[1], "wb", 0) as file:
    for _ in range(240):
        file.write(bytes(MIB))
    os.fsync(file.fileno())
left = heap()["left"]
assert 66 * MIB < left < 192 * MIB, left
second = dist.zeros(60 * MIB, "uint8")
assert heap()["reserved"] == 128 * MIB

limit = f"{sys.argv[2]} has left"
try:
    dist._native.core().heap_alloc(300 * MIB)
except dist.errors.OutOfMemoryError as error:
    assert str(error).startswith(f"{300 * MIB} more bytes of shared memory") and limit in str(error)
else:
    raise AssertionError("300 MiB")
left = heap()["left"]
assert 40 * MIB < left < 128 * MIB, left
kept = bytearray(left - 50 * MIB)  # less is left than a segment of the heap takes
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    third = dist.zeros(30 * MIB, "uint8")
assert len(seen) == 1 and seen[0].category is RuntimeWarning and limit in str(seen[0].message), seen
assert heap()["reserved"] == 128 * MIB
for value, tensor in enumerate((first, second, third)):
    tensor[:] = value
    assert tensor[::4096].max() == value
print("done")
"""

TOGETHER = """
import os

import paddlempi as dist

ready, begin, end = os.pipe(), os.pipe(), os.pipe()


def child(told):
    core = dist._native.load()
    os.close(begin[1])
    os.close(end[1])
    os.write(ready[1], b"1")
    os.read(begin[0], 1)  # ends when the parent closes it, for all at once
    try:
        core.heap_alloc(60 << 20)
        os.write(told, b"+")
    except dist.errors.OutOfMemoryError:
        os.write(told, b"-")
    os.read(end[0], 1)  # keeps the memory


pids, answers = [], []
for _ in range(6):
    answer, told = os.pipe()
    pids.append(os.fork())
    if pids[-1] == 0:
        try:
            child(told)
        finally:
            os._exit(0)
    os.close(told)
    answers.append(answer)
os.close(ready[1])
for _ in pids:
    os.read(ready[0], 1)
os.close(begin[1])
print(*(os.read(answer, 1).decode() or "killed" for answer in answers))
os.close(end[1])
for pid in pids:
    os.waitpid(pid, 0)
"""


def folders() -> Iterator[Path]:
    """The memory cgroup of this process in version 2 and in version 1."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            yield Path("/sys/fs/cgroup" + path)
        elif "memory" in controllers.split(","):
            yield Path("/sys/fs/cgroup/memory" + path)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup below that of this process, with a limit."""
    for above in folders():
        name = "memory.max" if (above / "cgroup.controllers").exists() else "memory.limit_in_bytes"
        own = above / "paddlempi-test"
        try:
            own.mkdir(exist_ok=True)
        except OSError:
            continue
        try:
            (own / name).write_text(str(LIMIT))
        except OSError:
            own.rmdir()
            continue
        yield own
        for _ in range(100):  # the kernel may count a process that has ended for a moment
            try:
                own.rmdir()
                return
            except OSError:
                time.sleep(0.05)
        own.rmdir()
    pytest.skip("this machine lets this user make no memory cgroup")


def run(cgroup: Path, program: str, *arguments: str) -> str:
    """Run a program in the cgroup, and return what it printed."""
    move = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    ended = subprocess.run(
        ["sh", "-c", move, str(cgroup), sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.returncode}\n{ended.stderr}"  # -9: killed for memory
    return ended.stdout


def test_a_limit_is_looked_at_first(cgroup: Path, tmp_path: Path) -> None:
    assert run(cgroup, PROGRAM, str(tmp_path / "file"), cgroup.name) == "done\n"


def test_processes_do_not_take_the_same_bytes(cgroup: Path) -> None:
    assert set(run(cgroup, TOGETHER).split()) == {"+", "-"}
