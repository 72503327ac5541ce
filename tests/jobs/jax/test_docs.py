"""The documents' programs of JAX run as they are printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from blocks import BLOCKS, Block
from jax_job import succeed

PROGRAMS = [block for block in BLOCKS if "jax" in block.words]


def test_there_are_some() -> None:
    assert len(PROGRAMS) > 1


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_program(tmp_path: Path, block: Block) -> None:
    script = tmp_path / "program.py"
    script.write_text(block.text)
    succeed(2, script, tmp_path, mpi="node")
