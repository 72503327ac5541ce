"""torchrun's variables, derived from those of the real launcher. Needs no torch."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import pytest
import torch_environment
from ranks_tools import needs_mpi, over_nodes


def test_variables_are_those_of_mpi(
    dist: ModuleType, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*torch_environment.NAMES, "PADDLEMPI_FILLED"):
        monkeypatch.setenv(name, "")  # so that pytest restores it afterwards
        monkeypatch.delenv(name)
    needs_mpi()  # else who started the ranks has set them
    environment = torch_environment.load()
    environment.fill()
    found = {name: os.environ[name] for name in torch_environment.NAMES}
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, (found.pop("MASTER_ADDR"), found.pop("MASTER_PORT")))
    if not over_nodes():  # there the address is a guess
        assert len(set(everyone)) == 1, "the ranks derived different addresses"
        assert found.pop("GROUP_RANK") == "0"
    found.pop("GROUP_RANK", None)
    assert found == {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(dist.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(dist.get_local_size()),
    }
    assert environment.contradiction(rank, size) is None
