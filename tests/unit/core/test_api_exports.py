"""The public names, and what their import costs."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import paddlempi
import pytest
from paddlempi import collectives, errors

# All public names but the collectives, for which test_api_collectives.py has calls.
NAMES = [
    "PREEMPTED",
    "Cartesian",
    "Checkpoint",
    "Communicator",
    "Connector",
    "DistContext",
    "Error",
    "Graph",
    "GroupMember",
    "Intercommunicator",
    "P2POp",
    "PreparedCall",
    "ProbeResult",
    "ProcessGroup",
    "ReduceOp",
    "Window",
    "Work",
    "accept",
    "all_gather_object",
    "allreduce",
    "batch_isend_irecv",
    "broadcast_object_list",
    "checkpoint",
    "connect",
    "destroy_process_group",
    "elastic",
    "empty",
    "empty_like",
    "errors",
    "gather_object",
    "get_backend",
    "get_communicator",
    "get_context",
    "get_global_rank",
    "get_group_rank",
    "get_local_rank",
    "get_local_size",
    "get_parent",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "irecv",
    "is_available",
    "is_initialized",
    "isend",
    "latest_checkpoint",
    "launch",
    "new_group",
    "new_subgroups",
    "preempted",
    "prepare",
    "probe",
    "recv",
    "recv_object_list",
    "scatter_object_list",
    "send",
    "send_object_list",
    "sendrecv",
    "spawn",
    "split_group",
    "watch_preemption",
    "zeros",
]


def test_exported_names() -> None:
    assert sorted(paddlempi.__all__) == sorted([*NAMES, *collectives.__all__])
    for name in paddlempi.__all__:
        assert getattr(paddlempi, name).__doc__, f"{name} has no docstring"


def test_version_is_the_package_s() -> None:
    try:
        installed = metadata.version("paddlempi")
    except metadata.PackageNotFoundError:
        pytest.skip("paddlempi is not installed")
    assert paddlempi.__version__ == installed


def test_tree_of_errors_is_the_documented_one() -> None:
    assert errors.__doc__ is not None
    for name in errors.__all__:
        kind = getattr(errors, name)
        if kind is errors.LOST:
            continue
        assert issubclass(kind, errors.Error)
        assert kind.__doc__
        assert name in errors.__doc__


def test_each_code_has_one_class() -> None:
    # Interrupted (9) is a KeyboardInterrupt.
    assert sorted(errors.BY_CODE) == [code for code in range(1, 28) if code != 9]
    for code, kind in errors.BY_CODE.items():
        error = kind("text")
        assert (error.code, error.ranks, error.mpi_class, str(error)) == (code, (), 0, "text")


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (errors.ArgumentError, ValueError),
        (errors.IndexError, errors.ArgumentError),
        (errors.IndexError, IndexError),
        (errors.DtypeError, TypeError),
        (errors.TimeoutError, TimeoutError),
        (errors.NotReadyError, errors.TimeoutError),
        (errors.CudaError, RuntimeError),
        (errors.UnsupportedError, NotImplementedError),
        (errors.OutOfMemoryError, MemoryError),
    ],
)
def test_errors_are_python_s_too(kind: type, base: type) -> None:
    assert issubclass(kind, base)


def imported() -> set[str]:
    """The modules that ``import paddlempi`` loads, in a Python that has loaded next to nothing."""
    code = (
        "import sys; before = set(sys.modules); import paddlempi; print(*set(sys.modules) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(paddlempi.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_loads_no_core_and_no_framework() -> None:
    frameworks = {"paddlempi._core", "numpy", "torch", "paddle"}
    slow = {"ctypes", "asyncio", "json", "logging", "concurrent.futures"}
    assert not (frameworks | slow) & imported()


def test_import_loads_few_modules() -> None:
    # What an import costs is the modules that it loads: each is found, read and run.
    loaded = imported()
    ours = {name for name in loaded if name.startswith("paddlempi")}
    slow = {"inspect", "traceback", "socket", "pathlib", "random", "urllib", "multiprocessing"}
    assert not slow & loaded
    assert len(ours) <= 30
    assert len(loaded - ours) <= 70


def test_dir_lists_what_is_imported_later() -> None:
    assert set(paddlempi.__all__) <= set(dir(paddlempi))


def test_group_world_is_none_before_init() -> None:
    assert isinstance(paddlempi.group, types.ModuleType)
    assert paddlempi.group.WORLD is None
    assert not paddlempi.is_initialized()
    with pytest.raises(errors.NotInitializedError, match="init_process_group"):
        paddlempi.get_rank()
    with pytest.raises(errors.NotInitializedError, match="init_process_group"):
        paddlempi.all_reduce(bytearray(8))
    with pytest.raises(errors.NotInitializedError):
        paddlempi.destroy_process_group()
    with pytest.raises(AttributeError):
        paddlempi.group.nonsense  # noqa: B018
