"""The one door to the extension module ``paddlempi._core``.

The core is loaded at the first use that needs it, never by ``import
paddlempi``: loading it starts Go's runtime, and a framework imported later
replaces signal handlers that Go wants (``import paddle`` does).

``submit`` is looked up here by every call, so that it is one attribute away and
``_exit`` can put itself in front of it for a while.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

from .errors import BY_CODE, NotInitializedError, UnsupportedError

__all__ = ["ONCE", "QUIET", "control", "core", "load", "loaded", "on_load", "submit"]

QUIET = 1 << 16
"""Flag of submit: nobody is told that tensors were written to."""

ONCE = 1 << 17
"""Flag of submit: they are told when the operation begins, and not again at its end."""


class Submit(Protocol):
    """``_core.submit``; what is left out has the default shown."""

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
"""The one way to carry out an operation, or with the flag ASYNC to start it.

The core keeps the tensors for as long as MPI or a device uses them, and tells autograd what was
written to. Returns None, or the source, length and tag of a message received; of what was started
an ``_core.Operation``. Raises NotInitializedError until the core is loaded.
"""

_core: ModuleType | None = None
_hooks: list[Callable[[ModuleType], None]] = []


def on_load(hook: Callable[[ModuleType], None]) -> None:
    """Call ``hook(core)`` when the core is loaded (at once if it is)."""
    _hooks.append(hook)
    if _core is not None:
        hook(_core)


def load() -> Any:
    """The core, loaded now if this is the first use.

    Raises:
        UnsupportedError: under a free-threaded CPython, whose extension modules
            have another ABI, or where the package was installed without its core.
    """
    global _core, submit
    if _core is not None:
        return _core
    if "t" in getattr(sys, "abiflags", ""):
        raise UnsupportedError(
            f"paddlempi does not support free-threaded CPython ({sys.executable} is one): "
            "use a standard build of the same version"
        )
    try:
        core = importlib.import_module("paddlempi._core")
    except ImportError as error:
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
    """The core if it is loaded.

    Raises:
        NotInitializedError: it is not, so that no process group can exist.
    """
    if _core is None:
        _unloaded()
    return _core


def loaded() -> bool:
    """Whether the core is loaded."""
    return _core is not None


def control(method: str, **arguments: object) -> dict[str, Any]:
    """One of the core's control methods: arguments and answer travel as JSON."""
    import json  # only here: 3 ms that `import paddlempi` need not pay

    answer: dict[str, Any] = json.loads(load().control(method, json.dumps(arguments)) or "{}")
    return answer
