"""What all tests have in common that start jobs: how their jobs start (``tests/helpers/job.py``).

A part of the tests, another one every day, also runs with cold starts, as ``NAME@cold``: so what
only a warm start shows, or hides, fails under a name of its own. ``TEST_SEED`` chooses the part.
"""

from __future__ import annotations

import datetime
import hashlib
import os
from pathlib import Path

import contract
import job
import pytest
import quick_start  # noqa: F401 (jobs inherit the variable that it sets)
from contract import needs_launcher
from paddlempi.testing import Warm
from paddlempi.testing.warm import VARIABLE

HERE = Path(__file__).resolve().parent
SEED = os.environ.setdefault("TEST_SEED", datetime.date.today().isoformat())  # workers inherit it
ALSO_COLD = 5  # per cent of the tests whose jobs start warm
SIGN = "@cold"

# What a server imports, beside what all jobs need.
TORCH = ("torch", "torch._dynamo", "torch.nn.parallel", "torch.distributed")
MODULES = {"torch": TORCH, "paddle": ("paddle",), "jax": ("jax",)}
ALL = job.WARM


def pytest_configure(config: pytest.Config) -> None:
    contract.pytest_configure(config)
    if VARIABLE not in os.environ:  # a worker of pytest-xdist has it from the controller
        config.add_cleanup(Warm(ALL).close)


def pytest_report_header() -> str:
    return f"TEST_SEED={SEED}: {ALSO_COLD} % of the tests of warm jobs also run cold"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures, of which some start jobs."""
    job.LAUNCHER = needs_launcher(item)
    job.COLD = item.name.endswith(SIGN)
    job.WARM = ALL + MODULES.get(item.path.parent.name, ())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Behind each chosen test put the same test, with cold starts."""
    all_items = []
    for item in items:
        all_items.append(item)
        if isinstance(item, pytest.Function) and _chosen(item):
            all_items.append(_again(item))
    items[:] = all_items


def _chosen(item: pytest.Function) -> bool:
    warm = item.path.is_relative_to(HERE) and getattr(item.module, "job", None) is job
    drawn = int(hashlib.sha256(f"{SEED} {item.nodeid}".encode()).hexdigest(), 16) % 100
    return warm and drawn < ALSO_COLD and not needs_launcher(item)


def _again(item: pytest.Function) -> pytest.Function:
    again: pytest.Function = pytest.Function.from_parent(
        item.parent,
        name=f"{item.name}{SIGN}",
        callspec=getattr(item, "callspec", None),
        fixtureinfo=item._fixtureinfo,
        originalname=item.originalname,
    )
    again.extra_keyword_matches.add("cold")
    return again
