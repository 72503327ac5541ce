"""Fixtures that hide from the garbage collector what there is before a module of tests.

To look through a framework takes 0.3 s each time. A conftest imports them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def thaw() -> Iterator[None]:
    """Give back to the collector what was hidden. Else Triton says what was never freed."""
    yield
    gc.unfreeze()


@pytest.fixture(scope="module", autouse=True)
def freeze(thaw: None) -> None:
    """Free what earlier modules have left, and hide the rest."""
    gc.collect()
    gc.freeze()
