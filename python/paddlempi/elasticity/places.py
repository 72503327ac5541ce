"""Where the coordinator of an elastic job is, by what has started this process.

=====================================  ==========================================================
started by                             the coordinator
=====================================  ==========================================================
``run -np N --elastic MIN``            the launcher; this process inherits a connection
an MPI's launcher, srun, ``run -np``,  the lowest rank that lives (``deputy``), if the launcher
a program                              leaves those alone that are left; on several nodes, if the
                                       MPI makes a communicator of them
torchrun                               none: it ends all ranks when one dies
nothing                                none: the process is alone
=====================================  ==========================================================
"""

from __future__ import annotations

import os
import socket
import stat

from paddlempi_bootstrap import starters

from .. import _native
from ..errors import LauncherError, UnsupportedError
from ..group import get_local_size, get_rank, get_world_size
from ..objects import all_gather_object
from ..startup import worlds
from .deputy import Address, Deputy, PeersLink
from .link import Link
from .wire import Channel

__all__ = ["ELASTIC", "Place", "find"]

ELASTIC = "PADDLEMPI_ELASTIC"
"""The descriptor of a rank's connection to ``python -m paddlempi run --elastic``."""

_START = "start the ranks with python -m paddlempi run -np N --elastic MIN"


class Place:
    """This process is a job of its own."""

    alone = True
    """Whether the process begins in a world of its own."""
    tells = False
    """Whether the coordinator tells the ranks when all of them are asked to end."""
    why = ""
    """Why the job ends with its first rank; "": it does not."""

    def link(self) -> Link | None:
        """Return the connection to the coordinator, when there is a world."""
        return None


class _Launcher(Place):
    tells = True

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def link(self) -> Link | None:
        return Link(Channel(self._connection))


class _Peers(Place):
    alone = False

    def __init__(self, why: str = "", by_mpi: bool = False) -> None:
        self.why, self._by_mpi = why, by_mpi

    def link(self) -> Link | None:
        if self.why or get_world_size() == 1:
            return None
        several = get_local_size() < get_world_size()
        if several and (not self._by_mpi or _mpi() not in _GO_ON):
            self.why = (
                f"the ranks are on several nodes, which under {_mpi()} cannot go on after a death; "
                f"under mpirun they can with {' and '.join(_GO_ON.values())}; on one node, {_START}"
            )
            return None
        deputy = Deputy(several)
        told: list[Address] = [deputy.address] * get_world_size()
        all_gather_object(told, deputy.address)
        addresses = {rank: Address(*address) for rank, address in enumerate(told)}
        deputy.serve(addresses)
        return PeersLink(get_rank(), addresses, several)


_GO_ON = {
    "Open MPI": "Open MPI's --with-ft ulfm",
    "Intel MPI": "Intel MPI's -disable-auto-cleanup",
}
"""The MPIs that make communicators after a death, and how their launchers leave ranks alone."""


def _mpi() -> str:
    found = _native.control("info")["mpi"]
    return str(found["name"]) if found else "no MPI"


_taken = False  # the connection that the launcher has made


def find() -> Place:
    """Return where the coordinator of this process is.

    Raises:
        LauncherError: the descriptor that the launcher has named is not there.
        UnsupportedError: this process had an elastic job before.
    """
    global _taken
    text = os.environ.pop(ELASTIC, "")  # not for children of this process
    if text:
        _taken = True
        return _Launcher(_inherited(text))
    if _taken:
        raise UnsupportedError(
            "elastic: this process has had its elastic job: a program has one, whose steps may "
            "be those of several phases"
        )
    world = worlds.find()
    if world.size == 1 and world.way != "mpi":
        return Place()
    _, starter = starters.nearest()
    if starter is not None and starter.name == "torchrun":
        return _Peers(f"torchrun ends all ranks when one dies (--max-restarts); {_START}")
    return _Peers(by_mpi=world.way == "mpi")


def _inherited(text: str) -> socket.socket:
    try:
        descriptor = int(text)
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise OSError(f"descriptor {descriptor} is no socket")
        connection = socket.socket(fileno=descriptor)
    except (OSError, ValueError) as error:
        raise LauncherError(
            f"elastic: {ELASTIC}={text}: {error}: a rank of run --elastic inherits the descriptor "
            "of its connection; let what stands between the two, such as a shell, keep it open"
        ) from None
    connection.set_inheritable(False)
    os.register_at_fork(after_in_child=connection.close)
    return connection
