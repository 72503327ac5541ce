"""Rank 1 of 3 is killed in every state of an arrival and of a chunk (gocore/primitives/kill.h).

The core of these tests has points at which a process kills itself. The launchers leave the other
ranks alone: those must raise within 5 s, name rank 1, and have ended every collective before alike,
with the right result.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import job
import paddlempi
import pytest
from contract import MPI

pytestmark = pytest.mark.launcher(
    "a core of its own, which is loaded in the place of the usual one", only=["openmpi", "impi"]
)

ROOT = Path(__file__).resolve().parents[3]
CORE = "_core.abi3.so"

SURVIVE = {"openmpi": ("--with-ft", "ulfm"), "impi": ("-disable-auto-cleanup",)}
"""What lets the other ranks live when one dies.

MPICH's launcher has the option of Intel MPI's, but it ends the others in every second job.
"""

POINTS = (
    "before-announce",
    "after-announce",
    "all-arrived",
    "before-claim",
    "after-claim",
    "half-written",
    "before-done",
    "after-done",
    "all-done",
    "before-finished",
    "after-finished",
)
"""Those that a rank passes in every collective. The Go tests of the chunks also have those at which
a rank gives up, refuses, or cannot map a tensor.
"""


def in_a_loop() -> None:
    """Rank 1 is killed in a series of mapped all_reduces of 4 MiB."""
    import os

    import numpy as np
    from ranks_tools import dist, errors, leave_together, raises, stamp, start

    rank = start()
    tensor = dist.zeros(1 << 20)
    dist.all_reduce(tensor)
    dist.barrier()
    if rank == 1:
        os.environ["PADDLEMPI_KILL"] = os.environ["KILL_AT"]
    done = 0
    with raises(errors.PeerDiedError, "[1]", ranks=[1], most=5.0):
        while done < 500:
            tensor[:] = rank + done
            dist.all_reduce(tensor)
            assert (tensor == 3 + 3 * done).all()
            done += 1
    with raises(errors.GroupBrokenError, "[1]"):
        dist.all_reduce(np.ones(2))
    stamp(f"{rank}:{done}")
    leave_together(rank)


def with_several_under_way() -> None:
    """Rank 1 is killed in steps with several asynchronous all_reduces, as DDP makes them.

    The other ranks come later in every second step, and rank 1 in the others.
    """
    import os
    import time

    from ranks_tools import LATE, dist, errors, leave_together, raises, stamp, start

    rank = start()
    small = [100, 50] if os.environ["KILL_TENSORS"] == "long and short" else []  # they are inline
    counts = [*small[:1], 1 << 18, *small[1:], 1 << 19, 30_000, 1 << 18, *small[:1], 1 << 17]
    tensors = [dist.zeros(count) for count in counts]
    for tensor in tensors:
        dist.all_reduce(tensor)
    dist.barrier()
    if rank == 1:
        os.environ["PADDLEMPI_KILL"] = os.environ["KILL_AT"]
    done, failed = 0, False
    while not failed:
        step = done // len(counts)
        assert step < 50
        for tensor in tensors:
            tensor[:] = rank + step
        if (rank == 1) == step % 2:
            time.sleep(0.1)
        began, works = time.monotonic(), []
        try:
            for tensor in tensors:
                works.append(dist.all_reduce(tensor, async_op=True))
        except errors.GroupBrokenError as error:  # it was broken by those before
            assert "[1]" in str(error), error
        for work, tensor in zip(works, tensors, strict=False):
            if failed:
                with raises(errors.GroupBrokenError, "[1]"):
                    work.wait()
                continue
            try:
                work.wait()
            except errors.PeerDiedError as error:
                assert error.ranks == (1,), error
                failed = True
            else:
                assert (tensor == 3 + 3 * step).all(), done
                done += 1
        took = time.monotonic() - began
        assert took < 5 + LATE, took
    stamp(f"{rank}:{done}")
    leave_together(rank)


def with_a_lent_tensor() -> None:
    """Rank 1 is killed when it has read what rank 0 has lent, and has not said so."""
    import os

    from ranks_tools import dist, errors, leave_together, raises, stamp, start

    rank = start()
    cart = dist.Cartesian([2, 1])
    field = dist.zeros((4, 20_000))
    field[1:-1] = rank + 1
    inner = field[1:-1].copy()
    cart.halo_exchange(field, (1, 0))
    if rank == 1:
        os.environ["PADDLEMPI_KILL"] = os.environ["KILL_AT"]
    done = 0
    with raises(errors.PeerDiedError, "halo_exchange", "[1]", ranks=[1], most=5.0):
        while done < 500:
            cart.halo_exchange(field, (1, 0))
            done += 1
    assert (field[1:-1] == inner).all() and (field[-1] == 2).all()
    with raises(errors.GroupBrokenError, "[1]"):
        cart.halo_exchange(field, (1, 0))
    stamp(f"{rank}:{done}")
    leave_together(rank)


@pytest.fixture(scope="session")
def killing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with a copy of the package whose core has the points."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the workers share it
    with open(folder / "killing.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        package = folder / "killing" / "paddlempi"
        core = package / CORE
        if not core.exists():
            installed = Path(paddlempi.__file__).parent
            shutil.copytree(installed, package, ignore=shutil.ignore_patterns("*.so"))
            build(core)
    return str(folder / "killing")


def build(core: Path) -> None:
    """Build the core with the points. Where no go is on PATH, take that of the tools.

    It is built like the installed one: Go's cache has the packages that are the same in both.
    """
    tools = ROOT / ".venv-tools" / "bin" / "python"
    code = "import core, pathlib, sys; core.build(pathlib.Path(sys.argv[1]), pymodule=True)"
    command = [str(tools if tools.exists() else sys.executable), "-c", code, str(core)]
    env = {
        "PYTHONPATH": str(ROOT / "tools" / "build"),
        "CGO_CFLAGS": "-O2 -g -DPADDLEMPI_KILL_POINTS",
    }
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_usual_core_has_no_points(killing: str) -> None:
    variable = b"PADDLEMPI_KILL\0"
    assert variable in Path(killing, "paddlempi", CORE).read_bytes()
    assert variable not in Path(paddlempi.__file__).with_name(CORE).read_bytes()


def check(killing: str, program: Callable[[], object], ranks: int = 3, **env: str) -> None:
    """Run a program of which rank 1 is killed. Check that the other ranks ended alike."""
    env["PADDLEMPI_KILL"] = "nowhere"  # the ranks change it, and do not add a variable
    ended = job.run(ranks, program, path=killing, env=env, options=SURVIVE[MPI])
    done = {}
    for line in ended.stamps.splitlines():
        rank, _, count = line.split()[0].partition(":")
        if count:
            done[rank] = count
    others = {str(rank) for rank in range(ranks) if rank != 1}
    assert done.keys() == others and len(set(done.values())) == 1, f"{done}\n{ended.output}"
    assert not [name for name in os.listdir("/dev/shm") if "paddlempi" in name]


@pytest.mark.parametrize("point", POINTS)
def test_in_a_loop(killing: str, point: str) -> None:
    check(killing, in_a_loop, KILL_AT=f"{point}:3")


@pytest.mark.parametrize("tensors", ["long", "long and short"])
@pytest.mark.parametrize(
    "at", ["after-announce:9", "after-claim:7", "half-written:2", "all-done:8", "before-finished:2"]
)
def test_with_several_under_way(killing: str, at: str, tensors: str) -> None:
    check(killing, with_several_under_way, KILL_AT=at, KILL_TENSORS=tensors)


@pytest.mark.parametrize("at", ["before-finished:2", "before-finished:4", "all-arrived:3"])
def test_with_a_lent_tensor(killing: str, at: str) -> None:
    check(killing, with_a_lent_tensor, ranks=2, KILL_AT=at)
