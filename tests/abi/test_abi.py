"""The constants of every ABI against the real headers, and mpi.Library with every MPI."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from abi_here import Header, Library, headers, libraries
from paddlempi.testing import run

HERE = Path(__file__).resolve().parent
_IDS = {"ids": lambda value: getattr(value, "name", str(value))}


def _check(
    header: Header, constants: str, compiler: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    (folder / "constants.h").write_text(constants)
    program = folder / "check"
    subprocess.run(
        [
            str(header.mpicc),
            f"-I{folder}",
            str(HERE / "check_constants.c"),
            "-o",
            str(program),
            "-ldl",
        ],
        env={**os.environ, **compiler},
        check=True,
        timeout=120,
    )
    return subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=False)


def _dump(dump: Path, abi: str) -> str:
    return subprocess.run(
        [str(dump), abi], capture_output=True, text=True, timeout=60, check=True
    ).stdout


@pytest.mark.parametrize("header", headers(), **_IDS)
def test_constants_are_those_of_the_header(
    header: Header, dump: Path, compiler: dict[str, str], tmp_path: Path
) -> None:
    result = _check(header, _dump(dump, header.abi), compiler, tmp_path)
    assert result.returncode == 0, result.stdout
    counted = re.search(r"checked (\d+)", result.stdout)
    assert counted and int(counted[1]) > 100, result.stdout
    if not header.name.startswith("system"):  # the wheels' MPIs are new: nothing may lack
        assert "absent" not in result.stdout


@pytest.mark.parametrize("header", headers(), **_IDS)
def test_checker_notices_a_wrong_constant(
    header: Header, dump: Path, compiler: dict[str, str], tmp_path: Path
) -> None:
    constants = _dump(dump, header.abi)
    for right, wrong in (
        ("INT(MPI_ERR_TRUNCATE, ", "INT(MPI_ERR_TRUNCATE, 100 + "),
        ("MEMBER(MPI_TAG, ", "MEMBER(MPI_TAG, 4 + "),
        ("HANDLE(MPI_INT32_T, ", "HANDLE(MPI_INT32_T, 1 + "),
        ('SYMBOL(MPI_INT32_T, "ompi_mpi_int32_t', 'SYMBOL(MPI_INT32_T, "ompi_mpi_int16_t'),
    ):
        constants = constants.replace(right, wrong)
    result = _check(header, constants, compiler, tmp_path)
    assert result.returncode == 1, result.stdout
    for name in ("MPI_ERR_TRUNCATE", "MPI_Status.MPI_TAG", "MPI_INT32_T"):
        assert f"{name}: " in result.stdout


def _probe(probe: Path, library: Library, np: int, *flags: str, timeout: float = 60) -> str:
    result = run(
        np,
        [
            str(probe),
            *("-mpi", str(library.path), "-abi", library.abi, "-name", library.mpi),
            *flags,
        ],
        mpi=str(library.mpirun),
        timeout=timeout,
    )
    assert not result.timed_out, result.output
    if result.output.strip().endswith("passed"):  # rank 0 says so; the others' end counts, too
        assert result.returncode == 0, result.output
    return result.output


@pytest.mark.parametrize("np", [1, 2, 3])
@pytest.mark.parametrize("library", libraries(), **_IDS)
def test_library(library: Library, np: int, probe: Path) -> None:
    # The wheels also move one message of 2^31 + 3 bytes in their own ABI. It takes 4 GiB.
    large = ["-large"] if np == 2 and library.name in ("openmpi", "mpich", "impi") else []
    assert _probe(probe, library, np, *large).strip().endswith("passed")


@pytest.mark.parametrize("library", libraries(), **_IDS)
def test_library_that_another_initialised(library: Library, probe: Path) -> None:
    level = 4096 if library.abi == "standard" else 3
    # MPI's communicators keep their owner's error handlers, so an error of MPI would end the job.
    output = _probe(probe, library, 2, "-owner", "other", "-level", str(level))
    assert output.strip().endswith("passed")


@pytest.mark.parametrize("library", libraries(), **_IDS)
def test_thread_level_of_another_owner_is_too_low(library: Library, probe: Path) -> None:
    output = _probe(probe, library, 1, "-owner", "other")
    assert "open: 7 " in output  # status.ThreadLevel
    assert "mpi4py.rc.thread_level" in output
    assert str(library.path) in output
