"""All access to the extension module ``paddlempi._core``.

The first use that needs the core loads it; ``import paddlempi`` does not. Loading starts Go's
runtime, and a framework that is imported later may replace signal handlers that Go needs
(``import paddle`` does).

Callers use ``_native.submit`` and do not keep a reference to it, because :func:`load` replaces
it, and ``_exit`` does for a while.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

from .errors import BY_CODE, NotInitializedError, OutOfMemoryError, UnsupportedError

__all__ = ["ONCE", "QUIET", "control", "core", "load", "loaded", "on_load", "submit", "trial"]

QUIET = 1 << 16
"""Flag of submit: autograd is not told that tensors were written to."""

ONCE = 1 << 17
"""Flag of submit: autograd is told once, when the operation begins, and not again at its end."""


class Submit(Protocol):
    """The type of ``_core.submit``.

    Args:
        code: an ``Op``.
        group: the id of the group; 0: the world.
        send, recv: a tensor, a sequence of tensors, or None.
        reduce_op: a ``ReduceCode``; 0: none.
        flags: ``ASYNC``, :data:`QUIET`, :data:`ONCE`.
        root, peer, peer2: ranks of the group; -1: no root, or any peer.
        tag, tag2: tags of messages; -1: any tag. ``peer2`` and ``tag2`` are those of the receive
            side of sendrecv.
        timeout: seconds; below 0: the group's deadline.
        scale: the factor of PREMUL_SUM.
        send_splits, recv_splits: for each member the rows of the one tensor of that side; None:
            equal parts.
    """

    def __call__(
        self,
        code: int,
        group: int,
        send: object,
        recv: object,
        reduce_op: int = 0,
        flags: int = 0,
        *,
        root: int = -1,
        peer: int = -1,
        tag: int = 0,
        timeout: float = -1.0,
        scale: float = 1.0,
        send_splits: Sequence[int] | None = None,
        recv_splits: Sequence[int] | None = None,
        peer2: int = -1,
        tag2: int = 0,
    ) -> Any: ...


def _unloaded(*args: object, **fields: object) -> Any:
    raise NotInitializedError(
        "the process group is not initialised: call paddlempi.init_process_group() first"
    )


submit: Submit = _unloaded
"""Carry out an operation or, with the flag ASYNC, start it.

The core keeps the tensors for as long as MPI or a device uses them, and tells autograd that tensors
were written to. Returns ``_core.Operation`` with ASYNC; else (source, bytes, tag) for a receive,
sendrecv or probe, with the source as a rank of the group; else None. Until the core is loaded it
raises NotInitializedError.

Thread-safety: may be called from any thread. It drops the GIL while it waits.
"""

_core: ModuleType | None = None
_hooks: list[Callable[[ModuleType], None]] = []


def on_load(hook: Callable[[ModuleType], None]) -> None:
    """Have ``hook(core)`` called when the core is loaded, or at once if it is."""
    _hooks.append(hook)
    if _core is not None:
        hook(_core)


ADDRESS_SPACE = 1536 << 20
"""Bytes of address space that Go's runtime may take. If it gets less, it ends the process."""


def _check_address_space() -> None:
    """Raise OutOfMemoryError if a limit (``ulimit -v``) leaves less than the core takes."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    try:
        with open("/proc/self/statm") as file:
            left = limit - int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return  # without /proc nobody knows
    if left < ADDRESS_SPACE:
        raise OutOfMemoryError(
            f"the core needs {ADDRESS_SPACE >> 20} MiB of address space, and the limit of this "
            f"process (ulimit -v: {limit >> 20} MiB) leaves {max(0, left) >> 20} MiB: raise the "
            "limit (ulimit -v unlimited, or what the batch system calls virtual memory)"
        )


def load() -> Any:
    """Return the core. Load it if this is the first use.

    Raises:
        OutOfMemoryError: the limit of this process's address space is too low for the core.
        UnsupportedError: this is a free-threaded CPython, whose extension modules have another
            ABI, or a subinterpreter; gevent has replaced threads; or the extension module is
            missing or cannot be loaded.
    """
    global _core, submit
    if _core is not None:
        return _core
    if "t" in getattr(sys, "abiflags", ""):
        raise UnsupportedError(
            f"paddlempi does not support free-threaded CPython ({sys.executable} is one): "
            "use a standard build of the same version"
        )
    _check_threads()
    _check_address_space()
    try:
        core = importlib.import_module("paddlempi._core")
    except ImportError as error:
        if "subinterpreters" in str(error):
            raise UnsupportedError(
                "paddlempi runs in the main interpreter of a process alone, and this is a "
                "subinterpreter: call it in the main one, or start a process (paddlempi.launch)"
            ) from error
        raise UnsupportedError(
            f"the extension module paddlempi._core cannot be loaded: {error}; "
            "install the package for this Python and machine with 'pip install .'"
        ) from error
    core.set_errors(BY_CODE)
    for hook in _hooks:
        hook(core)
    _core = core
    submit = core.submit
    return core


def core() -> Any:
    """Return the core, which must be loaded.

    Raises:
        NotInitializedError: it is not loaded, and so there is no process group.
    """
    if _core is None:
        _unloaded()
    return _core


def _check_threads() -> None:
    """Refuse a process in which threads and sockets are not the system's: waits would never end."""
    monkey: Any = sys.modules.get("gevent.monkey")
    if monkey is not None and any(map(monkey.is_module_patched, ("threading", "socket", "select"))):
        raise UnsupportedError(
            "gevent has put its own in the place of threads, sockets or select (monkey.patch_all), "
            "with which a wait for another rank would never end: leave the call out, or call "
            "gevent.monkey.patch_all(thread=False, socket=False, select=False)"
        )


def loaded() -> bool:
    """Whether the core is loaded."""
    return _core is not None


def control(method: str, **arguments: object) -> dict[str, Any]:
    """Call a control method of the core (docs/control.md). Load the core if need be.

    Args:
        method: the name of the method.
        arguments: its arguments, which are passed as JSON.

    Returns:
        The method's answer; an empty dictionary if it has none.

    Raises:
        Error: what the method raises; or the core cannot be loaded.
    """
    import json  # takes 3 ms, which `import paddlempi` would spend in every process

    answer: dict[str, Any] = json.loads(load().control(method, json.dumps(arguments)) or "{}")
    return answer


def trial() -> list[str]:
    """Return the command that tries whether MPI moves GPU memory; empty if it is not known.

    The core appends the request to it.
    """
    if not sys.executable:
        return []
    program = "import sys; sys.path.append(sys.argv[1]); from paddlempi.cli import trial; "
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return [sys.executable, "-c", program + "sys.exit(trial.main(sys.argv[2]))", package]
