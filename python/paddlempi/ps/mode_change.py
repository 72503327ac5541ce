"""Another mode between two steps of all trainers."""

from __future__ import annotations

import contextlib

from .. import _native
from ..errors import Error
from .agreement import Mode
from .session import as_trainer, flush

__all__ = ["set_mode"]


def set_mode(
    mode: str,
    *,
    staleness: int = 3,
    send_queue: int = 20,
    merge: int = 20,
    merge_by: str = "sum",
    geo_step: int = 100,
    compensation: float = 0.04,
    mean_square: float | None = None,
    backup_rows: int = 1 << 20,
) -> None:
    """Change the mode. All trainers that have not completed call it, between the same two steps.

    Each trainer first calls :func:`flush`. When all are here with the same arguments, all servers
    change, and then all trainers go on. From any mode to any other: rows, states of optimizers on
    servers and learning rates stay. What belongs to the mode before ends with it: the backups of
    "dc_asgd", and the copies of "geo" with the states of their optimizers. The steps of "ssp" are
    counted from here. What ``ps.step`` divides gradients by is that of the new mode. The order in
    which :func:`tasks` deals shards stays that of :func:`init`.

    Args:
        mode, staleness, send_queue, merge, merge_by, geo_step, compensation, mean_square,
            backup_rows: as for :func:`init`.

    Raises:
        NotInitializedError: before :func:`init`.
        ArgumentError: a value is wrong; this rank does not train; or a push waits for other
            trainers, which one of them has given up: the trainers are not between the same two
            steps. Nothing has changed.
        DtypeError: an argument is of a wrong type.
        UnsupportedError: in mode "geo" a table could not be bounded.
        MismatchError: trainers give other arguments, or one of them raises one of the above:
            ``ranks`` has it. Nothing has changed.
        TimeoutError: a trainer did not come, or a server did not answer, of which others may have
            changed: call it again.
        PeerDiedError: a server has died.
        Error: what :func:`flush` raises. Nothing has changed.
    """
    found = as_trainer("ps.set_mode")
    wanted = Mode(
        mode,
        staleness,
        send_queue,
        merge,
        merge_by,
        geo_step,
        compensation,
        mean_square,
        backup_rows,
    )
    try:
        text = wanted.checked("ps.set_mode")
        flush()
    except Error as error:
        with contextlib.suppress(Error):  # the others learn it
            _native.control("ps_set_mode", refused=str(error))
        raise
    _native.control("ps_set_mode", asked=text, **wanted.for_core())
    found.follow(wanted)
