"""What ``torch.distributed`` gets: the names of the backends, and stubs in functions of torch.

``import torch`` puts them there (:mod:`.torch_autoload`), or ``import paddlempi.torch`` where that
was switched off. A stub loads the front when one of the backends is first used.

All names of torch that this module replaces are private to torch. It looks all of them up before it
replaces the first. It replaces the code inside a function, not the function, so that a module that
has imported the function before gets the new code too.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from . import starters, torchrun_variables

__all__ = ["GLOO", "NAMES", "SETTING", "entered", "originals", "register"]

NAMES = ("mpi", "paddlempi")
"""The names of the backend."""

entered: set[str] = set()
"""The names in ``NAMES`` that are registered for paddlempi in this process."""

originals: dict[str, Any] = {}
"""torch's functions that were replaced, by name; under ``env`` its handler of ``env://``."""

load: Callable[[], Any] | None = None
"""Imports the front and returns its module ``activation``. ``torch_autoload`` sets it."""

lazily = False
"""Whether a stub, and not the user, is importing ``paddlempi.torch``."""

defaults: tuple[str, ...] = ()
"""The devices for which torch takes ``mpi`` where no backend is named: see ``DEFAULT``."""

gloo_is_ours = False
"""Whether groups that a program wants of gloo are made of ``mpi``: see ``GLOO``."""

gloo_was_asked = False
"""Whether a program has asked for such a group."""

naming = 0
"""How many groups are being made for which the program has named the backend."""

# What this module needs of torch's distributed_c10d.
_FUNCTIONS = (
    "init_process_group",
    "is_mpi_available",
    "_new_process_group_helper",
    "_new_group_with_tag",
    "split_group",
    "monitored_barrier",
)
# Replaced where this torch has them.
_NEWER = ("shrink_group",)
_OTHERS = ("Backend", "ProcessGroup", "_world", "_MPI_AVAILABLE")

SETTING = "PADDLEMPI_TORCH"
"""0: ``import torch`` sets no variables, and ``is_mpi_available()`` is False. 1: it sets them in
every job of several ranks, and ``is_mpi_available()`` is True. Naming the backend always works."""

DEFAULT = "PADDLEMPI_TORCH_DEFAULT"
"""``cpu``, ``cuda`` or ``cpu,cuda``: in a job of several ranks, torch takes ``mpi`` for these
devices where a program names no backend, and ``get_default_backend_for_device`` returns it."""

GLOO = "PADDLEMPI_TORCH_GLOO"
"""``mpi``: a program that asks for gloo on the CPU, by name or by torch's default, gets ``mpi``.
For programs that name gloo and cannot be told otherwise."""


def register(replace_native: bool) -> None:
    """Register the names, unless they are registered.

    Args:
        replace_native: register ``mpi`` also in a torch that was built with an MPI, instead of
            torch's backend of that name.

    Raises:
        ImportError: this torch has no ``torch.distributed``, or lacks a private name that this
            module needs; the message has the names and the version of torch.
    """
    import importlib

    c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
    rendezvous: Any = importlib.import_module("torch.distributed.rendezvous")
    if not originals:
        _check(c10d, rendezvous)
        native = c10d.is_mpi_available()
        for name in (*_FUNCTIONS, *(name for name in _NEWER if hasattr(c10d, name))):
            originals[name] = _replace(getattr(c10d, name), _STUBS[name])
        originals["env"] = rendezvous._rendezvous_handlers["env"]
        rendezvous._rendezvous_handlers["env"] = _env
        _enter(c10d, "paddlempi")
        if native and not replace_native:
            return
    if "mpi" not in entered and (replace_native or not originals["is_mpi_available"]()):
        c10d.ProcessGroupMPI = _Native
        c10d._MPI_AVAILABLE = True
        # torch up to 2.12 knows "mpi" already, which cannot be registered twice, and makes its
        # groups by ProcessGroupMPI.
        if hasattr(c10d.Backend, "_ensure_backend_registered"):
            _enter(c10d, "mpi")
        else:  # for programs that call the creator themselves
            c10d.Backend._plugins["MPI"] = c10d.Backend._plugins["PADDLEMPI"]
        entered.add("mpi")
    _make_default(c10d)
    _take_gloo(c10d)


def _make_default(c10d: Any) -> None:
    """Make ``mpi`` torch's default for the devices that the user names, where a job was started."""
    global defaults
    devices = [name for name in re.split(r"[,\s]+", os.environ.get(DEFAULT, "")) if name]
    if not devices or "mpi" not in entered or starters.nearest() == (None, None):
        return
    wrong = [device for device in devices if device not in ("cpu", "cuda")]
    if wrong:
        raise ValueError(f"{DEFAULT}={os.environ[DEFAULT]!r}: mpi serves cpu and cuda, not {wrong}")
    defaults = tuple(devices)
    for device in devices:
        c10d.Backend.default_device_backend_map[device] = "mpi"


def _take_gloo(c10d: Any) -> None:
    """Make ``mpi`` of every gloo for the CPU, if the user wants that."""
    global gloo_is_ours, defaults
    asked = os.environ.get(GLOO, "")
    if asked not in ("", "mpi"):
        raise ValueError(f"{GLOO}={asked!r}: it must be mpi, or not set")
    if not asked or "mpi" not in entered:
        return
    gloo_is_ours = True
    if c10d.Backend.default_device_backend_map.get("cpu") == "gloo":
        defaults = (*defaults, "cpu")
        c10d.Backend.default_device_backend_map["cpu"] = "mpi"


def asked(place: int, arguments: Any, named: Any) -> tuple[Any, Any, Any]:
    """Return the arguments of a call, and the backend in them: that to use where gloo is ours.

    Args:
        place: which of ``arguments`` is the backend, where it is not in ``named``.
    """
    global gloo_was_asked
    backend = named["backend"] if "backend" in named else (*arguments, *[None] * 4)[place]
    if not gloo_is_ours or backend is None:
        return arguments, named, backend
    ours = without_gloo(backend)
    if ours == str(backend).lower():
        return arguments, named, backend
    gloo_was_asked = True
    if "backend" in named:
        return arguments, {**named, "backend": ours}, ours
    return (*arguments[:place], ours, *arguments[place + 1 :]), named, ours


def without_gloo(backend: object) -> str:
    """Return a backend string with ``mpi`` in the place of gloo for the CPU, where that is ours."""
    names = str(backend).lower()
    if not gloo_is_ours:
        return names
    return "mpi" if names == "gloo" else re.sub(r"(^|,)cpu:gloo(?=,|$)", r"\1cpu:mpi", names)


def _enter(c10d: Any, name: str) -> None:
    c10d.Backend.register_backend(name, _create, extended_api=True, devices=["cpu", "cuda"])
    entered.add(name)


def _check(c10d: Any, rendezvous: Any) -> None:
    """Look up every name before one is replaced, so that an error leaves torch as it is."""
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
    """Replace the code of a function by that of ``stub``; return a function with the old code."""
    inner: FunctionType = inspect.unwrap(function)
    signature = inspect.signature(inner)
    original = FunctionType(inner.__code__, inner.__globals__, inner.__name__, inner.__defaults__)
    original.__kwdefaults__ = inner.__kwdefaults__
    inner.__code__ = stub.__code__
    inner.__defaults__ = inner.__kwdefaults__ = None
    inner.__signature__ = signature  # type: ignore[attr-defined]
    return original


def concerns(backend: object) -> bool:
    """Whether a group of this backend may be paddlempi's. Fast, and does not import paddlempi."""
    if "paddlempi.torch.activation" in sys.modules:
        return True
    name = str(backend).lower()
    return "mpi" in name or (bool(defaults) and name in ("none", "undefined"))


def front() -> Any:
    """Return ``paddlempi.torch.activation``. Load it at the first use."""
    loaded = sys.modules.get("paddlempi.torch.activation")
    return load() if loaded is None and load is not None else loaded


def offered() -> bool:
    """Whether ``is_mpi_available()`` shall return True.

    Some libraries, such as accelerate, choose "mpi" if it is available. They must not do so if
    variables that another program has set say that there are processes which nothing that we know
    has started.
    """
    if naming or "mpi" not in entered:  # torch asks while it makes a group; or "mpi" is torch's own
        return True
    setting = os.environ.get(SETTING)
    if setting in ("0", "1"):
        return setting == "1"
    started, starter = starters.nearest()
    if starter is not None:
        return starters.possible(starter)
    given = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name in os.environ]
    if all(torchrun_variables.is_ours(name) for name in given):
        return True
    return started is not None and os.environ.get("WORLD_SIZE") in (None, str(started.size))


class _Native:
    """Replaces the C++ class ``ProcessGroupMPI`` that a torch built with MPI has."""

    @staticmethod
    def create(ranks: list[int]) -> Any:
        return front().create(ranks)


def _create(options: Any, pg_options: Any) -> Any:
    return front().create(options.global_ranks_in_group, options)


def _env(url: str, **options: Any) -> Any:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "init_process_group":
        frame = frame.f_back
    backend = None if frame is None else frame.f_locals.get("backend")
    if concerns(backend):
        return front().env_rendezvous(url, backend, **options)
    return originals["env"](url, **options)


# The code that replaces that of torch's functions. It runs with the globals of torch's module, so
# it has to import this module.


def _stub_init(*arguments: Any, **named: Any) -> Any:
    from paddlempi_bootstrap import torch_stubs as ours

    arguments, named, backend = ours.asked(0, arguments, named)
    if ours.concerns(backend):
        return ours.front().init_process_group(*arguments, **named)
    return ours.originals["init_process_group"](*arguments, **named)


def _stub_available() -> bool:
    from paddlempi_bootstrap import torch_stubs as ours

    return bool(ours.originals["is_mpi_available"]() and ours.offered())


def _stub_helper(*arguments: Any, **named: Any) -> Any:
    from paddlempi_bootstrap import torch_stubs as ours

    arguments, named, backend = ours.asked(3, arguments, named)
    if ours.concerns(backend):
        return ours.front().new_process_group_helper(*arguments, **named)
    return ours.originals["_new_process_group_helper"](*arguments, **named)


def _stub_new_group(*arguments: Any, **named: Any) -> Any:
    from paddlempi_bootstrap import torch_stubs as ours

    arguments, named, backend = ours.asked(2, arguments, named)
    if ours.concerns(backend):
        return ours.front().new_group_with_tag(*arguments, **named)
    return ours.originals["_new_group_with_tag"](*arguments, **named)


def _stub_split(*arguments: Any, **named: Any) -> Any:
    from paddlempi_bootstrap import torch_stubs as ours

    if ours.concerns(None):
        return ours.front().split_group(*arguments, **named)
    return ours.originals["split_group"](*arguments, **named)


def _stub_barrier(*arguments: Any, **named: Any) -> Any:
    from paddlempi_bootstrap import torch_stubs as ours

    if ours.concerns(None):
        return ours.front().monitored_barrier(*arguments, **named)
    return ours.originals["monitored_barrier"](*arguments, **named)


def _stub_shrink(*arguments: Any, **named: Any) -> Any:
    from paddlempi_bootstrap import torch_stubs as ours

    if ours.concerns(None):
        return ours.front().shrink_group(*arguments, **named)
    return ours.originals["shrink_group"](*arguments, **named)


_STUBS: dict[str, Any] = {
    "init_process_group": _stub_init,
    "is_mpi_available": _stub_available,
    "_new_process_group_helper": _stub_helper,
    "_new_group_with_tag": _stub_new_group,
    "split_group": _stub_split,
    "monitored_barrier": _stub_barrier,
    "shrink_group": _stub_shrink,
}
