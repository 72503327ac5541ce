"""The pytest plugin: its options, the ``mpi`` marker and the fixtures.

pytest loads it in every session of an environment in which paddlempi is installed. Without
``--mpi`` it only registers these names and deselects tests that cannot run on one rank. It loads
no MPI and no framework, and opens no socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from .place import Place
    from .session import RankSession

_MARKER = (
    "mpi(ranks=N | [N, ...], min=N, timeout=SECONDS): the numbers of ranks with which the test "
    "runs (it is deselected with any other number), and its deadline under --mpi."
)


@dataclass(frozen=True)
class World:
    """The initialised world, as ``mpi_world`` gives it. ``dist`` is the paddlempi module."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    dist: ModuleType


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mpi", "tests on several ranks (paddlempi)")
    group.addoption(
        "--mpi",
        action="store_true",
        help="run as one rank of `mpirun -np N pytest --mpi`: all ranks in lock-step, one report",
    )
    group.addoption(
        "--mpi-timeout",
        type=float,
        default=None,
        metavar="SECONDS",
        help="deadline of a test (default: the ini option mpi_timeout, else 60; 0: none)",
    )
    group.addoption(
        "--mpi-ranks",
        type=int,
        default=None,
        metavar="N",
        help="fail unless the job has N ranks, so that N jobs of one rank are noticed",
    )
    parser.addini("mpi_timeout", "deadline of a test under --mpi in seconds", default="60")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    if config.getoption("mpi"):
        from .session import start

        start(config)
    elif config.getoption("mpi_ranks") is not None:
        raise pytest.UsageError("--mpi-ranks needs --mpi: give both, or neither")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    session = _session(config)
    size = session.place.size if session else 1
    kept = [item for item in items if _wanted(item, size)]
    if len(kept) < len(items):
        dropped = [item for item in items if item not in set(kept)]
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def _wanted(item: pytest.Item, size: int) -> bool:
    """Whether the test runs on ``size`` ranks. The nearest ``mpi`` marker that names ranks says."""
    for mark in item.iter_markers("mpi"):
        try:
            counts, least = _arguments(*mark.args, **mark.kwargs)
        except (TypeError, ValueError):
            raise pytest.UsageError(f"{item.nodeid}: the marker is {_MARKER}") from None
        if counts or least:
            return (not counts or size in counts) and size >= least
    return True


def _arguments(ranks: Any = None, *, min: Any = None, timeout: Any = None) -> tuple[Any, int]:
    counts = () if ranks is None else (ranks,) if isinstance(ranks, int) else tuple(ranks)
    good = all(isinstance(n, int) and n >= 1 for n in (*counts, 1 if min is None else min))
    if not good or (ranks is not None and not counts):
        raise ValueError
    return counts, min or 0


def _session(config: pytest.Config) -> RankSession | None:
    """Return the session if pytest runs with --mpi, else None."""
    return cast("RankSession | None", config.pluginmanager.get_plugin("paddlempi-session"))


@pytest.fixture(scope="session")
def mpi_place(pytestconfig: pytest.Config) -> Place:
    """This process's ``rank`` and the job's ``size`` from the launcher. MPI is not loaded."""
    from .place import ALONE

    session = _session(pytestconfig)
    return session.place if session else ALONE


@pytest.fixture(scope="session")
def mpi_agree(pytestconfig: pytest.Config) -> Callable[[], AbstractContextManager[None]]:
    """A block that fails on every rank if it fails on any: ``with mpi_agree(): ...``.

    It is for code that goes on after a failure inside a test. For example, hypothesis runs more
    examples to shrink the one that failed, and all ranks must run them.
    """
    session = _session(pytestconfig)
    return session.agree if session else nullcontext


@pytest.fixture(scope="session")
def mpi_world(mpi_place: Place) -> Iterator[World]:
    """The initialised world of paddlempi. It is destroyed at the end of the session."""
    from .place import initialise

    dist = initialise(mpi_place)
    local = dist.get_local_rank(), dist.get_local_size()
    yield World(mpi_place.rank, mpi_place.size, *local, dist)
    if dist.is_initialized():
        dist.destroy_process_group()
