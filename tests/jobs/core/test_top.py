"""``python -m paddlempi top`` beside a job that runs."""

from __future__ import annotations

import json
from pathlib import Path

import job


def one_sleeps() -> None:
    """Rank 1 looks at both until rank 0 has waited for it for a while."""
    import os
    import subprocess
    import sys
    import time
    from pathlib import Path

    import numpy as np
    from ranks_tools import dist, done, start

    rank = start()
    pids: list[int] = [0] * 2
    dist.all_gather_object(pids, os.getpid())
    for _ in range(100):
        dist.all_reduce(np.ones(1 << 16, np.float32))
    if rank == 1:
        time.sleep(0.5)
        command = [sys.executable, "-m", "paddlempi", "top", "--once", "--json", *map(str, pids)]
        found = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60)
        Path(os.environ["FOUND"]).write_bytes(found.stdout)
    dist.barrier()
    done()


def test_one_sleeps(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    job.succeed(2, one_sleeps, env={"FOUND": str(file)})
    [found] = json.loads(file.read_text())["jobs"]
    waiting, late = found["ranks"]
    assert (found["size"], waiting["rank"], late["rank"]) == (2, 0, 1)
    assert waiting["call"] == "barrier" and waiting["waits_for"] == [1]
    assert waiting["since"] >= 0.5 and waiting["waiting"] >= 0.45
    assert late["call"] == "" and late["waits_for"] == [] and late["since"] >= 0.5
    assert all(rank["state"] == "running" and rank["rss"] > 1 << 20 for rank in (waiting, late))
