"""Generate the Go code of the parameter server's gRPC service from its .proto.

``tools/pspb.py`` writes the files; ``tools/pspb.py --check`` writes nothing and fails when they are
not up to date. protoc is that of the wheel grpcio-tools. Its plugin for messages has the version of
the protobuf module in go.mod, so that generated code and library fit; the one for services is
pinned here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "build"))

import toolchain

FOLDER = "gocore/ps/admin/pspb"
SOURCE = "admin.proto"
MESSAGES = "google.golang.org/protobuf/cmd/protoc-gen-go"
SERVICES = "google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2"


def plugins(folder: Path) -> None:
    """Build the two plugins into a folder."""
    tools = toolchain.find()
    # They do not become part of the core: C compiler and flags of the build are not for them.
    env = {**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOBIN": str(folder)}
    for package in (MESSAGES, SERVICES):
        subprocess.run([tools.go, "install", package], cwd=toolchain.ROOT, env=env, check=True)


def generate(folder: Path) -> dict[str, bytes]:
    """Return the generated files by name. ``folder`` is empty scratch space."""
    plugins(folder)
    out = folder / "out"
    out.mkdir()
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{FOLDER}"]
    for kind in ("go", "go-grpc"):
        command += [f"--plugin={folder / f'protoc-gen-{kind}'}"]
        command += [f"--{kind}_out={out}", f"--{kind}_opt=paths=source_relative"]
    subprocess.run([*command, SOURCE], cwd=toolchain.ROOT, check=True)
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def main(arguments: list[str]) -> int:
    """Write or check the generated files; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail on stale files")
    check = parser.parse_args(arguments).check
    with tempfile.TemporaryDirectory() as scratch:
        wanted = generate(Path(scratch))
    place = toolchain.ROOT / FOLDER
    present = {path.name: path.read_bytes() for path in place.glob("*.pb.go")}
    if present == wanted:
        return 0
    if check:
        stale = sorted(n for n in wanted.keys() | present.keys() if wanted.get(n) != present.get(n))
        print(
            f"tools/pspb.py: {', '.join(stale)} in {FOLDER} is not what {SOURCE} gives; "
            "run make generate and commit the result",
            file=sys.stderr,
        )
        return 1
    for name in present.keys() - wanted.keys():
        (place / name).unlink()
    for name, text in wanted.items():
        (place / name).write_bytes(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
