"""Machines that limit or refuse shared memory: values stay right, and one warning says so."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import job
import pytest
from system_calls import number


def checks() -> None:
    """Collectives on tensors of ``empty``, on ordinary ones, and the algorithm that they take."""
    import json
    import os
    import warnings

    from ranks_tools import dist, done, start, works

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        rank = start()
        heap = json.loads(dist._native.core().control("info", "{}"))["heap"]
        for size in (10, 3_000, 100_000, 10 << 20):
            tensor = dist.zeros(size)
            tensor += rank + 1
            dist.all_reduce(tensor)
            assert (tensor == 3).all()
            whole = dist.empty((2, size))
            dist.all_gather_into_tensor(whole, tensor)
            assert (whole == 3).all()
        works(dist.new_group([1, 0]))
    told = [str(w.message) for w in seen if issubclass(w.category, RuntimeWarning)]
    way = json.loads(dist._native.core().control("group_info", '{"group": 0}'))["algorithm"]
    expected = os.environ["FAULTS_EXPECTED"]
    if expected == "mapped":
        assert heap["mapped"] and way == "mapped" and not told, (heap, way, told)
    elif expected == "init":  # it is known at init that no rank can
        assert not heap["mapped"] and heap["why"] and way == "mpi", (heap, way)
        assert not told or "so collectives copy them" in told[0], told
        assert len(told) == (rank == 0) or (len(told) == 1 and "init" not in told[0]), told
    else:  # it turns out when the heap should grow
        assert way in ("bounce", "mpi") and len(told) == 1 and expected in told[0], (way, told)
    assert not [name for name in os.listdir("/dev/shm") if "paddlempi" in name]
    done()


def file_size() -> None:
    """``ulimit -f``: the heap does not grow beyond it."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 20, 100 << 20))
    from test_program import checks

    checks()


def one_rank_cannot_map() -> None:
    """Rank 1 cannot map rank 0's tensor, and leaves the work to rank 0."""
    import contextlib
    import json

    from ranks_tools import dist, done, little_memory, start, works

    rank = start()
    mib = 1 << 20
    tensor = dist.zeros(90 * mib // 4)
    tensor += rank + 1
    works()
    with little_memory(60 * mib) if rank == 1 else contextlib.nullcontext():
        for asynchronous in (False, True):
            work = dist.all_reduce(tensor[10:], async_op=asynchronous)
            if asynchronous:
                work.wait()
            way = json.loads(dist._native.core().control("group_info", '{"group": 0}'))["algorithm"]
            assert way == "mapped", way
        assert (tensor[10:] == 6).all()
    dist.all_reduce(tensor[10:])
    assert (tensor[10:] == 12).all()
    done()


def no_rank_can_map() -> None:
    """All ranks get the error, nothing is written, and the group stays usable."""
    from ranks_tools import dist, done, errors, little_memory, raises, start, works

    rank = start()
    mib = 1 << 20
    tensor = dist.zeros(90 * mib // 4)
    tensor += rank + 1
    works()
    with little_memory(60 * mib):
        for asynchronous in (False, True):
            with raises(errors.OutOfMemoryError, "no rank could map", "ulimit -v", most=20.0):
                work = dist.all_reduce(tensor, async_op=asynchronous)
                if asynchronous:
                    work.wait()
            assert (tensor == rank + 1).all()
            works()
    dist.all_reduce(tensor)
    assert (tensor == 3).all()
    done()


def user_namespaces() -> None:
    """Every rank is in a user namespace of its own: sockets hand the descriptors over."""
    import os
    import sys

    if "FAULTS_INSIDE" not in os.environ:
        os.environ["FAULTS_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "-U", "-r", sys.executable, *sys.argv])
    from test_program import checks

    checks()


def small_shm() -> None:
    """/dev/shm has 64 MB. The heap does not lie there."""
    import os
    import sys

    if "FAULTS_INSIDE" not in os.environ:
        os.environ["FAULTS_INSIDE"] = "1"
        script = 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"'
        os.execvp("unshare", ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, *sys.argv])
    assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize == 64 << 20
    from test_program import checks

    checks()


def filtered() -> None:
    """A seccomp filter refuses process_vm_readv on all ranks, or memfd_create on some."""
    import os

    import ranks_tools

    refused = [int(number) for number in os.environ["FAULTS_REFUSED"].split(",")]
    only = os.environ.get("FAULTS_ONLY")
    mine = next(
        os.environ[name]
        for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "RANK")
        if name in os.environ
    )
    if only is None or only == mine:
        ranks_tools.refuse_system_calls(refused)
    from test_program import checks

    checks()


def run(program: Callable[[], None], expected: str, **variables: str) -> job.Ended:
    """Run ``program``, which may import ``checks``, as two ranks."""
    import inspect
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_program.py").write_text(inspect.getsource(checks))
        path = {"FAULTS_EXPECTED": expected, "FAULTS_FOLDER": folder}
        return job.succeed(2, program, env={**variables, **path}, path=folder, timeout=100)


def test_nothing_is_refused() -> None:
    run(checks, "mapped")


def test_file_size() -> None:
    run(file_size, "ulimit -f")


@pytest.mark.launcher("a limit of the process, which counts what a warm server has imported")
def test_one_rank_cannot_map() -> None:
    job.succeed(2, one_rank_cannot_map, timeout=100)


@pytest.mark.launcher("a limit of the process, which counts what a warm server has imported")
def test_no_rank_can_map() -> None:
    job.succeed(2, no_rank_can_map, timeout=100)


@pytest.mark.launcher("every rank goes on as another program, in namespaces")
def test_user_namespaces() -> None:
    if subprocess.run(["unshare", "-U", "-r", "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no user namespaces")
    run(user_namespaces, "mapped", UCX_POSIX_USE_PROC_LINK="n")


@pytest.mark.launcher("every rank goes on as another program, in namespaces", only=["openmpi"])
def test_small_shm() -> None:
    mount = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/dev/shm"]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine lets this user mount nothing")
    run(small_shm, "mapped", OMPI_MCA_btl_vader_backing_directory="/tmp")


def test_without_reading_other_processes() -> None:
    run(filtered, "mapped", FAULTS_REFUSED=number("process_vm_readv"))


@pytest.mark.launcher("without memory to share, MPI moves the data")
@pytest.mark.parametrize("only", ["0", "1", None])
def test_without_memory_files(only: str | None) -> None:
    one = {} if only is None else {"FAULTS_ONLY": only}
    run(filtered, "init", FAULTS_REFUSED=number("memfd_create"), **one)
