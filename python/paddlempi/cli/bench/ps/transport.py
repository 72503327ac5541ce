"""``--level transport``: a trainer and a server; pull and push of batches of ids.

Rank 0 trains, and rank 1 has the tables. Times are of the clock on the wall, because two processes
work. The modules ``rival_*`` say what the others do.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from .... import group, ps
from ..collectives import OURS
from .batches import RATE, Batches
from .findings import Findings
from .measured import Turn, summary, take_turns
from .rival_grpc_go import GrpcGo
from .rival_grpcio import Grpcio
from .rival_redis import Redis
from .rival_torch import TorchRpc
from .rivals import Rival, opened, ours, pull_and_push

__all__ = ["compare", "filled", "measure", "session"]


def measure(chosen: Namespace, findings: Findings) -> None:
    """Measure pull and push of rows. Collective over two ranks."""
    import numpy as np

    makers: dict[str, Callable[[], Rival]] = {
        GrpcGo.NAME: partial(GrpcGo, chosen.grpc_program),
        Grpcio.NAME: Grpcio,
        Redis.NAME: Redis,
        TorchRpc.NAME: TorchRpc,
    }
    with session(chosen, makers, findings) as rivals:
        for dim in chosen.dims if group.get_rank() == 0 else ():
            batches = Batches(np, dim, chosen.rows, dim, max(chosen.batches))
            table = filled(f"bench {dim}", batches)
            for rival in rivals:
                rival.table(batches)
            for batch in chosen.batches:
                batches.draw(batch)
                turns = of_table(table, batches)
                compare(batches.case(), turns, rivals, batches, chosen.rounds, findings)


@contextmanager
def session(
    chosen: Namespace, makers: dict[str, Callable[[], Rival]], findings: Findings
) -> Iterator[list[Rival]]:
    """Start a parameter server of rank 1, and the rivals. Only rank 0 asks. Collective."""
    with opened(list(makers.values()), list(makers), findings) as rivals:
        ps.init("trainer:1,pserver:1", timeout=chosen.timeout)
        try:
            yield rivals
        finally:
            ps.shutdown()  # the server waits here until the trainer has completed


def filled(name: str, batches: Batches) -> ps.RemoteTable:
    """Make a table on the servers with all rows."""
    table = ps.RemoteTable(name, batches.dim, ps.SGD(RATE), ps.Uniform())
    for begin in range(0, batches.rows, 50_000):
        table.pull(batches.np.arange(begin, min(begin + 50_000, batches.rows)))
    return table


def of_table(table: ps.RemoteTable, batches: Batches, alone: bool = True) -> dict[str, Turn]:
    """Return paddlempi's turn with a table on the servers.

    Args:
        alone: this is the only trainer, so it can check what its pushes do.
    """
    out = batches.np.empty((batches.batch, batches.dim), "float32")

    def pull(round_: int) -> None:
        table.pull(batches.ids_of(round_), out)

    def push(round_: int) -> None:
        table.push(batches.ids_of(round_), batches.gradient())

    if not alone:
        return {OURS: pull_and_push(pull, push)}
    return ours(batches, pull, push, lambda: out)


def compare(
    case: dict[str, int],
    turns: dict[str, Turn],
    rivals: list[Rival],
    batches: Batches,
    rounds: int,
    findings: Findings,
) -> None:
    """Measure paddlempi's turn and those of the rivals."""
    for rival in rivals:
        turns |= rival.turns(batches)
    show = findings.watch(case)
    for what, times in take_turns(turns, rounds, show=show).items():
        findings.add(summary(case, what, times))
