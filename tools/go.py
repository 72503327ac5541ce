"""Runs go with the compilers that the build takes: `tools/go.py test ./...`.

`tools/go.py --missing` prints instead the wheels that stand in for compilers missing here, and
`tools/go.py --cc` the C compiler.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "build"))

import toolchain


def main(arguments: list[str]) -> None:
    """Becomes go, or tells about the compilers."""
    if arguments == ["--missing"]:
        print("\n".join(toolchain.missing_requirements()))
        return
    tools = toolchain.find()
    if arguments == ["--cc"]:
        print(*tools.cc)
        return
    os.execve(tools.go, ["go", *arguments], toolchain.environment(tools))


main(sys.argv[1:])
