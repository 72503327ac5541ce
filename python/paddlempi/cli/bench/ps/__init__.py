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
from typing import Any, NamedTuple

from .... import group
from ....errors import ArgumentError, Error
from .. import contenders, tool
from ..collectives import WrongResultError
from . import dense, model, modes, rpc, servers, table, transport
from .findings import Findings

__all__ = ["LEVELS", "add_to"]

_DENSE_SIZES = (4 << 10, 1 << 20, 64 << 20)


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


def add_to(tools: Any) -> None:
    """Add the tool to the parser of ``bench``."""
    parser = tools.add_parser(
        "ps",
        help="tables of embeddings and parameter servers",
        description="Measures tables of embeddings in one process, without a launcher, or "
        "parameter servers on several ranks.",
    )
    parser.add_argument(
        "--level",
        choices=tuple(LEVELS),
        default="table",
        metavar="LEVEL",
        help="table (the default): in one process; on two ranks, a trainer and a server: "
        "transport: pull and push of rows, against gRPC, Redis and torch's RPC; dense: of a whole "
        "vector, against gRPC; rpc: a gRPC call while threads wait in MPI; model: training steps, "
        "against TorchRec; on more ranks: servers: 1 server and more; modes: the loss over time "
        "with a slow trainer, in every mode",
    )
    parser.add_argument(
        "--dims",
        type=tool.numbers,
        default=[16, 64, 128],
        metavar="N,...",
        help="numbers of a row; 16,64,128",
    )
    parser.add_argument(
        "--batches",
        type=tool.numbers,
        default=[4096, 65536],
        metavar="N,...",
        help="ids of a call; 4096,65536",
    )
    parser.add_argument(
        "--rows", type=tool.positive, default=1_000_000, metavar="N", help="of a table; 1000000"
    )
    tool.add_sizes(parser, "of dense; 4K,1M,64M")
    tool.add_rounds(parser, "calls of each kind")
    parser.add_argument(
        "--trainers",
        type=tool.positive,
        default=1,
        metavar="N",
        help="of servers: the first N ranks; 1",
    )
    parser.add_argument(
        "--grpc-program",
        metavar="FILE",
        help="of transport and dense: build/psgrpc, which make bench-ps builds",
    )
    tool.add_plot(parser, "the losses over time; of modes")
    tool.complete(parser, _run, _check)


def _check(chosen: Namespace) -> None:
    if chosen.plot and chosen.level != "modes":
        raise ArgumentError(f"bench: ps --level {chosen.level}: --plot is of modes")
    chosen.sizes = chosen.sizes or list(_DENSE_SIZES)


def _run(chosen: Namespace) -> int:
    """Measure a level; rank 0 prints the figures. Return 0, 1 after an error, or 2: see bench."""
    level, rank = LEVELS[chosen.level], 0
    try:
        if level.ranks[0]:
            group.init_process_group(timeout=chosen.timeout)
            rank = group.get_rank()
            _check_ranks(chosen.level, level)
        tool.check_folders(chosen)
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
