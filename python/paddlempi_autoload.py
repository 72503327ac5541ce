"""What ``import torch`` runs through the entry-point group ``torch.backends``.

It enters the names ``mpi`` and ``paddlempi`` into ``torch.distributed`` and nothing
else: paddlempi is imported, and MPI started, by the first use of one of them. A module
of its own at the top level, so that importing it does not import ``paddlempi``. What
goes wrong here must not stop ``import torch``: it is kept in :data:`error`, which
``python -m paddlempi info`` shows.

All names of torch that this touches are private there, and each of them is looked up
before any is replaced.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["error", "names", "register", "torch"]

error: BaseException | None = None
"""Why the names could not be entered; None where they could, or nobody tried."""

names = ("mpi", "paddlempi")


def torch() -> None:
    """The entry point. Never raises."""
    global error
    try:
        register(replace_native=False)
    except Exception as reason:
        error = reason


def register(replace_native: bool) -> None:
    """Enter the names, once.

    Args:
        replace_native: also where this torch was built with an MPI of its own.

    Raises:
        ImportError: this torch has no ``torch.distributed``.
        AttributeError: a private name of torch has moved.
    """
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        import importlib

        c10d = importlib.import_module("torch.distributed.distributed_c10d")
    if getattr(c10d, "_paddlempi", None) is not None:
        return
    rendezvous: Any = sys.modules["torch.distributed.rendezvous"]
    backend, handlers = c10d.Backend, rendezvous._rendezvous_handlers
    originals = {
        name: getattr(c10d, name)
        for name in ("Store", "_new_group_with_tag", "split_group", "monitored_barrier")
    }
    originals["env"] = handlers["env"]
    native = c10d.is_mpi_available() and hasattr(c10d, "ProcessGroupMPI")
    c10d._paddlempi = originals
    wanted = names if replace_native or not native else names[1:]
    if "mpi" in wanted:
        c10d.ProcessGroupMPI = _Native
        c10d._MPI_AVAILABLE = True
        # Up to 2.12 a name may not be registered twice, and "mpi" is served by ProcessGroupMPI.
        if hasattr(backend, "_ensure_backend_registered"):
            backend.register_backend("mpi", _create, extended_api=True, devices=["cpu", "cuda"])
        c10d.Store = _store
    backend.register_backend("paddlempi", _create, extended_api=True, devices=["cpu", "cuda"])
    handlers["env"] = _env
    for name, stub in (
        ("_new_group_with_tag", _new_group_with_tag),
        ("split_group", _split_group),
        ("monitored_barrier", _monitored_barrier),
    ):
        stub.__doc__ = originals[name].__doc__
        setattr(c10d, name, stub)
        package = sys.modules["torch.distributed"]
        if hasattr(package, name):
            setattr(package, name, stub)


def _front() -> Any:
    from paddlempi.torch import activation

    return activation


class _Native:
    """Stands where a torch built with MPI has its C++ class."""

    @staticmethod
    def create(ranks: list[int]) -> Any:
        return _front().create_native(ranks)


def _create(options: Any, pg_options: Any) -> Any:
    return _front().create(options, pg_options)


def _store(*arguments: Any) -> Any:
    return _front().store(*arguments)


def _env(url: str, **options: Any) -> Any:
    return _front().env_rendezvous(url, **options)


def _new_group_with_tag(*arguments: Any, **named: Any) -> Any:
    return _front().new_group_with_tag(*arguments, **named)


def _split_group(*arguments: Any, **named: Any) -> Any:
    return _front().split_group(*arguments, **named)


def _monitored_barrier(*arguments: Any, **named: Any) -> Any:
    return _front().monitored_barrier(*arguments, **named)
