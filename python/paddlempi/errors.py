"""The exceptions that paddlempi raises, as a tree.

::

    Error                         everything that paddlempi raises
    ├── ArgumentError             (ValueError) a value, count or shape; a read-only buffer
    │   └── IndexError            (builtins.IndexError) an index of a window out of range
    ├── DtypeError                (TypeError) no tensor, or no dtype for this operation
    ├── NotInitializedError       (RuntimeError) before init_process_group, after destroy
    ├── AlreadyInitializedError   (RuntimeError) init_process_group while initialised
    ├── StartError                (RuntimeError) MPI could not be started
    │   ├── MPINotFoundError      no usable libmpi; the message lists where it was looked for
    │   ├── LauncherError         the launcher and the library belong to different MPIs
    │   └── ThreadLevelError      the running MPI is below MPI_THREAD_MULTIPLE
    ├── TimeoutError              (builtins.TimeoutError) a deadline; ``ranks`` never came
    │   └── NotReadyError         the limit of one ``Work.wait``; the operation goes on
    ├── CollectiveError           (RuntimeError) the members did not do the same thing
    │   ├── MismatchError         ``ranks`` called something else
    │   ├── RefusedError          ``ranks`` refused: the exception of those ranks says why
    │   └── PeerLeftError         ``ranks`` ended while this rank waits for them
    │       └── PeerDiedError     they died
    ├── GroupError                (RuntimeError) the group cannot be used
    │   ├── GroupBrokenError      an earlier timeout, interrupt or MPI error left it unusable
    │   ├── GroupDestroyedError   it was destroyed
    │   ├── ReentrantError        a signal handler used it while its thread waits in it
    │   └── NotMemberError        this rank is no member of it
    ├── MPIError                  (RuntimeError) an error of MPI; ``mpi_class`` has its class
    │   ├── TruncateError         a message and its buffer differ in length
    │   ├── ProcFailedError       MPI reports a dead process; a PeerDiedError too
    │   └── RevokedError          a rank has revoked the world
    ├── RankFailedError           (RuntimeError) a function given to launch failed in ``ranks``
    ├── CudaError                 (RuntimeError) the CUDA driver refused a call
    ├── ForkError                 (RuntimeError) a call in a fork of the process that initialised
    ├── CorePanicError            (RuntimeError) a defect of the core; later calls fail too
    ├── UnsupportedError          (NotImplementedError) not on this machine, MPI or Python
    └── OutOfMemoryError          (MemoryError) the core could not allocate memory

Every instance has ``ranks`` (a tuple of the world ranks concerned, 32 at most), ``code`` (the
number in ``capi/pmpi.h``; 0 for classes that only group others) and ``mpi_class`` (MPI's error
class in the numbering of the MPI-5 ABI; 0 if MPI had no part in the error). Ctrl-C raises a plain
``KeyboardInterrupt``. ``docs/errors.md`` says for each class what to do.
"""

from __future__ import annotations

import builtins
from typing import ClassVar, Final

__all__ = [
    "LOST",
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
    "IndexError",
    "LauncherError",
    "MPIError",
    "MPINotFoundError",
    "MismatchError",
    "NotInitializedError",
    "NotMemberError",
    "NotReadyError",
    "OutOfMemoryError",
    "PeerDiedError",
    "PeerLeftError",
    "ProcFailedError",
    "RankFailedError",
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
    """The base class of all exceptions of paddlempi."""

    CODE: ClassVar[int] = 0
    """The class's number in ``capi/pmpi.h``; 0: the core does not raise this class itself."""

    ranks: tuple[int, ...] = ()
    """The world ranks that the error is about, in the sense that the class gives."""
    mpi_class: int = 0
    """MPI's error class in the numbering of the MPI-5 ABI; 0 if the error is not MPI's."""
    code: int
    """``CODE`` of the class, or of the class above it that has one."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.code = self.CODE


class ArgumentError(Error, ValueError):
    """A value is out of range, a count or shape is wrong, or an output is read-only."""

    CODE = 1


class IndexError(ArgumentError, builtins.IndexError):
    """An index of a window or of its proxy is out of range. Python's loops end by it."""


class DtypeError(Error, TypeError):
    """An object is no tensor or of a wrong type, or the operation is not defined for the dtype."""

    CODE = 2


class NotInitializedError(Error, RuntimeError):
    """A call before ``init_process_group`` or after ``destroy_process_group``."""

    CODE = 3


class AlreadyInitializedError(Error, RuntimeError):
    """``init_process_group`` was called while the process is initialised."""

    CODE = 4


class StartError(Error, RuntimeError):
    """MPI could not be started."""


class MPINotFoundError(StartError):
    """There is no usable libmpi. The message lists where it was looked for and what to install."""

    CODE = 5


class LauncherError(StartError):
    """The launcher and the library belong to different MPIs. The message names both."""

    CODE = 6


class ThreadLevelError(StartError):
    """MPI runs, or can run, below ``MPI_THREAD_MULTIPLE`` only."""

    CODE = 7


class TimeoutError(Error, builtins.TimeoutError):
    """The deadline of an operation ran out; ``ranks`` never came.

    A collective or a send breaks its group by this. A receive or a probe leaves it usable.
    """

    CODE = 8


class NotReadyError(TimeoutError):
    """The limit given to one ``Work.wait`` ran out. The operation goes on; the group is usable."""

    CODE = 23


class CollectiveError(Error, RuntimeError):
    """The members of a group did not do the same thing."""


class MismatchError(CollectiveError):
    """The members called different operations, or one operation with different arguments.

    ``ranks`` did not make the most frequent call. If there are two calls, made by equally many
    ranks, ``ranks`` has all of them.
    """

    CODE = 10


class RefusedError(CollectiveError):
    """``ranks`` found their own arguments wrong and raise that error. The group stays usable."""

    CODE = 11


class PeerLeftError(CollectiveError):
    """``ranks`` ended while this rank waits for them; in order, unless it is a PeerDiedError."""

    CODE = 12


class PeerDiedError(PeerLeftError):
    """The processes of ``ranks`` ended without leaving the job: killed, crashed, ``os._exit``."""

    CODE = 27


class GroupError(Error, RuntimeError):
    """The group cannot be used."""


class GroupBrokenError(GroupError):
    """An earlier timeout, interrupt or MPI error left the group unusable."""

    CODE = 13


class GroupDestroyedError(GroupError):
    """The group was destroyed."""

    CODE = 14


class ReentrantError(GroupError):
    """A signal handler called a collective while its thread waited in one of the same group.

    The first collective cannot end before the handler does. Let the handler set a flag instead,
    and ``all_reduce`` the flag in every step: a signal interrupts every rank at another place. The
    same holds for a push to parameter servers that interrupted a push of its thread.
    """

    CODE = 26


class NotMemberError(GroupError):
    """A call that only members may make, such as ``split_group``, on a rank that is no member."""

    CODE = 24


class MPIError(Error, RuntimeError):
    """An error of MPI; ``mpi_class`` has its error class in the numbering of the MPI-5 ABI."""

    CODE = 15


class TruncateError(MPIError):
    """A message is longer or shorter than the buffer that should receive it."""

    CODE = 16


class ProcFailedError(MPIError, PeerDiedError):
    """MPI reports that a process has died, and paddlempi cannot see which."""

    CODE = 17


class RevokedError(MPIError):
    """A rank has revoked the world, because it goes on in another one; the text ends with why."""

    CODE = 18


class RankFailedError(Error, RuntimeError):
    """A function given to ``launch`` raised an exception in ``ranks``, or their process ended."""


class CudaError(Error, RuntimeError):
    """The CUDA driver refused a call. The message has the driver's error.

    It says so if the error comes from an earlier kernel of the program.
    """

    CODE = 25


class ForkError(Error, RuntimeError):
    """The process is a fork of the process that initialised. Only the parent can use MPI."""

    CODE = 19


class CorePanicError(Error, RuntimeError):
    """A defect of the core. Every later call fails too. Please report it."""

    CODE = 20


class UnsupportedError(Error, NotImplementedError):
    """This machine, MPI or Python lacks what the call needs, such as a CUDA driver."""

    CODE = 21


class OutOfMemoryError(Error, MemoryError):
    """The core could not allocate memory."""

    CODE = 22


def _leaves(root: type[Error]) -> dict[int, type[Error]]:
    found = {root.CODE: root} if "CODE" in vars(root) and root.CODE else {}
    for child in root.__subclasses__():
        found |= _leaves(child)
    return found


LOST: Final[tuple[type[Error], ...]] = (PeerLeftError, GroupBrokenError, RevokedError)
"""Those that a death may end an operation with: what was under way is lost, and the survivors may
go on in a world of their own. ``PeerDiedError`` and ``ProcFailedError`` are PeerLeftErrors."""

BY_CODE: Final[dict[int, type[Error]]] = _leaves(Error)
"""The class that the core raises for each code of ``capi/pmpi.h``."""
