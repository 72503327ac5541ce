"""The bill of materials of a wheel: what its core is linked from, as CycloneDX (PEP 770).

It has neither a time nor a random number, so that the same core has the same bill.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import toolchain

# How a text of LICENSE-THIRD-PARTY is recognised, the first that fits.
_LICENSES = {
    "Apache License": "Apache-2.0",
    "Neither the name of": "BSD-3-Clause",
    "Permission is hereby granted, free of charge": "MIT",
}


def write(folder: Path, core: Path, name: str, version: str) -> None:
    """Write ``folder``/NAME.cdx.json, the bill of the wheel NAME with this core."""
    folder.mkdir(parents=True, exist_ok=True)
    tools = toolchain.find()
    bill = of(name, version, linked(tools.go, core), toolchain.compilers(tools))
    (folder / f"{name}.cdx.json").write_text(json.dumps(bill, indent=2) + "\n")


def linked(go: str, core: Path) -> dict[str, str]:
    """Return the versions of Go's library and of the modules that a core was linked from.

    The linker has written them into it. They do not depend on the machine that it is for.
    """
    done = subprocess.run(
        [go, "version", "-m", str(core)], capture_output=True, text=True, check=False
    )
    rows = [line.split("\t")[1:] for line in done.stdout.splitlines()]
    found = {row[1]: row[2] for row in rows if row[:1] == ["dep"]}
    if not found:
        raise toolchain.ToolchainError(
            f"`{go} version -m {core}` lists no modules, so there is no bill of materials for the "
            f"wheel: {done.stderr.strip() or done.stdout.strip()}"
        )
    return {"std": done.stdout.partition("\n")[0].split()[-1].removeprefix("go"), **found}


def licenses() -> dict[str, list[str]]:
    """Return the SPDX names of the licenses of every module in LICENSE-THIRD-PARTY."""
    line = "-" * 100
    parts = (toolchain.ROOT / "LICENSE-THIRD-PARTY").read_text().split(f"{line}\n")[1:]
    found: dict[str, list[str]] = {}
    for names, text in zip(parts[::2], parts[1::2], strict=True):
        known = next((spdx for sign, spdx in _LICENSES.items() if sign in text), None)
        for name in names.strip().split(", ") if known else ():
            found.setdefault("std" if name == "Go" else name, []).append(str(known))
    return found


def of(
    name: str, version: str, modules: dict[str, str], compilers: dict[str, str]
) -> dict[str, Any]:
    """Return the bill of the wheel ``name`` as plain data."""
    known = licenses()
    whole = _component(f"pkg:pypi/{name}@{version}", name, version, ["Apache-2.0"])
    parts = [
        _component(f"pkg:golang/{module}@{number}", module, number, known.get(module, []))
        for module, number in sorted(modules.items())
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": whole,
            "tools": {
                "components": [
                    {"type": "application", "name": tool, "version": number}
                    for tool, number in compilers.items()
                ]
            },
        },
        "components": parts,
        "dependencies": [
            {"ref": whole["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]},
            *({"ref": part["bom-ref"]} for part in parts),
        ],
    }


def _component(purl: str, name: str, version: str, spdx: list[str]) -> dict[str, Any]:
    licensed = [{"license": {"id": one}} for one in spdx]
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        **({"licenses": licensed} if licensed else {}),
    }
