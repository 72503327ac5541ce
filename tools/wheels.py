"""Make what is published: the source distribution, and of it a wheel for each machine.

``tools/wheels.py FOLDER [MACHINE ...]`` writes them to FOLDER, from any Linux machine. The same
sources give the same bytes. ``tools/wheels.py --check FOLDER`` has them judged by auditwheel,
abi3audit, check-wheel-contents and twine. The running Python has all that either needs
(tools/requirements-wheels.txt): the compilers are not pip's of this hour, but the pinned ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "build"))

import toolchain

ROOT = toolchain.ROOT

# Not what check-wheel-contents expects, and wanted: several modules beside the package, each for a
# program that must not import the package.
NOT_CHECKED = "W009"

# The buffer protocol is in the stable ABI since 3.11. CPython 3.10 exports the same functions, with
# the same Py_buffer, and is tested.
NEWER_THAN_3_10 = {"PyBuffer_Release", "PyObject_CheckBuffer", "PyObject_GetBuffer"}

# The core, and the library that jaxlib loads as its MPI, which has nothing of Python.
LIBRARIES = 2


def make(folder: Path, machines: list[str]) -> None:
    """Write the source distribution and a wheel for each machine to an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    env = {**os.environ, "GOPROXY": "off"}  # the source distribution has the modules
    with tempfile.TemporaryDirectory() as scratch:
        code = "import backend, sys; print(backend.build_sdist(sys.argv[1]))"
        path = {"PYTHONPATH": str(ROOT / "tools" / "build")}
        sources = [sys.executable, "-c", code, scratch]
        told = subprocess.run(
            sources, cwd=ROOT, env=os.environ | path, stdout=subprocess.PIPE, text=True, check=True
        )
        archive = Path(scratch, told.stdout.split()[-1])
        # Of a folder, because pip may take the wheel that it has made of the same archive before,
        # for another machine.
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
        tree = str(archive).removesuffix(".tar.gz")
        for machine in machines:
            command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
            command += ["-w", str(folder)]
            build = env | {"PADDLEMPI_TARGET": machine}
            subprocess.run([*command, tree], env=build, check=True)
        shutil.copy(archive, folder)


def check(folder: Path) -> int:
    """Let the tools of the Python packaging authority and others judge them; the exit status."""
    wheels = sorted(map(str, folder.glob("*.whl")))
    sources = sorted(map(str, folder.glob("*.tar.gz")))
    failed = []
    for wheel in wheels:
        failed += _run("auditwheel", "show", wheel, wanted=Path(wheel).stem.rpartition("-")[2])
        failed += _stable_abi(wheel)
        failed += _run("check-wheel-contents", "--ignore", NOT_CHECKED, wheel)
    failed += _run("twine", "check", "--strict", *wheels, *sources)
    if len(wheels) != len(toolchain.TARGETS) or len(sources) != 1:
        failed.append(f"{folder} has {[*wheels, *sources]}")
    print("\n".join(failed), file=sys.stderr, end="\n" if failed else "")
    return 1 if failed else 0


def _stable_abi(wheel: str) -> list[str]:
    command = [sys.executable, "-m", "abi3audit", "--report", wheel]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    specs = json.loads(done.stdout or "{}").get("specs", {})
    found = [module["result"] for spec in specs.values() for module in spec["wheel"]]
    name = Path(wheel).name
    for result in found:
        newer = set(result["future_abi3_objects"]) - NEWER_THAN_3_10
        if newer or result["non_abi3_symbols"] or not result["is_abi3"]:
            return [f"abi3audit {name}: {result}"]
    if len(found) != LIBRARIES:
        return [f"abi3audit {name}: it looked at {len(found)} libraries"]
    print(f"abi3audit {name}: good but for the functions of the buffer protocol")
    return []


def _run(tool: str, *arguments: str, wanted: str = "") -> list[str]:
    command = [sys.executable, "-m", tool.replace("-", "_"), *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    name = " ".join([tool, *(Path(one).name for one in arguments)])
    if done.returncode != 0:
        return [f"{name}: status {done.returncode}\n{done.stdout}"]
    if wanted not in done.stdout.replace("\n", " "):
        return [f"{name}: does not say {wanted}\n{done.stdout}"]
    print(f"{name}: good")
    return []


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        sys.exit(check(Path(sys.argv[2])))
    make(Path(sys.argv[1]).resolve(), sys.argv[2:] or list(toolchain.TARGETS))
