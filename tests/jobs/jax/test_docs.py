"""The programs of docs/jax.md that have a name run as they are printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from blocks import BLOCKS, Block
from jax_job import ROOT, succeed

PROGRAMS = [b for b in BLOCKS if b.page == ROOT / "docs" / "jax.md" and b.file]


def test_there_are_some() -> None:
    assert {"psum.py", "save.py"} <= {block.file for block in PROGRAMS}


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.file)
def test_program(tmp_path: Path, block: Block) -> None:
    script = tmp_path / block.file
    script.write_text(block.text)
    succeed(2, script, tmp_path, mpi="node")
