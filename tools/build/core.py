"""Build the core with `go build -buildmode=c-shared`: the extension module or a plain library.

`python tools/build/core.py PATH/libpaddlempi.so` builds the library for C programs.
`python tools/build/core.py --id` prints the build id of the sources: that of every core that was
built of them (`python -m paddlempi info`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import toolchain

# Rooms of gocore for which the same holds as for _SMALL.
_SMALL_ROOMS = (
    *(
        "cgroup",
        "control",
        "crash",
        "cuda",
        "descriptors",
        "diagnose",
        "dl",
        "heap",
        "join",
        "launcher",
        "lifecycle",
        "liveness",
    ),
    *("method", "netif", "pmi", "ps/admin/...", "ps/checkpoint", "ps/client", "ps/link"),
    *("ps/master", "ps/request", "ps/route", "ps/server", "ps/table", "rollcall", "segment"),
    *("status", "topo", "trace", "trace/cpu"),
)

# What no operation passes, or only with a call or two: mostly what the administration of parameter
# servers needs, the beginning, and texts. Without inlining it takes 0.8 MB less.
_SMALL = (
    *("google.golang.org/...", "golang.org/x/...", "vendor/...", "crypto/...", "net/..."),
    *("bufio", "bytes", "compress/...", "context", "encoding/asn1", "encoding/base64"),
    *("encoding/hex", "encoding/json", "encoding/pem", "fmt", "go/token", "hash/fnv", "io/..."),
    *("internal/bisect", "internal/fmtsort", "internal/godebug", "internal/poll"),
    *("internal/reflectlite", "internal/strconv", "internal/syscall/...", "log/...", "math/big"),
    *("math/rand", "mime/...", "os/...", "path/...", "reflect", "regexp/...", "sort", "strconv"),
    *("strings", "syscall", "text/...", "time", "unicode/..."),
    *("github.com/paddlempi/paddlempi/gocore/" + room for room in _SMALL_ROOMS),
    "github.com/paddlempi/paddlempi/gocore",
)


PROGRESS_EVERY = 10  # seconds between lines that say how far go is

# The kinds of files that the core is made from.
_SOURCES = (".go", ".c", ".h", ".s", ".map", ".bz2")


def build(target: Path, *, pymodule: bool) -> None:
    """Write the core to ``target``: Python's extension module, or the library without Python."""
    tools = toolchain.find()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, target.name)
        command = [tools.go, *_arguments(tools, Path(folder), built, pymodule)]
        if status := _compile(command, toolchain.environment(tools)):
            said = f"ended with status {status}; its output says why"
            raise toolchain.ToolchainError(f"`{' '.join(command)}` {said}")
        # Replaced in one step, so that a process that has mapped the old file keeps it.
        staged = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(built, staged)
        staged.chmod(0o755)
        staged.replace(target)


def _compile(command: list[str], env: dict[str, str]) -> int:
    """Run go, and say now and then how far it is. Return its status."""
    began = told = time.monotonic()
    compiled = 0
    with subprocess.Popen(
        command, cwd=toolchain.ROOT, env=env, stderr=subprocess.PIPE, text=True
    ) as go:
        assert go.stderr is not None
        for line in go.stderr:
            if not re.fullmatch(r"[\w./-]+\n", line):  # what it downloads, or what is wrong
                print(line, end="", file=sys.stderr, flush=True)
                continue
            compiled += 1  # -v names each package that it compiles
            if (now := time.monotonic()) - told >= PROGRESS_EVERY:
                print(f"{now - began:3.0f} s: {compiled} packages compiled", flush=True)
                told = now
    return go.returncode


def build_trampoline(target: Path) -> None:
    """Write the library that jaxlib loads as its MPI to ``target``. It is C without Go."""
    tools = toolchain.find()
    sources = sorted(map(str, (toolchain.ROOT / "capi" / "trampoline").glob("*.c")))
    flags = ["-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread"]
    flags += ["-Wl,--strip-all", f"-Wl,-soname,{target.name}"]
    staged = target.with_name(f".{target.name}.{os.getpid()}")
    command = [*tools.cc, *flags, "-o", str(staged), *sources]
    done = subprocess.run(command, env=toolchain.environment(tools), check=False)
    if done.returncode != 0:
        status = f"ended with status {done.returncode}"
        raise toolchain.ToolchainError(f"`{' '.join(command)}` {status}; its output says why")
    staged.replace(target)


def vendor(target: Path) -> None:
    """Write the sources of the modules in go.mod to ``target``, as go looks for them in vendor/."""
    present = toolchain.ROOT / "vendor"
    if present.is_dir():  # this tree is a source distribution itself
        shutil.copytree(present, target)
        return
    go = toolchain.find_go()
    command = [go, "mod", "vendor", "-o", str(target)]
    env = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": ""}
    done = subprocess.run(command, cwd=toolchain.ROOT, env=env, check=False)
    if done.returncode != 0:
        status = f"ended with status {done.returncode}"
        raise toolchain.ToolchainError(
            f"`{' '.join(command)}` {status}; its output says why. A source distribution contains "
            "the Go modules of go.mod: they must be in go's cache, or GOPROXY must be reachable"
        )


def _arguments(tools: toolchain.Toolchain, folder: Path, built: Path, pymodule: bool) -> list[str]:
    script = toolchain.ROOT / "capi" / ("pymodule.map" if pymodule else "libpaddlempi.map")
    if any(map(str.isspace, str(script))):
        # -extldflags splits at blanks. The copy needs an absolute path, because the linker runs in
        # another folder.
        script = Path(shutil.copy(script, folder))
    # Go's -s is not enough for zig: it is followed by -g, which takes it back.
    external = f"-Wl,--version-script={script} -Wl,--strip-all"
    if not pymodule:
        external += f" -Wl,-soname,{built.name}"
    ldflags = [
        "-s -w",
        # Go's own depends on the folders of the compilers and of the version script.
        f"-buildid={build_id()}",
        f"-X 'github.com/paddlempi/paddlempi/gocore/control.buildInfo={info(tools)}'",
        f"-X 'github.com/paddlempi/paddlempi/gocore/control.buildID={build_id()}'",
        f"-extldflags '{external}'",
    ]
    # These tags replace those of the environment.
    tags = ",".join([*toolchain.TAGS, *(["pymodule"] if pymodule else [])])
    flags = ["-buildmode=c-shared", "-buildvcs=false", *compiling(), "-tags", tags]
    return ["build", "-v", *flags, "-ldflags", " ".join(ldflags), "-o", str(built), "./capi/main"]


def compiling() -> list[str]:
    """Return the flags with which go compiles the packages of the core."""
    # Without commit and paths, the same sources and compilers give the same bytes on any machine.
    return ["-trimpath", *(f"-gcflags={packages}=-l" for packages in _SMALL)]


def info(tools: toolchain.Toolchain) -> str:
    """Return the compilers and their versions, as the core reports them."""
    cc = tools.cc_version
    if tools.platform_tag:
        cc = f"zig cc ({cc}), glibc {toolchain.ZIG_GLIBC}"
    return re.sub(r"['\"\s]+", " ", f"{tools.go_version}, {cc}")


def build_id() -> str:
    """Return 12 hexadecimal digits that name the sources of the core, wherever the tree is.

    Tests are no part of them, nor is what a tool has left in the tree.
    """
    files = [
        path
        for folder in ("capi", "gocore")
        for path in (toolchain.ROOT / folder).rglob("*")
        if path.suffix in _SOURCES and not path.name.endswith("_test.go")
    ]
    files += [toolchain.ROOT / name for name in ("go.mod", "go.sum")]
    whole = hashlib.sha256()
    for name, path in sorted((path.relative_to(toolchain.ROOT).as_posix(), path) for path in files):
        whole.update(f"{name}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:12]


if __name__ == "__main__" and sys.argv[1:] == ["--id"]:
    print(build_id())
elif __name__ == "__main__":
    build(Path(sys.argv[1]).resolve(), pymodule=False)
