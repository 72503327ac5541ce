"""Builds the core, the extension module ``paddlempi._core``, with Go and cgo: see tools/build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools" / "build"))

import toolchain  # noqa: E402


class BuildCore(build_ext):
    """Runs `go build -buildmode=c-shared` for the one extension there is."""

    def build_extension(self, ext: Extension) -> None:
        tools = toolchain.find()
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            built = Path(folder, target.name)
            command = [tools.go, *_go_arguments(tools, Path(folder), built)]
            print(f"building {ext.name} with {_build_info(tools)}")
            done = subprocess.run(command, cwd=ROOT, env=toolchain.environment(tools), check=False)
            if done.returncode != 0:
                raise SystemExit(
                    f"paddlempi: `{' '.join(command)}` ended with status {done.returncode}"
                )
            # Moved in one step: a process that has the old core mapped keeps it.
            staged = target.with_name(f".{target.name}.{os.getpid()}")
            shutil.copyfile(built, staged)
            staged.chmod(0o755)
            staged.replace(target)


class TagWheel(bdist_wheel):
    """Tags the wheel by what its core needs: manylinux only where the compiler keeps that."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, plat = super().get_tag()
        return python, abi, toolchain.find().platform_tag or plat


def _go_arguments(tools: toolchain.Toolchain, folder: Path, built: Path) -> list[str]:
    script = ROOT / "capi" / "pymodule.map"
    if any(map(str.isspace, str(script))):
        # -extldflags splits at blanks; and the linker runs in a folder of its own, so that only a
        # full path will do.
        script = Path(shutil.copy(script, folder))
    ldflags = [
        "-s -w",
        f"-X 'github.com/paddlempi/paddlempi/gocore.buildInfo={_build_info(tools)}'",
        f"-extldflags '-Wl,--version-script={script}'",
    ]
    # No history and no path of this machine goes in: same sources and compilers, same bytes.
    flags = ["-buildmode=c-shared", "-trimpath", "-buildvcs=false", "-tags", "pymodule"]
    return ["build", *flags, "-ldflags", " ".join(ldflags), "-o", str(built), "./capi"]


def _build_info(tools: toolchain.Toolchain) -> str:
    cc = tools.cc_version
    if tools.platform_tag:
        cc = f"zig cc ({cc}), glibc {toolchain.ZIG_GLIBC}"
    return re.sub(r"['\"\s]+", " ", f"{tools.go_version}, {cc}")


toolchain.check_python()
# setuptools keeps what it built before in build/ and would pack a module deleted since: start from
# nothing.
scratch = tempfile.TemporaryDirectory(prefix="paddlempi-build-")
setup(
    ext_modules=[Extension("paddlempi._core", sources=[], py_limited_api=True)],
    cmdclass={"build_ext": BuildCore, "bdist_wheel": TagWheel},
    options={
        "bdist_wheel": {"py_limited_api": "cp310"},
        "build": {"build_base": scratch.name},
        "egg_info": {"egg_base": scratch.name},
    },
)
