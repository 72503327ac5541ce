"""Fixtures of the tests that run in every rank: ``mpirun -np N pytest --mpi tests/ranks/core``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from contract import EVERYTHING, pytest_collection_modifyitems, pytest_configure, world_size
from paddlempi.testing import World
from tensors import DlpackKind, FrameworkKind, HeapKind, Kind, MemoryviewKind, NumpyKind

__all__ = ["pytest_collection_modifyitems", "pytest_configure"]

KINDS = ["numpy", "heap", "memoryview", "dlpack", "paddle", "torch"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Take every kind of tensors under one MPI on 2 ranks, and only NumPy's elsewhere.

    How memory is described depends on the kind, but not on the MPI or on the number of ranks. The
    heap's tensors have algorithms of their own, which three ranks run, too.
    """
    if "kind" in metafunc.fixturenames:
        size = world_size(metafunc.config) if EVERYTHING else 0
        kinds = {2: KINDS, 3: ["numpy", "heap"]}.get(size, ["numpy"])
        metafunc.parametrize("kind", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session")
def kind(request: pytest.FixtureRequest) -> Kind:
    """A kind of tensors. The test is skipped if the framework of the kind is not installed."""
    name = request.param
    if name in ("paddle", "torch"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
        return FrameworkKind(name, importlib.import_module(name))
    kinds = {
        "numpy": NumpyKind,
        "heap": HeapKind,
        "memoryview": MemoryviewKind,
        "dlpack": DlpackKind,
    }
    return kinds[name]()


@pytest.fixture
def dist(mpi_world: World) -> ModuleType:
    """The library, initialised."""
    return mpi_world.dist


@pytest.fixture
def stamps(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the ranks call ``ranks_tools.stamp`` and ``stamped``."""
    (here / "stamps").touch()
    monkeypatch.setenv("FAULTS_STAMPS", str(here / "stamps"))


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Any:
    """A function that calls a collective synchronously, or asynchronously with a wait."""
    asynchronous = request.param

    def call(function: Any, *arguments: Any, **named: Any) -> None:
        if not asynchronous:
            assert function(*arguments, **named) is None
            return
        work = function(*arguments, async_op=True, **named)
        assert work.wait()
        assert work.is_success()

    return call


@pytest.fixture
def reversed_group(dist: ModuleType, size: int) -> Any:
    """A group of all ranks in reverse order, so that global ranks and group ranks differ."""
    group = dist.new_group(range(size - 1, -1, -1))
    yield group
    dist.destroy_process_group(group)
