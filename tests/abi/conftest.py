"""The programs that the ABI tests run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from abi_here import ROOT, go, tools_python


@pytest.fixture(scope="session")
def compiler() -> dict[str, str]:
    """The environment variables that make an mpicc call the build's C compiler."""
    source = "import toolchain; print(*toolchain.find().cc, sep='\\n')"
    words = subprocess.run(
        [tools_python(), "-c", source],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tools/build")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.split("\n")
    cc = " ".join(words[: words.index("-target")] if "-target" in words else words).strip()
    return {"OMPI_CC": cc, "MPICH_CC": cc}


@pytest.fixture(scope="session")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built program tests/abi/dump."""
    return _build("dump", tmp_path_factory)


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built program tests/abi/probe."""
    return _build("probe", tmp_path_factory)


def _build(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("go") / name
    go("build", "-o", str(program), f"./tests/abi/{name}")
    return program
