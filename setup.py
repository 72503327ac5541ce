"""Build the core, the extension module ``paddlempi._core``, with Go and cgo: see tools/build."""

from __future__ import annotations

import gzip
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools" / "build"))

import core
import links
import sbom
import toolchain

# The date of all files in archives, the first that a zip can have: the same sources give the same
# bytes, whenever they are built.
DATE = (1980, 1, 1, 0, 0, 0)
DATE_SECONDS = 315532800


class BuildCore(build_ext):
    """Builds the only extension, with Go instead of a C compiler alone, and a library beside it."""

    def build_extension(self, ext: Extension) -> None:
        # Shown by `pip install -v`; without it pip shows nothing of a build.
        print(f"compiling {ext.name} with {core.info(toolchain.find())}:")
        print("1 to 2 minutes on 2 cores, a few seconds if Go has compiled it before", flush=True)
        began = time.monotonic()
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        core.build(target, pymodule=True)
        print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
        core.build_trampoline(target.with_name("libpaddlempi_trampoline.so"))


class Sources(sdist):
    """Adds the Go modules that the core uses, so that a build needs no module proxy.

    The archive has neither dates nor owners, and its files are sorted.
    """

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        core.vendor(Path(base_dir, "vendor").resolve())

    def make_archive(  # type: ignore[no-untyped-def]
        self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None
    ):
        if format != "gztar":
            raise ValueError(f"format={format!r}: a source distribution is a gztar (PEP 625)")
        folder, archive = Path(base_dir), f"{base_name}.tar.gz"
        with (
            open(archive, "wb") as raw,
            gzip.GzipFile("", "wb", mtime=DATE_SECONDS, fileobj=raw) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for path in sorted(folder.rglob("*")):
                tar.add(path, recursive=False, filter=_anonymous)
        return archive


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime, member.uid, member.gid, member.uname, member.gname = DATE_SECONDS, 0, 0, "", ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


class Wheel(bdist_wheel):
    """Tags the wheel as manylinux if the C compiler guarantees that, else for this platform.

    It adds the bill of materials. It compresses the wheel with the highest level of deflate, which
    setuptools cannot be told, and writes no dates.
    """

    def write_wheelfile(self, folder: str, *arguments: str) -> None:
        super().write_wheelfile(folder, *arguments)
        built = Path(str(self.bdist_dir), "paddlempi", "_core.abi3.so")
        if built.is_file():  # not in an editable install, whose core stays in the tree
            name, version = self.distribution.get_name(), self.distribution.get_version()
            sbom.write(Path(folder, "sboms"), built, name, version)

    def run(self) -> None:
        super().run()
        _, _, name = self.distribution.dist_files[-1]
        wheel = Path(name)
        tight = wheel.with_suffix(".tight")
        with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(tight, "w") as new:
            for info in old.infolist():
                kept = zipfile.ZipInfo(info.filename, DATE)
                kept.compress_type = zipfile.ZIP_DEFLATED
                # As for a umask of 022: only the core may be executable.
                mode = 0o755 if info.external_attr >> 16 & 0o100 else 0o644
                kept.external_attr = (0o100000 | mode) << 16
                new.writestr(kept, old.read(info), compresslevel=9)
        tight.replace(wheel)

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, plat = super().get_tag()
        return python, abi, toolchain.find().platform_tag or plat


toolchain.check_python()
# An empty build folder: setuptools would also pack old modules that it finds in build/.
scratch = tempfile.TemporaryDirectory(prefix="paddlempi-build-")
readme = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
setup(
    verbose=False,  # `pip install -v` shows how far the core is, not every file that is copied
    long_description=links.absolute(readme, "README.md"),
    long_description_content_type="text/markdown",
    ext_modules=[Extension("paddlempi._core", sources=[], py_limited_api=True)],
    cmdclass={"build_ext": BuildCore, "bdist_wheel": Wheel, "sdist": Sources},
    options={
        "bdist_wheel": {"py_limited_api": "cp310"},
        "build": {"build_base": scratch.name},
        "egg_info": {"egg_base": scratch.name},
    },
)
