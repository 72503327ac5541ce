"""The CUDA driver of a test: the fake one, unless ``PADDLEMPI_CUDA`` names a GPU's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DRIVER = Path(__file__).resolve().parents[2] / "build" / "libcuda_fake.so"


REAL = "libcuda.so.1"
"""The value of ``PADDLEMPI_CUDA`` under which the tests of the fake driver run on a GPU."""


def use(config: pytest.Config) -> None:
    """Make this process, and the processes that it starts, use the fake driver, or a GPU's."""
    config.addinivalue_line("markers", "fake_driver: what only the fake driver shows")
    path = os.environ.setdefault("PADDLEMPI_CUDA", str(DRIVER))
    if path != REAL and not Path(path).is_file():
        raise pytest.UsageError(f"there is no driver at {path}: make build/libcuda_fake.so")


def skip_without(items: list[pytest.Item]) -> None:
    """On a GPU, skip the tests that have the marker ``fake_driver``."""
    if os.environ["PADDLEMPI_CUDA"] == REAL:
        for item in items:
            if item.get_closest_marker("fake_driver"):
                item.add_marker(pytest.mark.skip("it needs the fake driver"))
