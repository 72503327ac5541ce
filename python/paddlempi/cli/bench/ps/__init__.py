"""``bench ps``: tables of embeddings and parameter servers, beside what others offer.

Every level is a module with a function ``measure``, which gets the options and the
:class:`~.findings.Findings`. Contenders take turns in random order, and every result is checked
before it is measured.
"""

from __future__ import annotations

import gc
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .... import group
from ....errors import ArgumentError, Error
from .. import contenders
from ..collectives import WrongResultError, of_all_ranks
from . import dense, model, modes, rpc, servers, table, transport
from .findings import Findings

__all__ = ["LEVELS", "run"]


class Level(NamedTuple):
    """What is measured.

    Attributes:
        ranks: the least and the greatest number of ranks; 0: it is for one process, without MPI.
        nodes: whether the ranks may be on several nodes.
    """

    measure: Callable[[Namespace, Findings], None]
    ranks: tuple[int, int]
    nodes: bool = False


LEVELS = {
    "table": Level(table.measure, (0, 0)),
    "transport": Level(transport.measure, (2, 2), nodes=True),
    "dense": Level(dense.measure, (2, 2), nodes=True),
    "servers": Level(servers.measure, (2, 64), nodes=True),
    "rpc": Level(rpc.measure, (2, 2)),
    "model": Level(model.measure, (2, 2)),
    "modes": Level(modes.measure, (3, 64)),
}


def run(chosen: Namespace) -> int:
    """Measure a level; rank 0 prints the figures. Return 0, 1 after an error, or 2: see bench."""
    level, rank = LEVELS[chosen.level], 0
    try:
        if level.ranks[0]:
            group.init_process_group(timeout=chosen.timeout)
            rank = group.get_rank()
            _check_ranks(chosen.level, level)
        for file in (chosen.json, chosen.plot):
            there = not file or Path(file).parent.is_dir()
            if not all(of_all_ranks("1" * there)) if level.ranks[0] else not there:
                raise ArgumentError(f"bench: {file}: there is no folder for it")
        gc.disable()  # a collection would count as the time of some call
        try:
            findings = Findings(chosen)
            level.measure(chosen, findings)
            findings.end()
        finally:
            gc.enable()
            contenders.stop()
    except (ArgumentError, WrongResultError) as error:
        if rank == 0:
            print(error, file=sys.stderr, flush=True)
        return 1 if group.is_initialized() else 2  # 2: the command is wrong, and nothing was begun
    except Error as error:
        print(f"bench: rank {rank}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _check_ranks(name: str, level: Level) -> None:
    size, (least, most) = group.get_world_size(), level.ranks
    elsewhere = group.get_local_size() != size and not level.nodes
    if not least <= size <= most or elsewhere:
        number = "two" if most == 2 else f"{least} to {most}"
        where = "" if level.nodes else " of one node"
        raise ArgumentError(
            f"bench: ps --level {name} is for {number} ranks{where}: "
            f"mpirun -np {least} python -m paddlempi bench ps --level {name}"
        )
