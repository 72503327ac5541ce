"""What ``import torch`` runs through the entry-point group ``torch.backends``.

It enters the names ``mpi`` and ``paddlempi`` into ``torch.distributed`` and nothing
else: paddlempi is imported, and MPI started, by the first use of one of them. A module
of its own at the top level, so that importing it does not import ``paddlempi``. What
goes wrong here must not stop ``import torch``: it is kept in :data:`error`, which
``python -m paddlempi info`` shows.

All names of torch that this touches are private there, and each of them is looked up
before any is replaced. Functions are replaced inside, code by code: who imported one of
them before has the new one too.
"""

from __future__ import annotations

import inspect
import sys
from types import FunctionType
from typing import Any

__all__ = ["NAMES", "entered", "error", "originals", "register", "torch"]

error: BaseException | None = None
"""Why ``import torch`` could not enter the names; None where it could, or did not try."""

NAMES = ("mpi", "paddlempi")

entered: set[str] = set()
"""Those of them that mean paddlempi in this process."""

originals: dict[str, Any] = {}
"""torch's own functions, by name, and its handler of ``env://`` as ``env``."""

lazily = False
"""Whether ``paddlempi.torch`` is being imported from here and not by the user."""

# Kept in one place: what a torch must have for this to work.
_FUNCTIONS = (
    "_new_process_group_helper",
    "_new_group_with_tag",
    "split_group",
    "monitored_barrier",
)
_OTHERS = ("Backend", "ProcessGroup", "_world", "_MPI_AVAILABLE", "is_mpi_available")


def torch() -> None:
    """The entry point. Never raises."""
    global error
    try:
        register(replace_native=False)
    except Exception as reason:
        error = reason


def register(replace_native: bool) -> None:
    """Enter the names; once they are, do nothing.

    Args:
        replace_native: also the name ``mpi`` of a torch that was built with an MPI of its own.

    Raises:
        ImportError: this torch has no ``torch.distributed``, or a private name of it has
            moved; the message names them and the version of torch.
    """
    import importlib

    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
    if not originals:
        _check(c10d, rendezvous)
        native = c10d.is_mpi_available()
        for name in _FUNCTIONS:
            originals[name] = _replace(getattr(c10d, name), _STUBS[name])
        originals["env"] = rendezvous._rendezvous_handlers["env"]
        rendezvous._rendezvous_handlers["env"] = _env
        _enter(c10d, "paddlempi")
        if native and not replace_native:
            return
    if "mpi" not in entered and (replace_native or not c10d.is_mpi_available()):
        c10d.ProcessGroupMPI = _Native
        c10d._MPI_AVAILABLE = True
        # Up to 2.12 a name may not be registered twice, and "mpi" is served by ProcessGroupMPI.
        if hasattr(c10d.Backend, "_ensure_backend_registered"):
            _enter(c10d, "mpi")
        entered.add("mpi")


def _enter(c10d: Any, name: str) -> None:
    c10d.Backend.register_backend(name, _create, extended_api=True, devices=["cpu", "cuda"])
    entered.add(name)


def _check(c10d: Any, rendezvous: Any) -> None:
    """Look up all that is touched, so that nothing is left half replaced."""
    missing = [name for name in (*_FUNCTIONS, *_OTHERS) if not hasattr(c10d, name)]
    if not hasattr(getattr(c10d, "Backend", None), "register_backend"):
        missing.append("Backend.register_backend")
    missing += [
        f"{name} as a plain function"
        for name in _FUNCTIONS
        if name not in missing and not _plain(getattr(c10d, name))
    ]
    if "env" not in getattr(rendezvous, "_rendezvous_handlers", ()):
        missing.append("rendezvous._rendezvous_handlers['env']")
    if missing:
        version = getattr(sys.modules.get("torch"), "__version__", "of unknown version")
        raise ImportError(
            f"paddlempi does not know this torch ({version}): torch.distributed.distributed_c10d "
            f"has no {', '.join(missing)}; use a version that paddlempi supports (2.8 to 2.15)"
        )


def _plain(function: Any) -> bool:
    inner = inspect.unwrap(function)
    return isinstance(inner, FunctionType) and not inner.__code__.co_freevars


def _replace(function: Any, stub: FunctionType) -> FunctionType:
    """Let a function do what ``stub`` does, in place; returns one that does what it did."""
    inner: FunctionType = inspect.unwrap(function)
    signature = inspect.signature(inner)
    original = FunctionType(inner.__code__, inner.__globals__, inner.__name__, inner.__defaults__)
    original.__kwdefaults__ = inner.__kwdefaults__
    inner.__code__ = stub.__code__
    inner.__defaults__ = inner.__kwdefaults__ = None
    inner.__signature__ = signature  # type: ignore[attr-defined]
    return original


def concerns(backend: object) -> bool:
    """Whether paddlempi may have a part in a group of this backend: cheap, and never imports it."""
    return "paddlempi.torch.activation" in sys.modules or "mpi" in str(backend).lower()


def front() -> Any:
    """``paddlempi.torch.activation``, imported now if this is the first use."""
    global lazily
    loaded = sys.modules.get("paddlempi.torch.activation")
    if loaded is not None:
        return loaded
    lazily = True
    try:
        from paddlempi.torch import activation
    finally:
        lazily = False
    return activation


class _Native:
    """Stands where a torch built with MPI has its C++ class."""

    @staticmethod
    def create(ranks: list[int]) -> Any:
        return front().create(ranks)


def _create(options: Any, pg_options: Any) -> Any:
    return front().create(options.global_ranks_in_group)


def _env(url: str, **options: Any) -> Any:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "init_process_group":
        frame = frame.f_back
    backend = None if frame is None else frame.f_locals.get("backend")
    if concerns(backend):
        return front().env_rendezvous(url, backend, **options)
    return originals["env"](url, **options)


# What runs in place of torch's functions. Their globals are those of torch's module, not these.


def _stub_helper(*arguments: Any, **named: Any) -> Any:
    import paddlempi_autoload as ours

    backend = named["backend"] if "backend" in named else arguments[3]
    if ours.concerns(backend):
        return ours.front().new_process_group_helper(*arguments, **named)
    return ours.originals["_new_process_group_helper"](*arguments, **named)


def _stub_new_group(*arguments: Any, **named: Any) -> Any:
    import paddlempi_autoload as ours

    backend = named["backend"] if "backend" in named else (*arguments, None, None, None)[2]
    if ours.concerns(backend):
        return ours.front().new_group_with_tag(*arguments, **named)
    return ours.originals["_new_group_with_tag"](*arguments, **named)


def _stub_split(*arguments: Any, **named: Any) -> Any:
    import paddlempi_autoload as ours

    if ours.concerns(None):
        return ours.front().split_group(*arguments, **named)
    return ours.originals["split_group"](*arguments, **named)


def _stub_barrier(*arguments: Any, **named: Any) -> Any:
    import paddlempi_autoload as ours

    if ours.concerns(None):
        return ours.front().monitored_barrier(*arguments, **named)
    return ours.originals["monitored_barrier"](*arguments, **named)


_STUBS: dict[str, Any] = {
    "_new_process_group_helper": _stub_helper,
    "_new_group_with_tag": _stub_new_group,
    "split_group": _stub_split,
    "monitored_barrier": _stub_barrier,
}
