"""Tensor-parallel inference over two hosts: transformers cuts the layers of a model."""

from __future__ import annotations

import pytest
import reports
from conftest import ALL
from hosts import Hosts
from mpis import MPI


@pytest.mark.parametrize("layout", list(reports.LAYOUTS)[: None if ALL else 1])
def test_tokens_are_those_of_one_process(openmpi: MPI, hosts: Hosts, layout: str) -> None:
    if not reports.has(openmpi, "transformers"):
        pytest.skip("transformers is not installed")
    found = reports.of_all(openmpi, hosts, layout, "ranks_generate.py", timeout=300)
    assert {(r["backend"], r["transport"]) for r in found} == {("mpi", "mpi")}
    assert len({r["host"] for r in found}) == 2
    for report in found:
        assert report["part"] < 0.8, "the layers are cut"
        assert len(set(report["tokens"])) > 10
        assert report["tokens"] == report["alone"] == found[0]["alone"]
