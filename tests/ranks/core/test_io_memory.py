"""How much memory ``paddlempi.io`` takes beside the tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import io

pytestmark = pytest.mark.mpi(min=2)

STAGED = 8 << 20
MOST = (64 << 20) + STAGED
LOCAL = 96 << 20  # bytes of a rank's part, much more than it may take


def peak(call: Callable[[], object]) -> int:
    """Return by how much the resident memory of this process has grown, at the most."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    before = memory("VmHWM")
    call()
    return memory("VmHWM") - before


def memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (text,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(text) << 10


def part(kind: str, rank: int, size: int, fill: int) -> Any:
    """Return a part of a matrix with ``fill`` in all elements; its rows have 8 KiB."""
    n = LOCAL >> 13
    if kind == "columns":  # short runs: they are exchanged
        return io.Shard(np.full((n, 1024), fill, "i8"), (n, 1024 * size), (0, 1024 * rank))
    turned = np.full((1024, n), fill, "i8").T  # its parts are copied
    local = turned if kind == "turned" else np.full((n, 1024), fill, "i8")
    return io.Shard(local, (n * size, 1024), (n * rank, 0))


@pytest.mark.parametrize("cut", ["rows", "turned", "columns"])
def test_a_save_and_a_load_take_little(
    dist: ModuleType, here: Path, rank: int, size: int, cut: str
) -> None:
    tensors = {"w": part(cut, rank, size, 7)}
    assert peak(lambda: io.save_file(tensors, here / "m")) <= MOST
    blank = {"w": part(cut, rank, size, 0)}
    assert peak(lambda: io.load_file(here / "m", blank)) <= MOST
    assert (blank["w"].array == 7).all()


def test_the_measure_sees_what_is_taken(rank: int) -> None:
    assert peak(lambda: np.ones(MOST, "u1")) > MOST - STAGED
