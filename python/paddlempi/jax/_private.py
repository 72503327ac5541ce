"""All that this package uses of JAX's private modules, and the releases of JAX that have it so.

Every release is tried before it is named here, because JAX changes these modules without notice.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
from jax._src import compiler, distributed, xla_bridge

from ..errors import UnsupportedError

__all__ = [
    "RELEASES",
    "check_releases",
    "choose_collectives",
    "cpu_devices",
    "devices_exist",
    "is_distributed",
    "start_distributed",
    "watch_meshes",
]

RELEASES = ("0.10.1", "0.10.2")
"""The releases of JAX that this package works with."""


def check_releases() -> None:
    """Raise UnsupportedError if this is another release of JAX."""
    for name, release in (("jax", jax.__version__), ("jaxlib", jax.lib.__version__)):
        if release not in RELEASES:
            raise UnsupportedError(
                f"paddlempi.jax works with {name} {' and '.join(RELEASES)}, and this is {name} "
                f"{release}: install one of them, or a newer paddlempi"
            )


def devices_exist() -> bool:
    """Whether JAX has made its clients, and so its devices. Then it is too late to choose."""
    return bool(xla_bridge.backends_are_initialized())


def is_distributed() -> bool:
    """Whether ``jax.distributed.initialize`` was called."""
    return distributed.global_state.client is not None


def cpu_devices() -> int:
    """Return how many CPU devices this process is going to have, as far as JAX was told."""
    return max(1, int(xla_bridge.num_cpu_devices.value))


def choose_collectives(name: str) -> None:
    """Choose what carries XLA's collectives on CPUs: ``mpi`` or ``gloo``."""
    jax.config.update("jax_cpu_collectives_implementation", name)


def start_distributed(
    address: str, size: int, rank: int, local: int | list[int], options: dict[str, Any]
) -> None:
    """Call ``jax.distributed.initialize`` with all that it would otherwise look for."""
    jax.distributed.initialize(address, size, rank, local, **options)


_COLLECTIVE = re.compile(
    r"\b(all-gather|all-reduce|all-to-all|collective-broadcast|collective-permute|reduce-scatter)"
    r"(-start)?\("
)


def watch_meshes(refuse: Callable[[list[int]], None]) -> None:
    """Have ``refuse(processes)`` called for programs with collectives of some processes only.

    It is called when JAX has compiled a program for the CPUs of more than one process, but not of
    all, and XLA has put collectives into it. It raises.
    """
    inner = compiler.compile_or_get_cached

    @functools.wraps(inner)
    def compile_or_get_cached(
        backend: Any, computation: Any, devices: Any, *args: Any, **options: Any
    ) -> Any:
        executable = inner(backend, computation, devices, *args, **options)
        if backend.platform == "cpu":
            processes = sorted({device.process_index for device in devices.flat})
            if 1 < len(processes) < jax.process_count() and any(
                _COLLECTIVE.search(module.to_string()) for module in executable.hlo_modules()
            ):
                refuse(processes)
        return executable

    compiler.compile_or_get_cached = compile_or_get_cached
