"""Collect the licenses of the Go modules that are part of the core, of Go itself, and of XLA.

``tools/licenses.py`` writes LICENSE-THIRD-PARTY, which the wheel and the source distribution carry;
``tools/licenses.py --check`` writes nothing and fails when the file is not up to date.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "build"))

import generated
import toolchain

FILE = toolchain.ROOT / "LICENSE-THIRD-PARTY"
NAMES = ("LICENSE", "LICENSE.txt", "NOTICE", "NOTICE.txt")
HEAD = """\
The core of paddlempi (paddlempi/_core.abi3.so, libpaddlempi.so) contains the Go modules below, in
the versions of go.mod, and Go's runtime and standard library. It was compiled with capi/xla_ffi.h,
which is xla/ffi/api/c_api.h of XLA as jaxlib has it. These are their licenses.
"""


def go(*arguments: str) -> str:
    """Run go with the compilers and tags of the build and return what it printed."""
    tools = toolchain.find()
    command = [tools.go, *arguments]
    env = toolchain.environment(tools)
    return subprocess.run(
        command, cwd=toolchain.ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def modules() -> dict[str, Path]:
    """Return the folders of the modules that the core is linked from, by name."""
    found = {}
    listed = go("list", "-deps", "-f", "{{with .Module}}{{.Path}}\t{{.Main}}{{end}}", "./capi/main")
    for line in sorted(set(listed.split("\n")) - {""}):
        name, main = line.split("\t")
        if main == "false":
            # Downloads it if need be; `go list -m` names no folder of a module that is not there.
            told = json.loads(go("mod", "download", "-json", name))
            found[name] = Path(told["Dir"])
    # Go's own license is that of its modules. A wheel or a package of Go may lack the file.
    found["Go"] = found["golang.org/x/sys"]
    return dict(sorted(found.items()))


def text() -> str:
    """Return the licenses; modules with the same one share it."""
    owners: dict[str, list[str]] = {}
    for name, folder in modules().items():
        licenses = [folder / n for n in NAMES if (folder / n).is_file()]
        if not any(path.name.startswith("LICENSE") for path in licenses):
            raise FileNotFoundError(f"{name} has no license in {folder}")
        for path in licenses:
            owners.setdefault(path.read_text().strip(), []).append(name)
    owners.setdefault((toolchain.ROOT / "LICENSE").read_text().strip(), []).append("XLA")
    parts = [HEAD]
    for license_text, names in sorted(owners.items(), key=lambda item: item[1]):
        parts.append(f"{'-' * 100}\n{', '.join(names)}\n{'-' * 100}\n\n{license_text}\n")
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Write or check the file; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a stale file")
    check = parser.parse_args(arguments).check
    return generated.settle("licenses.py", FILE.name, FILE, text(), check=check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
