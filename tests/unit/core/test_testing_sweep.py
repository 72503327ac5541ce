"""The sweep removes what MPIs leave in shared memory when ranks are killed, and nothing else."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from paddlempi import _processes
from paddlempi.testing import launch


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in shared memory, where another file system may not tell who uses a file."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def segment(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(b"x" * mmap.PAGESIZE)
    return path


def test_sweep(folder: Path) -> None:
    old, foreign = segment(folder, "mpich_shm_old_0"), segment(folder, "other")
    os.utime(old, (0, 0))
    mapped, opened = segment(folder, "sm_segment.a.0"), segment(folder, "sm_segment.a.1")
    segment(folder, "mpich_shm_1_0")
    target = segment(folder, "target")
    link = folder / "Intel_MPI_1"
    link.symlink_to(target)
    with mapped.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    with memory, opened.open("r+b"):
        launch.sweep(time.time(), folder)
        assert {*folder.iterdir()} == {old, foreign, mapped, opened, target, link}
    launch.sweep(time.time(), folder)
    assert {*folder.iterdir()} == {old, foreign, target, link}


USES = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
print("mapped", flush=True)
time.sleep(60)
"""


def test_a_segment_of_a_process_that_cannot_be_seen_stays(folder: Path) -> None:
    """A container may have a /proc of its own and share /dev/shm."""
    hide = ["unshare", "-U", "-r", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    if subprocess.run([*hide, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no user and mount namespaces")
    used = segment(folder, "mpich_shm_1_0")
    program = [sys.executable, "-S", "-c", USES, str(used)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None and user.stdout.readline() == "mapped\n"
        script = "import sys, test_testing_sweep; test_testing_sweep.sweeps(sys.argv[1])"
        sweeper = [*hide, sys.executable, "-c", script, str(folder)]
        subprocess.run(sweeper, cwd=Path(__file__).parent, check=True, timeout=60)
        assert used.exists()
        user.kill()
    subprocess.run(sweeper, cwd=Path(__file__).parent, check=True, timeout=60)
    assert not used.exists()


def sweeps(folder: str) -> None:
    """Sweep a folder where no process is to be seen in /proc."""
    assert not os.path.exists("/proc/1")
    launch.sweep(0, Path(folder))


def test_a_killed_job_leaves_no_segment() -> None:
    result = launch.run(2, waits_and_dies, timeout=6, env={"SECONDS": "60"})
    assert result.timed_out, result.output
    assert left(result.output) == []


def test_killed_processes_hold_nothing_any_more(folder: Path) -> None:
    """The kernel takes back the memory of a process after the process was killed."""
    path, mark = segment(folder, "mpich_shm_1_0"), uuid.uuid4().hex
    fill = "room = bytearray(800 << 20)\nroom[::4096] = bytes(len(room) // 4096)\n"
    program = [sys.executable, "-S", "-c", fill + USES, str(path)]
    env = {**os.environ, _processes.MARK: mark}
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=env) as user:
        assert user.stdout is not None and user.stdout.readline() == "mapped\n"
        _processes.kill_marked(mark)
        launch.sweep(0, folder)
        assert not path.exists()


def test_several_may_sweep_at_once(folder: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom paddlempi.testing import launch\n"
        "while True:\n    launch.sweep(0, Path(sys.argv[1]))"
    )
    other = subprocess.Popen([sys.executable, "-c", script, str(folder)])
    try:
        time.sleep(1)  # until it sweeps
        for _ in range(2000):
            (folder / "new").write_bytes(b"x")
            path = (folder / "new").rename(folder / "mpich_shm_1_0")
            launch.sweep(0, folder)
            assert not path.exists()
    finally:
        other.kill()
        other.wait()


def test_the_command_line_leaves_no_segment() -> None:
    script = "import test_testing_sweep; test_testing_sweep.waits_and_dies()"
    job = subprocess.run(
        [sys.executable, "-m", launch.__name__, "-np", "2", "--", sys.executable, "-c", script],
        cwd=Path(__file__).parent,
        env={**os.environ, "SECONDS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert job.returncode != 0
    end = time.monotonic() + 20
    while left(job.stdout + job.stderr):
        assert time.monotonic() < end
        time.sleep(0.1)


def left(output: str) -> list[str]:
    """Return the segments of this job that still exist. Other jobs may have segments, too."""
    segments = re.findall(r"^maps (/dev/shm/\S+)", output, re.MULTILINE)
    assert segments, output
    return [path for path in segments if os.path.exists(path)]


def waits_and_dies() -> None:
    import os
    import time

    import paddlempi as dist

    dist.init_process_group()
    with open("/proc/self/maps") as maps:
        for path in {line.split()[5] for line in maps if "/dev/shm/" in line}:
            os.write(1, f"\nmaps {path}\n".encode())  # one write: lines of ranks do not mix
    time.sleep(float(os.environ["SECONDS"]))
    os.kill(os.getpid(), 9)
