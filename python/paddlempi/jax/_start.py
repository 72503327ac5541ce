"""JAX's start: its processes are the ranks, and XLA's collectives go over this package."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

from .. import _exit, _native, group, objects
from ..errors import ArgumentError, Error, UnsupportedError
from ..group_arguments import to_seconds
from . import _library, _private

__all__ = ["initialize"]


def initialize(
    *,
    collectives: str = "mpi",
    timeout: timedelta | float = group.DEFAULT_TIMEOUT,
    split_timeout: timedelta | float = 60.0,
    coordinator_address: str | None = None,
    local_device_ids: int | list[int] | None = None,
    **options: Any,
) -> None:
    """Make the ranks of the job JAX's processes, and carry XLA's collectives over their groups.

    Every rank calls it, before anything asks JAX for its devices. It calls
    :func:`paddlempi.init_process_group` unless that was called before, and
    ``jax.distributed.initialize`` with all that it would otherwise look for: JAX's own detection of
    Slurm and others is left out. It works under every launcher that ``init_process_group`` works
    under. The process number is the rank.

    Args:
        collectives: what carries XLA's collectives between processes on CPUs, such as
            ``jax.lax.psum`` over a mesh: ``"mpi"``: this package's groups, with or without an MPI;
            ``"gloo"``: JAX's own, for meshes of some processes only.
        timeout: the deadline of operations, if this call calls ``init_process_group``; a timedelta
            or seconds.
        split_timeout: how long the first collective of a mesh waits until all processes have come
            to their first collective of a mesh; a timedelta or seconds. Then it fails.
        coordinator_address: ``host:port`` at which rank 0 serves JAX's administration; None: an
            address of rank 0's node (``PADDLEMPI_IFNAME`` chooses the interface) and a free port.
            On one node it serves 127.0.0.1 only.
        local_device_ids: the GPUs of this process; None: the one whose number is the local rank.
            CPUs have no numbers.
        options: for ``jax.distributed.initialize``: ``initialization_timeout``,
            ``heartbeat_timeout_seconds``, ``shutdown_timeout_seconds``.

    Raises:
        ArgumentError: on all ranks if one of them has made JAX's devices already, has called
            ``jax.distributed.initialize``, has more than one CPU device, or has set
            ``MPITRAMPOLINE_LIB`` to another library; or an argument is wrong.
        TimeoutError: some ranks did not call it.

    Thread-safety: the main thread calls it.

    Source: ``jax.distributed.initialize``.
    """
    if collectives not in ("mpi", "gloo"):
        raise ArgumentError(f"initialize: collectives is {collectives!r}; it is 'mpi' or 'gloo'")
    seconds = to_seconds(split_timeout, "initialize")
    if not group.is_initialized():
        group.init_process_group("mpi", timeout=timeout)
    rank, size = group.get_rank(), group.get_world_size()
    problem, served = _problem(collectives, coordinator_address), coordinator_address or ""
    if rank == 0 and not problem and not served:
        try:
            served = _address(group.get_local_size() == size)
        except (Error, OSError) as error:
            problem = f"no address for JAX's administration: {error}"
    _agree(problem)
    offer = [served]
    objects.broadcast_object_list(offer, 0)
    address = offer[0]
    if collectives == "mpi":
        _library.start(rank, size, seconds, _private.local_cpu_devices)
        _private.watch_meshes(_refuse)
    _private.choose_collectives(collectives)
    local = group.get_local_rank() if local_device_ids is None else local_device_ids
    host, port = address.rsplit(":", 1)
    bound = "127.0.0.1" if host == "127.0.0.1" else "0.0.0.0"
    if ":" in host:
        bound = "[::]"
    options.setdefault("coordinator_bind_address", f"{bound}:{port}")
    # JAX's shutdown waits for all processes, also in one that ends because of an exception.
    _exit.waits_at_shutdown()
    _private.start_distributed(address, size, rank, local, options)


def _problem(collectives: str, address: str | None) -> str:
    """Return why JAX cannot be started in this process; "" if it can."""
    if _private.devices_exist():
        return (
            "JAX has made its devices already: call paddlempi.jax.initialize() before the first "
            "use of an array, of jax.devices() or of jit"
        )
    if _private.is_distributed():
        return "jax.distributed.initialize was called already; paddlempi.jax.initialize() calls it"
    if address is not None and not address.rpartition(":")[2].isdecimal():
        return f"coordinator_address is {address!r}; it has the form host:port"
    if collectives != "mpi":
        return ""
    devices = _private.cpu_devices()
    if devices != 1:
        return (
            f"this process is to have {devices} CPU devices (jax_num_cpu_devices, XLA_FLAGS): "
            "XLA's collectives over MPI take one device in each process. Start more processes, or "
            "use collectives='gloo'"
        )
    return _library.find()


def _agree(problem: str) -> None:
    """Raise on all ranks if one of them has a problem."""
    problems: list[str] = [""] * group.get_world_size()
    objects.all_gather_object(problems, problem)
    of_ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(problems):
        if text:
            of_ranks.setdefault(text, []).append(rank)
    for text, ranks in of_ranks.items():
        names = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        error = ArgumentError(f"initialize: {names}: {text}")
        error.ranks = tuple(ranks)
        raise error


def _refuse(processes: list[int]) -> None:
    """Refuse a program whose collectives only some processes join, or several devices of one.

    XLA does not tell MPI which they are (capi/trampoline/split.c). If the others come for another
    mesh at the same time, that looks as if they came for this one.
    """
    if len(processes) == group.get_world_size():
        raise UnsupportedError(
            "a program with collectives of several devices of a process: XLA's collectives over "
            "MPI take one device in each process. Start more processes, or use collectives='gloo'"
        )
    names = ", ".join(map(str, processes))
    raise UnsupportedError(
        f"a program with collectives of processes {names} of {group.get_world_size()}: XLA can use "
        "MPI only where every process takes part. Use paddlempi.jax.initialize(collectives='gloo') "
        "for such a mesh, or the functions of paddlempi.jax with a group"
    )


def _address(one_node: bool) -> str:
    """Return ``host:port`` at which this process can listen and the others reach it."""
    host = "127.0.0.1"
    if not one_node:
        found = _native.control("addresses", one_host=False, variable="GLOO_SOCKET_IFNAME")
        addresses = [a for a in found["addresses"] if ":" not in a] or found["addresses"]
        host = addresses[0] if addresses else socket.gethostname()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.bind((host, 0))
        port = trial.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
