"""What MPIs leave in shared memory when their ranks are killed is removed, and nothing else."""

from __future__ import annotations

import mmap
import os
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
    before = set(os.listdir("/dev/shm"))
    result = launch.run(2, sleeps, timeout=6)
    assert result.timed_out, result.output
    assert set(os.listdir("/dev/shm")) <= before


def sleeps() -> None:
    import time

    import paddlempi as dist

    dist.init_process_group()
    time.sleep(60)
