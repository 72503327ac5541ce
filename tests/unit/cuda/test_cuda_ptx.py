"""The PTX in kernels.bz2: which drivers and devices take it, and whether a kernel is missing."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from paddlempi import _ops

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools" / "ptx"))

import ptx

TEXTS = ptx.unpacked(ptx.ARCHIVE.read_bytes())
MODULES = sorted(TEXTS)
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
    assert set(MODULES) == reduced | {"copy"}


def test_every_reduction_that_is_defined_has_a_kernel() -> None:
    for dtype in _ops.DType:
        if names := wanted(dtype):
            found = kernels(TEXTS[f"reduce_{dtype.label}"])
            assert found.keys() == names
    assert kernels(TEXTS["copy"]).keys() == STRIDED


@pytest.mark.parametrize("module", MODULES)
def test_old_drivers_and_devices_take_it(module: str) -> None:
    text = TEXTS[module]
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
    for name, text in kernels(TEXTS[f"reduce_{dtype.label}"]).items():
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


@pytest.mark.parametrize("module", MODULES)
def test_it_assembles_and_no_register_is_spilled(module: str, tmp_path: Path) -> None:
    path = tmp_path / f"{module}.ptx"
    path.write_text(TEXTS[module])
    command = [assembler(), "-v", "-arch=sm_90", "-o", str(tmp_path / "out.cubin"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    kept = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", done.stderr)
    assert len(kept) == len(kernels(TEXTS[module])), done.stderr
    assert set(kept) == {("0", "0")}, done.stderr
    # With 64 registers, 4 blocks of 256 threads run at once on a multiprocessor with 65536.
    assert all(int(n) <= 64 for n in re.findall(r"Used (\d+) registers", done.stderr))


def test_the_archive_is_what_the_compiler_makes_of_the_sources() -> None:
    try:
        texts = ptx.compiled()
    except ptx.NoCompiler as reason:
        pytest.skip(str(reason))
    assert ptx.differing(ptx.ARCHIVE.read_bytes(), texts) == []


def test_what_is_packed_can_be_unpacked_and_compared() -> None:
    texts = {"a": "// a\n1\n", "b": "2\n"}
    archive = ptx.packed(texts)
    assert ptx.unpacked(archive) == texts
    assert ptx.differing(archive, texts) == []
    assert ptx.differing(archive, {"a": "changed\n", "c": "new\n"}) == ["a", "b", "c"]


def made() -> dict[str, str]:
    """Stand for the compiler, whose text of one module is another one."""
    return {**TEXTS, "copy": "// another text\n"}


def test_a_check_names_the_module_that_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ptx, "compiled", made)
    assert ptx.main(["--check"]) == 1
    assert "with the kernels' sources: copy; run make generate" in capsys.readouterr().err
    monkeypatch.setattr(ptx, "compiled", lambda: TEXTS)
    assert ptx.main(["--check"]) == 0
    assert capsys.readouterr() == ("", "")


def test_what_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ptx, "compiled", made)
    monkeypatch.setattr(ptx, "KERNELS", tmp_path)
    monkeypatch.setattr(ptx, "ARCHIVE", tmp_path / "kernels.bz2")
    (tmp_path / "stale.ptx").touch()
    assert ptx.main([]) == 0  # also where there is no archive yet
    assert [path.name for path in tmp_path.iterdir()] == ["kernels.bz2"]
    assert ptx.unpacked((tmp_path / "kernels.bz2").read_bytes()) == made()
    folder = tmp_path / "to" / "read"
    for _ in range(2):
        assert ptx.main(["--texts", str(folder)]) == 0
        assert {path.stem: path.read_text() for path in folder.iterdir()} == made()
        (folder / "stale.ptx").touch()
    assert f"{folder}/*.ptx" in capsys.readouterr().out


def test_a_missing_compiler_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ptx.importlib.util, "find_spec", lambda name: None)
    assert ptx.main(["--check"]) == 1
    said = capsys.readouterr().err
    assert "nvidia-cuda-nvrtc-cu11" in said and said.count("\n") == 1, said
