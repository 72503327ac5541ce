"""One init of a world without an MPI's launcher: the ranks meet, and the core exchanges words."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from typing import Any

from ...errors import Error, LauncherError
from .. import worlds
from ..worlds import World
from .exchange import Exchange, Server
from .init_method import open_store
from .meeting import meet
from .stores import MemoryStore, Store, adapt

__all__ = ["Joining", "host"]


class Joining:
    """The meeting of the ranks of a world, and then the exchange for the core.

    Args:
        world: what :func:`worlds.find` returned; its way is not ``mpi``.
        store: the ``store`` of the init, or None.
        seconds: the deadline of the init.
        version: of this package; it must be the same on all ranks.
        by_mpi: the init names an MPI, which carries the messages then.
        generation, look: as for ``meet``.

    Raises:
        TimeoutError: some ranks did not come; ``ranks`` are those.
        ArgumentError: two processes have one rank, the ranks differ in ``world_size``, or there is
            no such store.
        LauncherError: the ranks differ in ``PADDLEMPI_TRANSPORT`` or in the version; or the store
            is gone.
    """

    def __init__(
        self,
        world: World,
        store: Any,
        seconds: float,
        version: str,
        by_mpi: bool = False,
        generation: int = -1,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        deadline = time.monotonic() + seconds
        transport = "node" if world.way in ("alone", "reform") else worlds.transport()
        if by_mpi and world.way != "reform":
            transport = "mpi"
        same = {worlds.TRANSPORT: transport, "the version of paddlempi": version}
        if world.method.startswith("file://"):
            same["the host, of which file:// serves one only,"] = host()
        rank, size = world.rank, world.size
        opened: Store | None = None
        try:
            if world.way == "alone":
                opened, number = MemoryStore(), secrets.token_hex(16)
                generation = 0
            else:
                opened = (
                    adapt(store) if store is not None else open_store(world.method, rank, deadline)
                )
                number, generation = meet(
                    opened, rank, size, deadline, same, generation=generation, look=look
                )
        except BaseException as error:
            if opened is not None:
                opened.close()
            if isinstance(error, Error) or not isinstance(error, Exception):
                raise
            raise LauncherError(
                f"init_process_group: rank {rank} of {size} ({world.why}): the store in which the "
                f"ranks meet has failed: {error}"
            ) from error
        self._store = opened
        self._server = Server(lambda wanted: Exchange(opened, rank, size, number, deadline, wanted))
        self.arguments = {
            "rank": rank,
            "size": size,
            "id": number,
            "exchange": self._server.descriptor,
            "transport": transport,
            "generation": generation,
        }
        """The argument ``world`` of the core's method ``init``, which closes the descriptor."""

    def end(self, failed: bool = False) -> Exception | None:
        """End the exchange, when the core's init has returned; return why it failed, if it has.

        Args:
            failed: the core's init has raised an error.
        """
        self._server.end(failed)
        self._store.close()
        return self._server.failure


def host() -> str:
    """Return what tells this host from others: containers of one host have several names."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return os.uname().nodename
