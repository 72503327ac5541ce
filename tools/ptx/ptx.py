"""Make the PTX that the core contains from the sources in gocore/cuda/kernels.

``tools/ptx/ptx.py`` writes kernels.bz2 there. ``tools/ptx/ptx.py --texts FOLDER`` writes the text
of each module instead, to read. ``tools/ptx/ptx.py --check`` writes nothing, and names the modules
of kernels.bz2 that are not what the compiler makes of the sources. Neither a GPU nor a CUDA toolkit
is needed.

The compiler is NVRTC 11.8 of the wheel nvidia-cuda-nvrtc-cu11, because newer compilers write a
version of the PTX ISA that older drivers refuse. This compiler writes version 7.8, which needs a
driver of CUDA 11.8. The kernels use nothing that is newer than version 7.0. So their text is
changed to say 7.0, and every driver of CUDA 11.0 or newer takes them.

The kernels are compiled for compute capability 5.2, the lowest one that this compiler does not call
deprecated. The driver compiles the PTX for its device, which may have any later capability. The
operations of later capabilities would not make the kernels faster, because memory limits them.
"""

from __future__ import annotations

import argparse
import bz2
import ctypes
import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "gocore" / "cuda" / "kernels"
ARCHIVE = KERNELS / "kernels.bz2"
TEXTS = ROOT / "build" / "ptx"

ARCHITECTURE = "compute_52"
PTX_ISA = "7.0"
LIBRARY = "libnvrtc.so.11.2"  # other wheels have a newer one in a package of the same name

# No fused multiply-add, which rounds once: the sums of the host round the product and the sum.
OPTIONS = ("--std=c++11", f"--gpu-architecture={ARCHITECTURE}", "--fmad=false")


def modules() -> dict[str, tuple[Path, tuple[str, ...]]]:
    """Return every module by name, with its source and the options for this module only."""
    reduce = KERNELS / "reduce.cu"
    dtypes = re.findall(
        r"^#if WANTED\((\d+)\).*?^#define DTYPE +(\w+)", reduce.read_text(), re.M | re.S
    )
    found = {f"reduce_{name}": (reduce, (f"--define-macro=PMPI_ONLY={n}",)) for n, name in dtypes}
    return {"copy": (KERNELS / "copy.cu", ()), **found}


class NoCompiler(RuntimeError):
    """The wheel with the compiler is not installed."""


class Compiler:
    """NVRTC, called by ctypes. Its methods raise RuntimeError with the text of the compiler."""

    def __init__(self) -> None:
        try:
            spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
        except ModuleNotFoundError:  # there is no nvidia at all
            spec = None
        folders = (spec.submodule_search_locations or []) if spec else []
        found = [path for folder in folders if (path := Path(folder, "lib", LIBRARY)).is_file()]
        if not found:
            raise NoCompiler(
                "the compiler is not installed here, the wheel nvidia-cuda-nvrtc-cu11: "
                "`make generate` installs it in .venv-verify"
            )
        self._library = ctypes.CDLL(str(found[0]))

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"{name}: {self._library.nvrtcGetErrorString(status).decode()}")

    def _text(self, what: str, program: ctypes.c_void_p) -> str:
        """Return the text of nvrtcGet<what>."""
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, text)
        return text.value.decode()

    def ptx(self, source: Path, options: tuple[str, ...]) -> str:
        """Compile a source to PTX. It can include the headers of its folder."""
        headers = sorted(source.parent.glob("*.h"))
        texts = (ctypes.c_char_p * len(headers))(*(h.read_bytes() for h in headers))
        names = (ctypes.c_char_p * len(headers))(*(h.name.encode() for h in headers))
        given = [o.encode() for o in (*OPTIONS, "--disable-warnings", *options)]
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            source.read_bytes(),
            source.name.encode(),
            len(headers),
            texts,
            names,
        )
        try:
            self._call(
                "nvrtcCompileProgram", program, len(given), (ctypes.c_char_p * len(given))(*given)
            )
            return self._text("PTX", program)
        except RuntimeError as error:
            raise RuntimeError(
                f"{source.name}: {error}\n{self._text('ProgramLog', program)}"
            ) from None
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))


def finished(ptx: str, source: Path) -> str:
    """Return the text of a module: without comments, with the version of the ISA changed."""
    lines = [line.rstrip() for line in re.sub(r"//[^\n]*", "", ptx).splitlines()]
    text = "\n".join(line for line in lines if line) + "\n"
    text, versions = re.subn(r"^\.version .*$", f".version {PTX_ISA}", text, flags=re.M)
    if versions != 1:
        raise RuntimeError(f"{source.name}: {versions} lines .version in the PTX, not one")
    return f"// Generated by tools/ptx from {source.name}. DO NOT EDIT.\n{text}"


def packed(texts: dict[str, str]) -> bytes:
    """Return what the core contains: the texts behind each other, each after a line with its name.

    Compressed together they take 0.09 MB of the wheel, 0.03 MB less than each by itself.
    """
    lines = [f"//# {name}\n{text}" for name, text in sorted(texts.items())]
    return bz2.compress("".join(lines).encode(), 9)


def unpacked(archive: bytes) -> dict[str, str]:
    """Return the text of each module by name, from what :func:`packed` made."""
    parts = bz2.decompress(archive).decode().split("//# ")[1:]
    named = (part.partition("\n") for part in parts)
    return {name: text for name, _, text in named}


def compiled() -> dict[str, str]:
    """Return the text of each module by name, as the compiler makes it of the sources."""
    compiler = Compiler()
    return {
        name: finished(compiler.ptx(source, options), source)
        for name, (source, options) in modules().items()
    }


def differing(archive: bytes, texts: dict[str, str]) -> list[str]:
    """Return the names of the modules that an archive lacks, has too many, or has another text of.

    The bytes of an archive may depend on the library that packs it. So the texts are compared.
    """
    have = unpacked(archive)
    return sorted(n for n in have.keys() | texts.keys() if have.get(n) != texts.get(n))


def write_texts(folder: Path, texts: dict[str, str]) -> None:
    """Write each module's text into a folder, in which no other text stays."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_texts(folder)
    for name, text in texts.items():
        (folder / f"{name}.ptx").write_text(text)
    print(f"{len(texts)} modules: {folder}/*.ptx")


def remove_texts(folder: Path) -> None:
    """Remove the texts of a folder. Beside the sources, older versions of this tool left them."""
    for path in folder.glob("*.ptx"):
        path.unlink()


def main(arguments: list[str]) -> int:
    """Write the archive or the texts, or check the archive. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="write nothing; fail on a stale archive")
    what.add_argument(
        "--texts",
        metavar="FOLDER",
        nargs="?",
        type=Path,
        const=TEXTS,
        help="write the texts into a folder instead (default: build/ptx)",
    )
    options = parser.parse_args(arguments)
    try:
        texts = compiled()
    except NoCompiler as reason:
        print(f"tools/ptx: {reason}", file=sys.stderr)
        return 1
    if options.texts:
        write_texts(options.texts, texts)
        return 0
    stale = differing(ARCHIVE.read_bytes(), texts) if ARCHIVE.is_file() else sorted(texts)
    if options.check:
        if stale:
            print(
                f"tools/ptx: kernels.bz2 is not up to date with the kernels' sources: "
                f"{', '.join(stale)}; run make generate and commit the result",
                file=sys.stderr,
            )
        return 1 if stale else 0
    if stale:
        ARCHIVE.write_bytes(packed(texts))
    remove_texts(KERNELS)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
