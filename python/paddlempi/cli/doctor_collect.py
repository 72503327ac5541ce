"""The facts of ``python -m paddlempi doctor``, which every rank collects, as plain data.

Most steps are collective. So all ranks take the same steps, also if a step fails on one of them.
"""

from __future__ import annotations

import array
import ctypes
import os
import platform
import resource
from collections.abc import Callable, Sequence
from typing import Any

from .. import _native, collectives, group, objects
from ..errors import Error
from . import info

__all__ = ["collect"]

_DEADLINE = 60.0  # seconds, for the start and for every operation
_MEMORY = 1 << 20  # bytes of a transfer between ranks
_COPIED = 32 << 20  # bytes of a bandwidth test

_Facts = dict[str, Any]


def collect(mpi: str | None = None) -> list[_Facts]:
    """Take all steps and return the facts of all ranks, by rank. Collective over the job.

    It starts MPI, and the caller destroys the world. If MPI does not start, the list has the facts
    of this process only, with ``start_error``.

    Args:
        mpi: the path of the libmpi to try; None: search for one.
    """
    facts: _Facts = {"rank": 0, "core": None, "world": None, "core_error": None}
    facts |= _process() | {"start_error": None, "paddle": info.version("paddle")}
    try:
        core = info.ask(mpi)
    except Error as error:
        return [facts | {"core_error": str(error)}]
    facts["core"], facts["world"] = core, info.world()
    facts["rank"] = max(core["launcher"]["rank"], facts["world"]["rank"], 0)
    if core["mpi"] is None and facts["world"]["way"] != "store":
        return [facts]
    try:
        group.init_process_group(mpi=mpi, timeout=_DEADLINE)
    except Error as error:
        return [facts | {"start_error": str(error)}]
    started = info.ask(mpi)
    if started["mpi"] and core["mpi"]:
        started["mpi"]["why"] = core["mpi"]["why"]
    facts["core"], facts["rank"] = started, started["rank"]
    ring = _Ring(started)
    facts["sums"] = _sums(started["rank"], started["size"])
    facts["cma"] = _single_copy(ring)
    facts["cuda"] = _cuda(started, ring)
    return _gathered(facts)


def _gathered(obj: Any) -> list[Any]:
    """Return the objects of all ranks, by rank."""
    of_ranks: list[Any] = [None] * group.get_world_size()
    objects.all_gather_object(of_ranks, obj)
    return of_ranks


class _Ring:
    """The ranks of this rank's node in a ring.

    This rank reads memory of ``next``. Its own memory is read by ``previous``.
    """

    def __init__(self, core: _Facts) -> None:
        node: Sequence[int] = core["node"]
        this: int = core["rank"]
        peers = [rank for rank, its_node in enumerate(node) if its_node == node[this]]
        at = peers.index(this)
        self.next = peers[(at + 1) % len(peers)]
        self.previous = peers[at - 1]
        self.alone = len(peers) == 1


def _process() -> _Facts:
    """Return what this process has: CPUs, limits, shared memory, variables."""
    stat = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "shm": None
        if stat is None
        else {"size": stat.f_blocks * stat.f_frsize, "free": stat.f_bavail * stat.f_frsize},
        "limits": {
            "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
            "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        },
        "infiniband": os.path.isdir("/dev/infiniband"),
        "ptrace_scope": _number("/proc/sys/kernel/yama/ptrace_scope"),
        "variables": {name: os.environ.get(name) for name in _VARIABLES},
        "sums": None,
        "cma": None,
        "cuda": None,
    }


_VARIABLES = (
    "OMP_NUM_THREADS",
    "GOMAXPROCS",
    "CUDA_VISIBLE_DEVICES",
    "PADDLEMPI_MPI",
    "PADDLEMPI_TRANSPORT",
    "PADDLEMPI_CUDA",
    "PADDLEMPI_CUDA_AWARE",
    "PADDLEMPI_CUDA_PATHS",
)


def _number(path: str) -> int | None:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _sums(rank: int, size: int) -> list[str]:
    """Do a small all_reduce for each dtype of ``array``. Return a text for each wrong result."""
    wrong = []
    for code in "bBhHiIqQfd":
        x = array.array(code, [rank + 1, 2, 0])
        expected = [size * (size + 1) // 2, 2 * size, 0]
        if code in "bB":  # 8-bit integers wrap
            expected = [n % 256 - 256 * (code == "b" and n % 256 > 127) for n in expected]
        try:
            collectives.all_reduce(x)
        except Error as error:
            wrong.append(f"{code}: {error}")
            continue
        if list(x) != expected:
            wrong.append(f"{code}: {list(x)} and not {expected}")
    return wrong


class _IOVec(ctypes.Structure):
    """``struct iovec``"""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _pattern(rank: int) -> bytes:
    return bytes((rank * 31 + k) & 0xFF for k in range(256)) * 16


def _single_copy(ring: _Ring) -> _Facts:
    """Read the memory of the next rank of the node with ``process_vm_readv``."""
    content = _pattern(group.get_rank())
    memory = ctypes.create_string_buffer(content, len(content))
    addresses = _gathered((os.getpid(), ctypes.addressof(memory)))
    outcome: _Facts = {"of": ring.next, "error": None, "alone": ring.alone}
    if not ring.alone:
        pid, address = addresses[ring.next]
        outcome["error"] = _read(pid, address, _pattern(ring.next))
    collectives.barrier()  # keeps the memory until the other rank has read it
    return outcome


def _read(pid: int, address: int, expected: bytes) -> str | None:
    """Read memory of another process. Return the error, None if it read what was expected."""
    got = ctypes.create_string_buffer(len(expected))
    here = _IOVec(ctypes.addressof(got), len(expected))
    there = _IOVec(address, len(expected))
    function = ctypes.CDLL(None, use_errno=True).process_vm_readv
    function.restype = ctypes.c_ssize_t
    n = function(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    if n != len(expected):
        return os.strerror(ctypes.get_errno())
    return None if got.raw == expected else "the bytes are not those that were written"


# CUDA


def _cuda(core: _Facts, ring: _Ring) -> _Facts:
    """Return what CUDA devices this rank has and how they work. Collective over the job."""
    found: _Facts = {"device": None, "peers": [], "bandwidth": None, "error": None}
    devices = core["cuda"]["devices"]
    if not core["cuda"]["error"] and devices:
        found["device"] = core["local_rank"] % len(devices)
        found["peers"] = _attempt(found, "error", lambda: _step("devices")["peers"]) or []
    # One rank of a node after another measures, because the devices of a node share a bus.
    for turn in range(max(_gathered(core["local_size"]))):
        if turn == core["local_rank"] and found["device"] is not None:
            found["bandwidth"] = _attempt(
                found, "error", lambda: _step("bandwidth", device=found["device"], bytes=_COPIED)
            )
        collectives.barrier()
    found["ipc"] = _ipc(found["device"], ring)
    found |= _awareness(core, found["device"])
    return found


def _step(step: str, **arguments: object) -> _Facts:
    return _native.control("doctor_cuda", step=step, **arguments)


def _attempt(into: _Facts, key: str, call: Callable[[], Any]) -> Any:
    """Return what ``call`` returns. If it raises, return None and note the error in ``into``."""
    try:
        return call()
    except Error as error:
        into[key] = into[key] or str(error)
        return None


def _ipc(device: int | None, ring: _Ring) -> _Facts:
    """Map device memory of the next rank of the node, and read it."""
    outcome: _Facts = {"of": ring.next, "error": None, "alone": ring.alone}
    rank, handle = group.get_rank(), None
    if device is not None:
        handle = _attempt(
            outcome,
            "error",
            lambda: _step("export", device=device, bytes=_MEMORY, seed=rank)["handle"],
        )
    handles = _gathered(handle)
    if device is not None and not ring.alone and outcome["error"] is None:
        if handles[ring.next] is None:
            outcome["error"] = f"rank {ring.next} has no memory to map"
        else:
            arguments = {"handle": handles[ring.next], "seed": ring.next, "bytes": _MEMORY}
            _attempt(outcome, "error", lambda: _step("open", device=device, **arguments))
    collectives.barrier()  # keeps the memory while the other rank has it mapped
    if device is not None:
        _attempt(outcome, "error", lambda: _step("release"))
    return outcome


def _awareness(core: _Facts, device: int | None) -> _Facts:
    """Return whether MPI takes device memory.

    That is: what MPI says, the result of a trial in a child process, and the result of a transfer
    between ranks if all ranks can do it.
    """
    known = _native.control("cuda", wait=device is not None)
    outcome: _Facts = {"aware": known, "trial": None, "transfer": None}
    if known["aware"] and known["how"] == "set":
        # The user has said that MPI takes it, so the core has not tried it. If that is wrong, MPI
        # may crash: a child tries it, so that this process can report it.
        outcome["trial"] = _native.control("cuda", **{"try": True})
    works = known["aware"] and (outcome["trial"] or known)["aware"] and device is not None
    if all(_gathered(works)):
        rank, size = core["rank"], core["size"]
        arguments = {"to": (rank + 1) % size, "from": (rank - 1) % size, "bytes": _MEMORY}
        outcome["transfer"] = ""
        _attempt(outcome, "transfer", lambda: _step("transfer", device=device, **arguments))
    return outcome
