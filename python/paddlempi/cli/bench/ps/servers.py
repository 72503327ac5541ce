"""``--level servers``: one trainer, and from one server to as many as there are ranks besides.

Every number of servers is a parameter server of its own, which begins and ends ``SESSIONS`` times,
in random order. A rank that is not needed is a trainer that has completed.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from .... import group, ps
from ..sampling import shuffled
from .batches import Batches
from .findings import Findings
from .measured import Turn, summary, take_turns
from .transport import filled, of_table

__all__ = ["measure"]

SESSIONS = 5


def measure(chosen: Namespace, findings: Findings) -> None:
    """Measure pull and push of rows. Collective over the world."""
    import numpy as np

    most = group.get_world_size() - 1
    names = {k: f"{k} server{'s' * (k > 1)}" for k in range(1, most + 1)}
    rounds = max(1, chosen.rounds // SESSIONS)
    for dim in chosen.dims:
        for batch in chosen.batches:
            batches = Batches(np, dim, chosen.rows, dim, batch)
            batches.draw(batch)
            found: dict[str, dict[str, list[float]]] = {}
            for session in range(SESSIONS):
                for servers in shuffled(list(names), session):
                    for what, times in _of_session(
                        servers, batches, rounds, chosen.timeout
                    ).items():
                        of_what = found.setdefault(what, {name: [] for name in names.values()})
                        of_what[names[servers]] += times
            for what, of_what in found.items():
                findings.add(summary(batches.case(), what, of_what, names[1]), names[1])


def _of_session(
    servers: int, batches: Batches, rounds: int, timeout: float
) -> dict[str, list[float]]:
    """Return the times with so many servers on rank 0; nothing on other ranks."""
    roles = {
        rank: "pserver" if 1 <= rank <= servers else "trainer"
        for rank in range(group.get_world_size())
    }
    ps.init(roles, timeout=timeout)
    try:
        if group.get_rank() == 0:
            turns: dict[str, Turn] = of_table(filled("bench", batches), batches)
            times: dict[str, dict[str, list[Any]]] = take_turns(turns, rounds)
            return {what: next(iter(of.values())) for what, of in times.items()}
    finally:
        ps.shutdown()
    return {}
