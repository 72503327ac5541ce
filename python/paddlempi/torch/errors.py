"""Subclasses of paddlempi's exceptions that are ``torch.distributed.DistBackendError`` too.

While this front is in use, the core raises these classes, also for operations of paddlempi's own
API. So each of these lines catches a timeout of a collective::

    except paddlempi.errors.TimeoutError
    except builtins.TimeoutError
    except torch.distributed.DistBackendError      # and so RuntimeError

There are no such subclasses of the exceptions that torch's users catch as ``ValueError``,
``TypeError`` or ``NotImplementedError``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

import torch

from .. import _native, errors
from ..errors import Error

__all__ = [
    "BY_CODE",
    "CorePanicError",
    "CudaError",
    "ForkError",
    "GroupBrokenError",
    "GroupDestroyedError",
    "LauncherError",
    "MPIError",
    "MPINotFoundError",
    "MismatchError",
    "NotMemberError",
    "NotReadyError",
    "PeerDiedError",
    "PeerLeftError",
    "ProcFailedError",
    "ReentrantError",
    "RefusedError",
    "RevokedError",
    "ThreadLevelError",
    "TimeoutError",
    "TruncateError",
    "install",
]


_made: list[type[Error]] = []


def _both(base: type[Error]) -> Any:
    """Make a subclass of ``base`` and of torch's ``DistBackendError``, of the same name."""
    made = type(
        base.__name__,
        (base, torch.distributed.DistBackendError),
        {"__module__": __name__, "__doc__": base.__doc__},
    )
    _made.append(made)
    return made


MPINotFoundError = _both(errors.MPINotFoundError)
LauncherError = _both(errors.LauncherError)
ThreadLevelError = _both(errors.ThreadLevelError)
TimeoutError = _both(errors.TimeoutError)
NotReadyError = _both(errors.NotReadyError)
MismatchError = _both(errors.MismatchError)
RefusedError = _both(errors.RefusedError)
PeerLeftError = _both(errors.PeerLeftError)
PeerDiedError = _both(errors.PeerDiedError)
GroupBrokenError = _both(errors.GroupBrokenError)
GroupDestroyedError = _both(errors.GroupDestroyedError)
ReentrantError = _both(errors.ReentrantError)
NotMemberError = _both(errors.NotMemberError)
MPIError = _both(errors.MPIError)
TruncateError = _both(errors.TruncateError)
ProcFailedError = _both(errors.ProcFailedError)
RevokedError = _both(errors.RevokedError)
CudaError = _both(errors.CudaError)
ForkError = _both(errors.ForkError)
CorePanicError = _both(errors.CorePanicError)

BY_CODE: Final[dict[int, type[Error]]] = {
    **errors.BY_CODE,
    **{made.CODE: made for made in _made},
}
"""The class that the core raises for each code of ``capi/pmpi.h`` after :func:`install`."""


def install() -> None:
    """Let the core raise the classes of this module."""
    _native.on_load(_install)


def _install(core: ModuleType) -> None:
    core.set_errors(BY_CODE)
