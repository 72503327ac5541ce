"""``python -m paddlempi info``: which MPI is used and why, and what else is installed.

Under a launcher (``mpirun -np 4 python -m paddlempi info``) or another start
(``python -m paddlempi run -np 4 -m paddlempi info``) the ranks begin a world, and rank 0 prints
which world it is and on which nodes the ranks are. A process alone does not start MPI. If there is
no MPI, the command says where it looked and what to install, and succeeds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import re
import subprocess
import sys
from importlib import metadata
from typing import Any

from .. import __version__, _native, group
from ..errors import Error
from ..startup import worlds
from . import paddle_alone
from .colours import paint

__all__ = ["add_to", "ask", "gather", "version", "world"]

_FRAMEWORKS = {
    # module -> names of the packages that have it
    "numpy": ("numpy",),
    "ml_dtypes": ("ml_dtypes",),
    "paddle": ("paddlepaddle", "paddlepaddle-gpu"),
    "torch": ("torch",),
    "jax": ("jax",),
    "cupy": ("cupy", "cupy-cuda12x", "cupy-cuda13x"),
    "mpi4py": ("mpi4py",),
}


def add_to(commands: Any) -> None:
    """Add the command to the parser of ``python -m paddlempi``."""
    parser = commands.add_parser("info", help="which MPI, why that one, and what else is there")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--mpi", metavar="PATH", help="the libmpi to look at, before any search (as PADDLEMPI_MPI)"
    )
    parser.set_defaults(run=run, parser=parser)


def run(chosen: argparse.Namespace) -> int:
    """Print what :func:`gather` finds, on rank 0 only. Return 1 if no world began, else 0."""
    found = gather(chosen.mpi)
    if not found["rank"]:
        print(json.dumps(found, indent=2) if chosen.json else _text(found))
    started_by_me = group.is_initialized()
    if started_by_me:
        group.destroy_process_group()
    return 1 if found["start_error"] else 0


def gather(mpi: str | None = None) -> dict[str, Any]:
    """Return what there is, as plain data. Begin the world if there are several ranks.

    Args:
        mpi: the path of the libmpi to look at; None: search for one.
    """
    found: dict[str, Any] = {
        "paddlempi": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}",
        "frameworks": {module: version(module) for module in _FRAMEWORKS},
        "torch_backend": None,
        "paddle": None,
        "core": None,
        "world": None,
        "core_error": None,
        "start_error": None,
        "rank": None,
    }
    if found["frameworks"]["paddle"]:
        found["paddle"] = f"{paddle_alone.FOUND}\n{paddle_alone.ADVICE}"
    core: dict[str, Any] | None = None
    try:
        core = ask(mpi)
        found["world"] = world()
        found["rank"] = max(core["launcher"]["rank"], found["world"]["rank"], 0)
    except Error as error:
        found["core_error"] = str(error)
    if found["frameworks"]["torch"] and not found["rank"]:
        # This starts another process, so it comes before MPI runs in this process.
        found["torch_backend"] = _torch_backend()
    if core is None:
        return found
    met = found["world"]["way"] == "store"
    if found["world"]["error"]:
        found["start_error"] = found["world"]["error"]
    elif met or (core["mpi"] and core["launcher"]["size"] > 1):
        try:
            group.init_process_group(mpi=mpi)
            started = ask(mpi) | {"looked": core["looked"]}
            if started["mpi"] and core["mpi"] and started["mpi"]["path"] == core["mpi"]["path"]:
                # ask has loaded the library before, so "why" would now be that it was loaded.
                started["mpi"]["why"] = core["mpi"]["why"]
            core = started
            found["rank"] = core["rank"]
            if core["mpi"]:
                wait = bool(core["cuda"]["devices"])
                core["cuda"]["aware"] = _native.control("cuda", wait=wait)
        except Error as error:
            found["start_error"] = str(error)
    found["core"] = core
    return found


def world() -> dict[str, Any]:
    """Return which world ``init_process_group`` begins here, as ``startup.worlds`` says, and why.

    ``transport`` is what ``PADDLEMPI_TRANSPORT`` asks for; ``error`` why there is no world, or "".
    """
    try:
        one = worlds.find()
        return one._asdict() | {"transport": worlds.transport(), "error": ""}
    except Error as error:
        nothing = {"way": "", "why": "", "rank": -1, "size": -1, "method": "", "transport": ""}
        return nothing | {"error": str(error)}


# Run in a child process, because `import torch` may fail in any way, a crash included.
_IMPORT_TORCH = """
import os, sys, torch, torch.distributed
auto = sys.modules.get("paddlempi_bootstrap.torch_autoload")
if auto is None:
    off = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0"
    why = "TORCH_DEVICE_BACKEND_AUTOLOAD=0" if off else "the package is not installed"
    print("not entered by import torch, " + why + ": import paddlempi.torch")
elif auto.error is not None:
    print(f"not entered by import torch: {type(auto.error).__name__}: {auto.error}")
elif "mpi" not in auto.entered:
    print("'paddlempi'; 'mpi' is what this torch was built with, until import paddlempi.torch")
else:
    print("'mpi' and 'paddlempi', entered by import torch")
"""


def _torch_backend() -> str:
    """Return which backends ``import torch`` registers, or why it does not, in words."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _IMPORT_TORCH],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown: {error}"
    if asked.returncode:
        last = (asked.stderr.strip().splitlines() or [f"status {asked.returncode}"])[-1]
        return f"import torch fails: {last}"
    return asked.stdout.strip()


def ask(mpi: str | None) -> dict[str, Any]:
    """Return what the core says of itself, of MPI and of the CUDA driver.

    The core loads the MPI library and the CUDA driver for that, if they are there.

    Raises:
        Error: the core cannot be loaded.
    """
    core = _native.control("info", sys_prefix=sys.prefix, mpi=mpi, mpi_named="--mpi", cuda=True)
    for part in ("mpi", "launcher"):  # structs of Go without names for JSON
        if core[part] is not None:
            core[part] = {_snake(name): value for name, value in core[part].items()}
    return core


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def version(module: str) -> str | None:
    """Return the version of a framework; None if it is not installed. Does not import it."""
    if importlib.util.find_spec(module) is None:
        return None
    for package in _FRAMEWORKS[module]:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "unknown version"


def _text(found: dict[str, Any]) -> str:
    here = [f"{name} {version}" for name, version in found["frameworks"].items() if version]
    lines = [
        _row("paddlempi", found["paddlempi"]),
        _row("python", f"{found['python']} ({found['executable']})"),
        _row("machine", found["machine"]),
        _row("frameworks", ", ".join(here) or "none"),
    ]
    if found["torch_backend"]:
        lines.append(_row("torch", found["torch_backend"]))
    if found["paddle"]:
        lines.append(_row("paddle", found["paddle"]))
    core = found["core"]
    if core is None:
        return "\n".join(
            [*lines, _row("core", paint("fail", "not usable: ") + found["core_error"])]
        )
    build = core["build"] or f"built by hand, {core['go']}"  # how it was built says Go's version
    build += f", id {core['build_id'] or 'unknown'}"
    lines.append(_row("core", f"{build}, reductions with {core['kernels']}"))
    lines += _mpi(core)
    lines += _launcher(core["launcher"])
    lines.append(_row("world", _world(found["world"], core.get("transport") or "")))
    lines.append(_row("cpus", _cpus(core)))
    lines.append(_row("heap", _heap(core["heap"])))
    lines += _cuda(core["cuda"])
    if core["initialized"]:
        lines += _ranks(core)
    if found["start_error"]:
        lines.append(_row("start", paint("fail", "failed: ") + found["start_error"]))
    return "\n".join(lines)


def _mpi(core: dict[str, Any]) -> list[str]:
    mpi = core["mpi"]
    if mpi is None:
        return [_row("mpi", paint("warn", "none: ") + core["mpi_error"])]
    lines = [
        _row("mpi", mpi["version"] or mpi["name"]),
        _row("library", mpi["path"]),
        _row("chosen", mpi["why"]),
        _row("abi", f"{mpi['abi']}, MPI {mpi['standard']}"),
    ]
    if core["initialized"]:
        owner = "" if mpi["owner"] == "paddlempi" else ", initialised by the application"
        lines.append(_row("threads", mpi["thread_level"] + owner))
    return lines


def _launcher(launcher: dict[str, Any]) -> list[str]:
    if not launcher["name"]:
        return [_row("launcher", "none: one process on its own")]
    size = launcher["size"]
    processes = "" if size < 1 else f", {size} processes"
    return [_row("launcher", f"{launcher['name']} of {launcher['mpi']}{processes}")]


def _world(one: dict[str, Any], transport: str) -> str:
    """Say which ranks there are, where they meet, and what carries their messages."""
    if one["error"]:
        return f"none: {one['error']}"
    asked = f", PADDLEMPI_TRANSPORT={one['transport']}" if one["transport"] else ""
    if one["way"] != "store":
        return f"of MPI: {one['why']}{asked}" if one["way"] == "mpi" else f"without MPI{asked}"
    how = {"node": "in memory, without MPI", "mpi": "over MPI"}.get(transport, "")
    where = f", {one['size']} ranks meet at {one['method']}"
    return "\n".join(filter(None, [f"{one['why']}{where}{asked}", how]))


def _cpus(core: dict[str, Any]) -> str:
    helper = core["helper"]
    if helper is None:
        return f"{core['cpus']} allowed"
    ranks = "1 rank" if helper["ranks"] == 1 else f"{helper['ranks']} ranks"
    quota = "" if helper["quota"] is None else f", a quota of {helper['quota']:g}"
    may = "a helper thread works while one is idle" if helper["may"] else "no helper thread"
    each = "1 thread" if core["threads"] == 1 else f"{core['threads']} threads"
    cpus = f"{helper['cpus']} allowed for {ranks}{quota}"
    return f"{cpus}: {each} of this rank in a long collective, {may}"


def _heap(heap: dict[str, Any]) -> str:
    if heap["why"]:
        return f"none: {heap['why']}"
    mapped = ", mapped by the other ranks of the node" if heap["mapped"] else ""
    left = "" if heap["left"] is None else f", limits leave {heap['left'] >> 20} MiB"
    used, reserved = heap["used"], heap["reserved"] >> 20
    return f"{used} bytes used of {reserved} MiB reserved{left}{mapped}"


def _cuda(cuda: dict[str, Any]) -> list[str]:
    if not cuda["driver"]:
        return [_row("cuda", "none: " + cuda["error"])]
    lines = [_row("cuda", f"{cuda['version']}, {cuda['driver']}")]
    for number, device in enumerate(cuda["devices"]):
        memory = device["memory_bytes"] >> 30
        what = f"{device['name']}, {memory} GiB, {device['bus']}, {device['uuid']}"
        lines.append(_row("", f"device {number}: {what}"))
    if cuda["error"] or not cuda["devices"]:
        lines.append(_row("", cuda["error"] or "no device (CUDA_VISIBLE_DEVICES)"))
    aware = cuda.get("aware")
    if aware is not None:
        says = "takes" if aware["aware"] else "does not take"
        lines.append(_row("", f"MPI {says} GPU memory ({aware['how']}: {aware['reason']})"))
    return lines


def _ranks(core: dict[str, Any]) -> list[str]:
    nodes: dict[int, list[int]] = {}
    for rank, node in enumerate(core["node"]):
        nodes.setdefault(node, []).append(rank)
    lines = [_row("ranks", f"{core['size']} on {len(nodes)} node{'s' if len(nodes) > 1 else ''}")]
    for node, ranks in sorted(nodes.items()):
        lines.append(_row("", f"node {node}: {', '.join(map(str, ranks))}"))
    after = core["report_after"]
    lines.append(_row("long waits", f"reported after {after:g} s" if after else "not reported"))
    if len(nodes) > 1:
        watch = core["liveness"]
        dead = f"seen on all nodes; a host may be silent for {watch['after']:g} s"
        lines.append(
            _row("deaths", f"not seen on other nodes: {watch['off']}" if watch["off"] else dead)
        )
        lines += _algorithms(core["algorithms"])
        lines.append(_row("tuning", _tuning(core["tuning"])))
    return lines


def _tuning(told: dict[str, Any] | None) -> str:
    """Say with which table of ways the world began."""
    if told is None:
        return "off"
    if told["problem"]:
        return f"no table is taken: {told['problem']}"
    if not told["file"]:
        return "no table: python -m paddlempi tune writes one"
    return f"{told['rows']} rows of {told['file']}"


def _algorithms(served: list[dict[str, Any]]) -> list[str]:
    """Say which algorithm serves which length, in the group of all ranks."""
    rows: dict[str, list[str]] = {}
    for row in served:
        name = row["operation"] + (" of 16-bit floats" if row["dtype"] == "bfloat16" else "")
        known = rows.setdefault(name, [])
        known.append(row["algorithm"] + (f" from {_bytes(row['from'])}" if known else ""))
    lines = [_row("", f"{name}: {', '.join(known)}") for name, known in rows.items()]
    return [_row("algorithms", "by the bytes of the longer side of a rank"), *lines]


def _bytes(number: int) -> str:
    """Return a length in the largest unit of which it is a multiple, or in bytes."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= unit and number % unit == 0:
            return f"{number // unit} {name}"
    return f"{number} bytes"


def _row(name: str, value: str) -> str:
    first, *rest = value.splitlines() or [""]
    return "\n".join([f"{name:<12}{first}", *(f"{'':<12}{line}" for line in rest)])
