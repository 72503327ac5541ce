"""The fake CUDA driver, for tests on a machine without a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DRIVER = Path(__file__).resolve().parents[2] / "build" / "libcuda_fake.so"


def use() -> None:
    """Make this process, and the processes that it starts, use the fake driver."""
    os.environ.setdefault("PADDLEMPI_CUDA", str(DRIVER))
    if not Path(os.environ["PADDLEMPI_CUDA"]).is_file():
        raise pytest.UsageError(
            f"there is no driver at {os.environ['PADDLEMPI_CUDA']}: make build/libcuda_fake.so"
        )
