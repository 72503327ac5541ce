"""``--level dense``: a trainer and a server; push of a gradient and pull of a whole vector.

gRPC's tables have the blocks of the vector as rows.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial

from .... import group, ps
from .batches import RATE, Batches
from .findings import Findings
from .rival_grpc_go import GrpcGo
from .rival_grpcio import Grpcio
from .rivals import Rival, ours
from .transport import compare, session

__all__ = ["measure"]


def measure(chosen: Namespace, findings: Findings) -> None:
    """Measure vectors of ``--sizes``. Collective over two ranks."""
    import numpy as np

    from ....ps import dense

    makers: dict[str, Callable[[], Rival]] = {
        GrpcGo.NAME: partial(GrpcGo, chosen.grpc_program),
        Grpcio.NAME: Grpcio,
    }
    with session(chosen, makers, findings) as rivals:
        for size in chosen.sizes if group.get_rank() == 0 else ():
            vector = dense.Blocks(f"bench {size}", max(1, size // 4), ps.SGD(RATE))
            block = vector.table.dim
            blocks = len(vector.values) // block
            batches = Batches(np, size, blocks, block, blocks)
            batches.every(blocks)
            vector.gradients[:] = batches.gradient().reshape(-1)

            def push(round_: int, vector: dense.Blocks = vector) -> None:
                ps.push([vector.request()])

            def pull(round_: int, vector: dense.Blocks = vector) -> None:
                dense.pull([vector])

            def rows(vector: dense.Blocks = vector, block: int = block) -> object:
                return vector.values.reshape(-1, block)

            for rival in rivals:
                rival.table(batches)
            turns = ours(batches, pull, push, rows)
            compare({"bytes": size}, turns, rivals, batches, chosen.rounds, findings)
