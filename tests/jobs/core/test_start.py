"""An error of one rank at init is reported on all ranks, within their deadline."""

from __future__ import annotations

import subprocess
import sys

import job
import pytest


def a_wrong_setting() -> None:
    """One rank has a wrong variable. Its error names the variable, other errors name the rank."""
    import os

    from ranks_tools import done, errors, raises, start, works

    names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")
    rank = int(next(os.environ[name] for name in names if name in os.environ))
    name, value = os.environ["FAULTS_SETTING"].split("=")
    if rank == 1:
        os.environ[name] = value
        with raises(errors.ArgumentError, name, value, most=20.0):
            start(timeout=60.0)
        del os.environ[name]
    else:
        with raises(errors.RefusedError, "rank(s) [1]", "their own error", ranks=[1], most=20.0):
            start(timeout=60.0)
    start()
    works()
    done()


def forced_algorithms() -> None:
    """What chooses algorithms must be the same on all ranks that make a group."""
    import os

    import numpy as np
    import paddlempi as dist
    from paddlempi import _native
    from ranks_tools import done, errors, raises, start, works

    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    os.environ["PADDLEMPI_ALGO"] = f"all_reduce:{'mpi' if rank else 'slices16'}"
    with raises(
        errors.MismatchError, "init", "PADDLEMPI_ALGO differs", os.environ["PADDLEMPI_ALGO"]
    ):
        start()
    os.environ["PADDLEMPI_ALGO"] = ""
    os.environ["PADDLEMPI_LEVELS"] = f"{rank % 2}"
    with raises(errors.MismatchError, "init", "PADDLEMPI_LEVELS differs", f"{rank % 2}"):
        start()
    os.environ["PADDLEMPI_LEVELS"] = "0"
    os.environ["PADDLEMPI_TUNE"] = "off" if rank else "on"
    with raises(
        errors.MismatchError, "init", "PADDLEMPI_TUNE differs", os.environ["PADDLEMPI_TUNE"]
    ):
        start()
    os.environ["PADDLEMPI_TUNE"] = "once" if rank else "never"
    kind, words = errors.RefusedError, ["their own error"]
    if rank == 0:
        kind, words = errors.ArgumentError, ["PADDLEMPI_TUNE=never", "off, once or on"]
    with raises(kind, "init", *words):
        start()
    os.environ["PADDLEMPI_TUNE"] = "once"
    os.environ["PADDLEMPI_THREADS"] = "2" if rank else "none"
    kind, words = errors.RefusedError, ["their own error"]
    if rank == 0:
        kind, words = errors.ArgumentError, ["PADDLEMPI_THREADS=none", "from 1 to 64"]
    with raises(kind, "init", *words):
        start()
    os.environ["PADDLEMPI_THREADS"] = f"{1 + rank}"  # ranks may differ
    start()
    assert _native.control("info")["threads"] == 1 + rank
    os.environ["PADDLEMPI_ALGO"] = "all_reduce:fast" if rank == 1 else "all_reduce:mpi"
    kind, words = errors.RefusedError, ["its own error"]
    if rank == 1:
        kind, words = errors.ArgumentError, ["all_reduce:fast", "slices16, mpi"]
    with raises(kind, "new_group", "PADDLEMPI_ALGO", *words):
        dist.new_group([0, 1, 2])
    os.environ["PADDLEMPI_ALGO"] = "all_reduce:slices16"
    forced = dist.new_group([0, 1, 2])
    for group, algorithm in ((None, "inline"), (forced, "slices16")):
        x = np.zeros(5, np.float16)
        dist.all_reduce(x, group=group)
        number = 0 if group is None else group._id
        assert _native.control("group_info", group=number)["algorithm"] == algorithm
        works(group)
    done()


def one_that_never_comes() -> None:
    """A rank that waits in init raises at its deadline. The other rank never calls init."""
    import mpi4py

    mpi4py.rc.finalize = False
    from mpi4py import MPI
    from ranks_tools import done, errors, leave_together, raises, start

    if MPI.COMM_WORLD.rank == 1:
        done()
        leave_together(1)
    with raises(errors.TimeoutError, "init", "every rank must call it", least=0.9, most=3.5):
        start(timeout=1.0)
    done()
    leave_together(0)


def a_log() -> None:
    """In the program's own log: which MPI was taken, and why."""
    import logging
    import sys

    from paddlempi import _native
    from ranks_tools import done, start

    told: list[str] = []
    ours, handler = logging.getLogger("paddlempi"), logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    ours.setLevel(logging.DEBUG)
    ours.addHandler(handler)
    start()
    mpi = _native.control("info", sys_prefix=sys.prefix, mpi=None)["mpi"]
    line = f"MPI {mpi['version']} of {mpi['path']}: " if mpi else "no MPI: "
    assert any(text.startswith(line) for text in told), told
    assert any(text.endswith(" of the ranks range(0, 2)") for text in told), told
    done()


@pytest.mark.parametrize(
    "setting",
    [
        "PADDLEMPI_CUDA_CHUNK=x",
        "PADDLEMPI_CUDA_PATHS=staged,fast",
        "PADDLEMPI_CUDA_REDUCE=gpu",
        "PADDLEMPI_CUDA_AWARE=perhaps",
        "PADDLEMPI_ALGO=all_reduce:fast",
    ],
)
def test_a_wrong_setting(setting: str) -> None:
    job.succeed(3, a_wrong_setting, env={"FAULTS_SETTING": setting})


def test_a_log() -> None:
    job.succeed(2, a_log)


@pytest.mark.launcher("algorithms of MPI are forced", only=["openmpi"])
def test_forced_algorithms() -> None:
    job.succeed(3, forced_algorithms)


def test_one_that_never_comes() -> None:
    ended = job.run(2, one_that_never_comes)
    assert ended.result.stdout.count("done\n") == 2, ended.output
    assert "Traceback" not in ended.output, ended.output


def test_alone_open_mpi_knows_its_own_messages() -> None:
    """Its wheel is not where it was built for. Without its mpirun, paddlempi must tell it so."""
    script = "import paddlempi as d; d.init_process_group('mpi'); raise RuntimeError('boom')"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "RuntimeError: boom" in ended.stderr
    assert "Sorry!" not in ended.stderr, ended.stderr
