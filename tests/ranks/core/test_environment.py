"""torchrun's variables, derived from those of the real launcher. Needs no torch."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import pytest
import torch_environment


def test_variables_are_those_of_mpi(
    dist: ModuleType, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*torch_environment.NAMES, "PADDLEMPI_FILLED"):
        monkeypatch.setenv(name, "")  # so that pytest restores it afterwards
        monkeypatch.delenv(name)
    environment = torch_environment.load()
    environment.fill()
    found = {name: os.environ[name] for name in torch_environment.NAMES}
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, (found.pop("MASTER_ADDR"), found.pop("MASTER_PORT")))
    assert len(set(everyone)) == 1, "the ranks derived different addresses"
    assert found == {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(dist.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(dist.get_local_size()),
        "GROUP_RANK": "0",
    }
    assert environment.contradiction(rank, size) is None
