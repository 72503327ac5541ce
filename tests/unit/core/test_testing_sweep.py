"""The sweep removes what MPIs leave in shared memory when ranks are killed, and nothing else."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from paddlempi.testing import launch


def test_sweep(tmp_path: Path) -> None:
    old = tmp_path / "mpich_shm_old_0"
    old.write_bytes(b"x")
    os.utime(old, (0, 0))
    foreign, left, used = (tmp_path / n for n in ("other", "mpich_shm_1_0", "sm_segment.a.0"))
    for path in (foreign, left, used):
        path.write_bytes(b"x" * mmap.PAGESIZE)
    with used.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        launch.sweep(time.time(), tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            path.name for path in (old, foreign, used)
        )


def test_a_killed_job_leaves_no_segment() -> None:
    result = launch.run(2, waits_and_dies, timeout=6, env={"SECONDS": "60"})
    assert result.timed_out, result.output
    assert left(result.output) == []


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
