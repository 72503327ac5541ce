"""Files that all ranks write are whole, whenever a rank is killed and whatever the disk does."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import job
import numpy as np
import pytest
from paddlempi import io

KILLS = int(os.environ.get("IO_KILLS", "10"))
"""How many jobs are killed; ``IO_KILLS=200 make try T=tests/jobs/core/test_io_crash.py``."""


def saves() -> None:
    """Save one version after the other, as one file and as a set, until a rank dies."""
    import os
    import signal
    import threading
    from pathlib import Path

    import numpy as np
    from paddlempi import io
    from ranks_tools import start

    folder, dies, after = Path(os.environ["IO_FOLDER"]), *map(float, os.environ["IO_DIES"].split())
    rank = start()
    for version in range(1, 100_000):
        whole = np.full((64, 64, 16), version, np.int32)
        begin, end = 32 * rank, 32 * rank + 32
        tensors = {
            "rows": io.Shard(whole[begin:end], whole.shape, (begin, 0, 0)),
            "columns": io.Shard(whole.copy()[:, begin:end], whole.shape, (0, begin, 0)),
            "copies": whole[0].copy(),
        }
        io.save_file(tensors, folder / "one" / "model.safetensors")
        io.save_file(tensors, folder / "set" / "model.safetensors", "100KB")
        if rank == 0:
            with open(folder / "saved", "a") as file:
                file.write(f"{version}\n")
        if version == 1 and rank == int(dies):
            kill = (os.getpid(), signal.SIGKILL)
            threading.Timer(after, os.kill, kill).start()


def version_of(path: Path) -> int:
    """Return which version is saved, all of it."""
    tensors = io.load_file(path)
    assert tensors.keys() == {"rows", "columns", "copies"}
    (found,) = {int(number) for one in tensors.values() for number in np.unique(one)}
    return found


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_rank_is_killed(tmp_path: Path, seed: int) -> None:
    """The last version is there, or the one before, and the next save leaves nothing else."""
    for name in ("one", "set"):
        (tmp_path / name).mkdir()
    chosen = random.Random(seed)
    env = {
        "IO_FOLDER": str(tmp_path),
        "IO_DIES": f"{chosen.randrange(2)} {chosen.uniform(0, 0.15)}",
    }
    ended = job.run(2, saves, env=env)
    assert ended.returncode != 0
    assert (tmp_path / "saved").exists(), ended.output
    last = int((tmp_path / "saved").read_text().split()[-1])
    for name in ("one", "set"):
        path = tmp_path / name / "model.safetensors"
        assert last <= version_of(path) <= last + 1
        io.save_file({"a": np.arange(100_000)}, path, "100KB" if name == "set" else None)
        files = sorted(one.name for one in path.parent.iterdir())
        if name == "one":
            assert files == ["model.safetensors"]
        else:
            assert len(files) == 2 and re.fullmatch(r"model-\w{16}-00001-of-00001\.\w+", files[0])


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    if os.geteuid():
        pytest.skip("only root can mount a file system")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fills_up() -> None:
    """Saves that do not fit, a limit on the length of files, and a folder that is read-only."""
    import errno
    import os
    import resource
    import signal
    import subprocess
    from pathlib import Path

    import numpy as np
    import paddlempi as dist
    from paddlempi import errors, io
    from ranks_tools import done, start, works

    folder = Path(os.environ["IO_FOLDER"])
    rank = start()
    for name in ("one", "set"):
        if rank == 0:
            (folder / name).mkdir()
    dist.barrier()

    def save(rows: int, most: int | None) -> Path:
        cut = rows // 2
        shard = io.Shard(np.full((cut, 1024), 20, np.uint8), (rows, 1024), (cut * rank, 0))
        path = folder / ("one" if most is None else "set") / "m.safetensors"
        io.save_file({"w": shard, "b": np.zeros((200, 1024), np.uint8)}, path, most)
        return path

    def fails(codes: set[int], rows: int, most: int | None) -> None:
        try:
            save(rows, most)
        except OSError as error:
            assert error.errno in codes, error
        except errors.RefusedError as error:
            assert error.ranks, error
        else:
            raise AssertionError("it was saved")
        works()
        path = folder / ("one" if most is None else "set") / "m.safetensors"
        assert (io.load_file(path)["w"] == 20).all()
        assert len(os.listdir(path.parent)) == (1 if most is None else 3)
        dist.barrier()

    for most in (None, 100_000):
        save(20, most)
        fails({errno.ENOSPC}, 4000, most)
        save(20, most)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank == 1:  # as a quota of this rank's host
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    fails({errno.EFBIG}, 20, None)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    dist.barrier()
    if rank == 0:
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    dist.barrier()
    fails({errno.EROFS}, 20, None)
    fails({errno.EROFS}, 20, 100_000)
    dist.barrier()
    done()


def test_the_disk_is_full(small: Path) -> None:
    job.succeed(2, fills_up, env={"IO_FOLDER": str(small)})
