"""Too few addresses and a small /dev/shm: one sentence, before Go or MPI crash of it."""

from __future__ import annotations

import subprocess
import sys

import job
import pytest
from contract import MPI


def few_addresses() -> None:
    """The limit (``ulimit -v``) is too low for the core, then for MPI. Raised, all goes on."""
    import resource

    import numpy as np  # noqa: F401  # its threads need addresses too
    from ranks_tools import dist, done, errors, little_memory, raises, start, works

    before = resource.getrlimit(resource.RLIMIT_AS)
    for limit in 700 << 20, 1500 << 20:
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
        says = f"ulimit -v: {limit >> 20} MiB"
        with raises(errors.OutOfMemoryError, "the core needs", "of address space", says):
            start()
    resource.setrlimit(resource.RLIMIT_AS, before)
    dist._native.control("info")
    with little_memory(100 << 20), raises(errors.OutOfMemoryError, "MPI needs", "ulimit -v"):
        start()
    start()
    works()
    done()


def test_few_addresses() -> None:
    job.succeed(2, few_addresses)


SMALL = """
import numpy as np, paddlempi as dist
try:
    dist.init_process_group()
except dist.errors.OutOfMemoryError as error:
    print(error, flush=True)
else:
    x = np.ones(1)
    dist.all_reduce(x)
    # With PYTHONUNBUFFERED print writes each part for itself, and a launcher mixes those of ranks.
    print(f"sum {x[0]}\\n", end="", flush=True)
"""


@pytest.mark.parametrize("size", [1, 16])
def test_small_shared_memory(size: int) -> None:
    """Open MPI starts with less, Intel's with 4 MiB, MPICH with 28 because of its UCX."""
    mount = f'mount -t tmpfs -o size={size}m tmpfs /dev/shm && exec "$@"'
    unshare = ["unshare", "-U", "-r", "-m", "sh", "-c", mount, "sh"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no mounts")
    launch = [sys.executable, "-m", "paddlempi.testing.launch", "-np", "2", "--"]
    done = subprocess.run(
        [*unshare, *launch, sys.executable, "-c", SMALL],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if MPI == "openmpi" or (MPI == "impi" and size == 16):
        assert done.stdout.count("sum 2.0") == 2, done
    else:
        assert "MiB of /dev/shm for the 2 ranks of this host" in done.stdout, done
        assert f"there is room for {size} MiB" in done.stdout, done
    assert "SIG" not in done.stdout + done.stderr, done
