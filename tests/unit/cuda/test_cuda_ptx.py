"""The committed PTX: which drivers and devices take it, and whether a kernel is missing."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
from paddlempi import _ops

KERNELS = Path(__file__).resolve().parents[3] / "gocore" / "cuda" / "kernels"
MODULES = sorted(KERNELS.glob("*.ptx"))
STRIDED = {f"pmpi_copy_strided_{size}" for size in (1, 2, 4, 8, 16)}


def wanted(dtype: _ops.DType) -> set[str]:
    """Return the names of the kernels that the module of a dtype must have."""
    return {
        f"pmpi_reduce_{dtype.label}_{op.name.lower()}"
        for op in _ops.ReduceCode
        if dtype in _ops.DEFINED[op]
    }


def kernels(text: str) -> dict[str, str]:
    """Return the text of each kernel, by name."""
    parts = re.split(r"^\.visible \.entry (\w+)\(", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_there_is_a_module_for_each_dtype_that_is_reduced() -> None:
    reduced = {f"reduce_{dtype.label}" for dtype in _ops.DType if wanted(dtype)}
    assert {path.stem for path in MODULES} == reduced | {"copy"}


def test_every_reduction_that_is_defined_has_a_kernel() -> None:
    for dtype in _ops.DType:
        if names := wanted(dtype):
            found = kernels((KERNELS / f"reduce_{dtype.label}.ptx").read_text())
            assert found.keys() == names
    assert kernels((KERNELS / "copy.ptx").read_text()).keys() == STRIDED


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_old_drivers_and_devices_take_it(path: Path) -> None:
    text = path.read_text()
    (version,) = re.findall(r"^\.version (\d+)\.(\d+)$", text, re.MULTILINE)
    assert tuple(map(int, version)) <= (7, 8), "the driver of CUDA 11.8 takes PTX up to 7.8"
    (target,) = re.findall(r"^\.target sm_(\d+)$", text, re.MULTILINE)
    assert int(target) <= 60
    # A fused multiply-add rounds once. The host rounds twice.
    assert not re.search(r"\bfma\.|\bmad\.\w+\.f", text)
    # A thread's local memory is as slow as global memory, so nothing may lie there.
    assert not re.search(r"\.local|\bcall\b", text)


@pytest.mark.parametrize("dtype", [d for d in _ops.DType if wanted(d)], ids=lambda d: d.label)
def test_packs_go_whole(dtype: _ops.DType) -> None:
    for name, text in kernels((KERNELS / f"reduce_{dtype.label}.ptx").read_text()).items():
        loads = re.findall(r"\bld\.global\.(?:v4\.\w32|v2\.\w64)\b", text)
        assert len(loads) == 4, f"{name} must load the packs of four sources at once"
        assert text.count("st.global.v4.u32") == 1, name


def assembler() -> str:
    """Return the path of Triton's ptxas. Triton comes with torch. Skip the test without it."""
    spec = importlib.util.find_spec("triton")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder, "backends/nvidia/bin/ptxas")).is_file():
            return str(path)
    pytest.skip("Triton, which brings an assembler of PTX, is not installed")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_it_assembles_and_no_register_is_spilled(path: Path, tmp_path: Path) -> None:
    command = [assembler(), "-v", "-arch=sm_90", "-o", str(tmp_path / "out.cubin"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    kept = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", done.stderr)
    assert len(kept) == len(kernels(path.read_text())), done.stderr
    assert set(kept) == {("0", "0")}, done.stderr
    # With 64 registers, 4 blocks of 256 threads run at once on a multiprocessor with 65536.
    assert all(int(n) <= 64 for n in re.findall(r"Used (\d+) registers", done.stderr))
