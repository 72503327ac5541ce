"""What can go wrong, as a tree of exceptions.

::

    Error                         everything that paddlempi raises
    ├── ArgumentError             (ValueError) a value, count or shape; a read-only buffer
    ├── DtypeError                (TypeError) no tensor, or no dtype for this operation
    ├── NotInitializedError       (RuntimeError) before init_process_group, after destroy
    ├── AlreadyInitializedError   (RuntimeError) init_process_group while initialised
    ├── StartError                (RuntimeError) MPI could not be started
    │   ├── MPINotFoundError      no usable libmpi; the message lists where it was looked for
    │   ├── LauncherError         the launcher and the library belong to different MPIs
    │   └── ThreadLevelError      the running MPI is below MPI_THREAD_MULTIPLE
    ├── TimeoutError              (builtins.TimeoutError) a deadline; ``ranks`` never came
    │   └── NotReadyError         the limit of one ``Work.wait``; the work goes on
    ├── CollectiveError           (RuntimeError) the members did not do the same thing
    │   ├── MismatchError         ``ranks`` called something else
    │   ├── RefusedError          ``ranks`` refused: their own exception tells why
    │   └── PeerLeftError         ``ranks`` ended while others wait for them
    ├── GroupError                (RuntimeError) the group cannot be used
    │   ├── GroupBrokenError      an earlier timeout or interrupt left it unusable
    │   ├── GroupDestroyedError   it was destroyed
    │   ├── ReentrantError        a signal handler called it while its own thread waits in it
    │   └── NotMemberError        this rank does not belong to it
    ├── MPIError                  (RuntimeError) an error of MPI; ``mpi_class`` has its class
    │   ├── TruncateError         a message and its buffer differ in length
    │   ├── ProcFailedError       MPI reports a dead process
    │   └── RevokedError          the communicator was revoked
    ├── CudaError                 (RuntimeError) the CUDA driver refused; the text says whose error
    ├── ForkError                 (RuntimeError) in a fork of the process that initialised
    ├── CorePanicError            (RuntimeError) a defect of the core, unusable from here on
    ├── UnsupportedError          (NotImplementedError) not on this machine, MPI or Python
    └── OutOfMemoryError          (MemoryError) the core could not allocate

Every instance has ``ranks`` (a tuple of world ranks that are concerned),
``code`` (the number in ``capi/pmpi.h``) and ``mpi_class`` (MPI's error class, 0
where MPI had no part in it). Ctrl-C is a plain ``KeyboardInterrupt``.
"""

from __future__ import annotations

import builtins
from typing import ClassVar, Final

__all__ = [
    "AlreadyInitializedError",
    "ArgumentError",
    "CollectiveError",
    "CorePanicError",
    "CudaError",
    "DtypeError",
    "Error",
    "ForkError",
    "GroupBrokenError",
    "GroupDestroyedError",
    "GroupError",
    "LauncherError",
    "MPIError",
    "MPINotFoundError",
    "MismatchError",
    "NotInitializedError",
    "NotMemberError",
    "NotReadyError",
    "OutOfMemoryError",
    "PeerLeftError",
    "ProcFailedError",
    "ReentrantError",
    "RefusedError",
    "RevokedError",
    "StartError",
    "ThreadLevelError",
    "TimeoutError",
    "TruncateError",
    "UnsupportedError",
]


class Error(Exception):
    """The root of the tree; see the module for the rest."""

    CODE: ClassVar[int] = 0

    ranks: tuple[int, ...] = ()
    mpi_class: int = 0
    code: int

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.code = self.CODE


class ArgumentError(Error, ValueError):
    """A value out of range, a wrong count or shape, a read-only buffer to write into."""

    CODE = 1


class DtypeError(Error, TypeError):
    """An object that is no tensor, or a dtype that the operation is not defined for."""

    CODE = 2


class NotInitializedError(Error, RuntimeError):
    """A use before ``init_process_group`` or after ``destroy_process_group``."""

    CODE = 3


class AlreadyInitializedError(Error, RuntimeError):
    """``init_process_group`` while the process is initialised."""

    CODE = 4


class StartError(Error, RuntimeError):
    """MPI could not be started."""


class MPINotFoundError(StartError):
    """No usable libmpi; the message lists where it was looked for and what to install."""

    CODE = 5


class LauncherError(StartError):
    """The launcher and the library belong to different MPIs; the message names both."""

    CODE = 6


class ThreadLevelError(StartError):
    """The MPI that is already running was initialised below ``MPI_THREAD_MULTIPLE``."""

    CODE = 7


class TimeoutError(Error, builtins.TimeoutError):
    """A deadline ran out; ``ranks`` never came. The group is broken from here on."""

    CODE = 8


class NotReadyError(TimeoutError):
    """The limit given to one ``Work.wait`` ran out. The work goes on, the group is sound."""

    CODE = 23


class CollectiveError(Error, RuntimeError):
    """The members of a group did not do the same thing."""


class MismatchError(CollectiveError):
    """``ranks`` called another operation, or the same with other arguments."""

    CODE = 10


class RefusedError(CollectiveError):
    """``ranks`` refused their part of the collective; the group stays usable."""

    CODE = 11


class PeerLeftError(CollectiveError):
    """``ranks`` ended normally, so that what waits for them can never end."""

    CODE = 12


class GroupError(Error, RuntimeError):
    """The group cannot be used."""


class GroupBrokenError(GroupError):
    """An earlier timeout or interrupt left the group unusable."""

    CODE = 13


class GroupDestroyedError(GroupError):
    """The group was destroyed."""

    CODE = 14


class ReentrantError(GroupError):
    """A signal handler called a collective while its thread waited in one of the same group, which
    cannot end before the handler does.

    Set a flag in the handler, and ``all_reduce`` the flag at each step: signals land at
    different places on each rank.
    """

    CODE = 26


class NotMemberError(GroupError):
    """A collective on a group that this rank does not belong to."""

    CODE = 24


class MPIError(Error, RuntimeError):
    """An error of MPI; ``mpi_class`` holds its error class as this MPI numbers it."""

    CODE = 15


class TruncateError(MPIError):
    """A message is longer or shorter than the buffer that should take it."""

    CODE = 16


class ProcFailedError(MPIError):
    """MPI reports that a process has died."""

    CODE = 17


class RevokedError(MPIError):
    """The communicator was revoked."""

    CODE = 18


class CudaError(Error, RuntimeError):
    """The CUDA driver refused; the message has its error, and whether an earlier kernel of the
    program's own left it."""

    CODE = 25


class ForkError(Error, RuntimeError):
    """The process is a fork of the one that initialised and cannot use its MPI."""

    CODE = 19


class CorePanicError(Error, RuntimeError):
    """A defect of the core. It refuses every further call; please report it."""

    CODE = 20


class UnsupportedError(Error, NotImplementedError):
    """Absent on this machine, in this MPI or in this Python (a CUDA driver, ...)."""

    CODE = 21


class OutOfMemoryError(Error, MemoryError):
    """The core could not allocate."""

    CODE = 22


def _leaves(root: type[Error]) -> dict[int, type[Error]]:
    found = {root.CODE: root} if "CODE" in vars(root) and root.CODE else {}
    for child in root.__subclasses__():
        found |= _leaves(child)
    return found


BY_CODE: Final[dict[int, type[Error]]] = _leaves(Error)
"""The class of each code of ``capi/pmpi.h``: what the core raises."""
