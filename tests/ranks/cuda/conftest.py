"""Fixtures of the tests of CUDA tensors in every rank: the staged path, in pieces of 4 KiB.

No GPU is needed, because the tests use the fake driver. With ``PADDLEMPI_CUDA=libcuda.so.1`` they
run on a GPU, and ``PADDLEMPI_CUDA_PATHS`` may allow other paths.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import device
import fake_driver
import pytest

# The values and layouts of the tests on host memory serve for these tests, too.
sys.path.append(str(Path(__file__).resolve().parents[1] / "core"))
from contract import world_size
from freezing import freeze, thaw
from kinds import KINDS, Kind
from paddlempi.testing import World

__all__ = ["freeze", "thaw"]  # fixtures of all tests here


def pytest_configure(config: pytest.Config) -> None:
    fake_driver.use(config)
    os.environ.setdefault("PADDLEMPI_CUDA_PATHS", "staged")
    os.environ["PADDLEMPI_CUDA_CHUNK"] = "4096"
    # If the ranks share two cores, even this short delay makes a wrong order show.
    os.environ.setdefault("PMPI_FAKECUDA_DELAY", "100")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    fake_driver.skip_without(items)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test synchronously and asynchronously, with the kinds that can matter to it.

    Three ranks run fewer pairs of the two: how memory is described does not depend on the ranks.
    """
    many = world_size(metafunc.config) > 2
    if "kind" not in metafunc.fixturenames:
        if "run" in metafunc.fixturenames:
            runs = [True] if many else [False, True]
            ids = ["async" if later else "sync" for later in runs]
            metafunc.parametrize("run", runs, ids=ids, indirect=True)
        return
    pairs = [("device", True), ("some-ranks", False)]
    if "op" not in metafunc.fixturenames and not many:
        pairs += [("device", False), ("pool", False), ("interface", True), ("some-tensors", True)]
    if "run" in metafunc.fixturenames:
        named = [f"{name}-{'async' if later else 'sync'}" for name, later in pairs]
        metafunc.parametrize(("kind", "run"), pairs, ids=named, indirect=True)
    else:
        names = list(dict.fromkeys(name for name, _ in pairs))
        metafunc.parametrize("kind", names, indirect=True)


@pytest.fixture(scope="module", autouse=True)
def _free(freeze: None) -> None:
    """Free the device memory of other modules.

    The fake driver protects all device memory in every launch: what test_long.py has left there
    doubled the time of the modules behind it. A GPU's driver would wait for what others map.
    """
    if device.is_fake():
        device.empty_cache()


@pytest.fixture
def kind(request: pytest.FixtureRequest, mpi_world: World) -> Kind:
    """A kind of tensors, chosen by its name."""
    return KINDS[request.param](mpi_world.rank)


@pytest.fixture
def two_devices() -> None:
    """Skip the test if the driver shows one device."""
    if device.device_count() < 2:
        pytest.skip("there is one device")


@pytest.fixture
def dist(mpi_world: World) -> ModuleType:
    """The library, initialised."""
    return mpi_world.dist


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Any:
    """A function that calls a collective synchronously, or asynchronously with a wait."""
    asynchronous = request.param

    def call(function: Any, *arguments: Any, **named: Any) -> None:
        if not asynchronous:
            assert function(*arguments, **named) is None
            return
        work = function(*arguments, async_op=True, **named)
        assert work.wait()

    return call


@pytest.fixture
def reversed_group(dist: ModuleType, size: int) -> Iterator[Any]:
    """A group of all ranks in reverse order, so that global ranks and group ranks differ."""
    group = dist.new_group(range(size - 1, -1, -1))
    yield group
    dist.destroy_process_group(group)
