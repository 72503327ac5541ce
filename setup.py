"""Build the core, the extension module ``paddlempi._core``, with Go and cgo: see tools/build."""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools" / "build"))

import core
import toolchain


class BuildCore(build_ext):
    """Builds the only extension, with Go instead of a C compiler alone, and a library beside it."""

    def build_extension(self, ext: Extension) -> None:
        print(f"building {ext.name} with {core.info(toolchain.find())}")
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        core.build(target, pymodule=True)
        core.build_trampoline(target.with_name("libpaddlempi_trampoline.so"))


class VendorModules(sdist):
    """Adds the Go modules that the core uses, so that a build needs no module proxy."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        core.vendor(Path(base_dir, "vendor").resolve())


class TagWheel(bdist_wheel):
    """Tags the wheel as manylinux if the C compiler guarantees that, else for this platform.

    It compresses the wheel with the highest level of deflate, which setuptools cannot be told.
    """

    def run(self) -> None:
        super().run()
        _, _, name = self.distribution.dist_files[-1]
        wheel = Path(name)
        tight = wheel.with_suffix(".tight")
        with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(tight, "w") as new:
            for info in old.infolist():
                new.writestr(info, old.read(info), compresslevel=9)
        tight.replace(wheel)

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, plat = super().get_tag()
        return python, abi, toolchain.find().platform_tag or plat


toolchain.check_python()
# An empty build folder: setuptools would also pack old modules that it finds in build/.
scratch = tempfile.TemporaryDirectory(prefix="paddlempi-build-")
setup(
    ext_modules=[Extension("paddlempi._core", sources=[], py_limited_api=True)],
    cmdclass={"build_ext": BuildCore, "bdist_wheel": TagWheel, "sdist": VendorModules},
    options={
        "bdist_wheel": {"py_limited_api": "cp310"},
        "build": {"build_base": scratch.name},
        "egg_info": {"egg_base": scratch.name},
    },
)
