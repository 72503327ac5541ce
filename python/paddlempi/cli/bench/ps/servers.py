"""``--level servers``: ``--trainers``, and from one server to as many as there are ranks besides.

Every number of servers is a parameter server of its own, which begins and ends ``SESSIONS`` times,
in random order. A rank that is not needed is a trainer that has completed. The trainers are
synchronous, each with a batch of its own; the times are those of rank 0.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from .... import group, ps
from ....errors import ArgumentError
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

    trainers = chosen.trainers
    most = group.get_world_size() - trainers
    if most < 1:
        raise ArgumentError(
            f"bench: --trainers {trainers} of {group.get_world_size()} ranks leaves no server"
        )
    names = {k: f"{k} server{'s' * (k > 1)}" for k in range(1, most + 1)}
    rounds = max(1, chosen.rounds // SESSIONS)
    for dim in chosen.dims:
        for batch in chosen.batches:
            batches = Batches(np, dim, chosen.rows, dim, batch)
            for _ in range(group.get_rank() + 1):  # the first ones are those of lower ranks
                batches.draw(batch)
            found: dict[str, dict[str, list[float]]] = {}
            show = findings.watch(batches.case())
            for session in range(SESSIONS):
                for turn, servers in enumerate(shuffled(list(names), session)):
                    show((session + turn / len(names)) / SESSIONS)
                    for what, times in _of_session(
                        trainers, servers, batches, rounds, chosen.timeout
                    ).items():
                        of_what = found.setdefault(what, {name: [] for name in names.values()})
                        of_what[names[servers]] += times
            for what, of_what in found.items():
                findings.add(summary(batches.case(), what, of_what, names[1]), names[1])


def _of_session(
    trainers: int, servers: int, batches: Batches, rounds: int, timeout: float
) -> dict[str, list[float]]:
    """Return the times with so many servers on rank 0; nothing on other ranks."""
    roles = {
        rank: "pserver" if trainers <= rank < trainers + servers else "trainer"
        for rank in range(group.get_world_size())
    }
    ps.init(roles, timeout=timeout)
    try:
        if group.get_rank() < trainers:
            turns: dict[str, Turn] = of_table(
                filled("bench", batches), batches, alone=trainers == 1
            )
            times: dict[str, dict[str, list[Any]]] = take_turns(turns, rounds)
            return {what: next(iter(of.values())) for what, of in times.items()}
    finally:
        ps.shutdown()
    return {}
