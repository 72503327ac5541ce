"""Make an environment of aarch64 on an x86-64 machine, for the tests.

``tools/aarch64.py DEBIAN ENVIRONMENT WHEEL REQUIREMENT ...``: its ``bin/python`` runs Debian's
arm64 Python, which tools/debian_arm64.sh has unpacked into DEBIAN, by qemu-user. It has the wheel
of paddlempi for aarch64, and from PyPI the aarch64 wheels of the requirements and of MPICH. Its
``bin/mpirun`` is of x86-64, and starts ``bin/python`` as any program. QEMU_FLAGS are further words
for qemu, as ``-p 65536`` (the size of a page) or ``-cpu cortex-a53``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# What the wheels of MPICH say: they want this glibc or a newer one, which Debian's is.
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")

# -0: Python finds its environment by the path that it was started with. qemu has no
# process_vm_readv, which MPICH takes for granted.
PYTHON = """#!/bin/sh
debian={debian}
export MPIR_CVAR_CH4_CMA_ENABLE=0
exec $debian/qemu-aarch64-static $QEMU_FLAGS -L $debian/root -0 "$0" \\
    $debian/root/usr/bin/python3.11 "$@"
"""

CONFIG = """home = {debian}/root/usr/bin
include-system-site-packages = false
version = 3.11
"""


def make(debian: Path, environment: Path, wheel: Path, requirements: list[str]) -> None:
    """Make the environment in a new folder."""
    shutil.rmtree(environment, ignore_errors=True)
    packages = environment / "lib" / "python3.11" / "site-packages"
    (environment / "bin").mkdir(parents=True)
    packages.mkdir(parents=True)
    (environment / "pyvenv.cfg").write_text(CONFIG.format(debian=debian))
    python = environment / "bin" / "python"
    python.write_text(PYTHON.format(debian=debian))
    python.chmod(0o755)
    aarch64 = ["--python-version", "3.11", "--only-binary", ":all:"]
    aarch64 += [word for name in PLATFORMS for word in ("--platform", f"{name}_aarch64")]
    _pip("install", "--target", str(packages), *aarch64, str(wheel), *requirements)
    _fill_up(packages / "paddlempi" / "_core.abi3.so")
    with tempfile.TemporaryDirectory() as scratch:
        _pip("download", "--no-deps", "--dest", f"{scratch}/aarch64", *aarch64, "mpich")
        _pip("download", "--no-deps", "--dest", f"{scratch}/x86_64", "mpich")
        _unpack(next(Path(scratch, "aarch64").glob("*.whl")), environment, "lib")
        _unpack(next(Path(scratch, "x86_64").glob("*.whl")), environment, "bin")


def _fill_up(core: Path) -> None:
    """Fill a library up to whole pages of 64 KiB.

    qemu maps files by the pages of this machine: it has no memory behind the end of a file, where a
    kernel with such pages has the rest of the last one, and the library its variables.
    """
    size = core.stat().st_size
    os.truncate(core, -(-size // 65536) * 65536)


def _pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)


def _unpack(wheel: Path, environment: Path, folder: str) -> None:
    """Unpack what a wheel has for a folder of the environment: pip would serve one machine."""
    sign = f".data/data/{folder}/"
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            if sign in name and not name.endswith("/"):
                to = environment / folder / name.partition(sign)[2]
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(packed.read(name))
                to.chmod(0o755)


if __name__ == "__main__":
    here, there, built = (Path(os.path.abspath(word)) for word in sys.argv[1:4])
    make(here, there, built, sys.argv[4:])
