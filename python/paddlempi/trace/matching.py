"""Which rows of a timeline are of one collective, and which of one message."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from .model import MESSAGE, Timeline

__all__ = ["Calls", "collectives", "messages"]

_Ints = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Calls:
    """The collectives of a timeline, each the rows of its members side by side.

    Attributes:
        rows: places in ``Timeline.operations``, ordered by group, number and rank.
        first: where in ``rows`` each collective begins.
        size: how many rows each collective has.
        whole: whether these are the rows of all members of its group.
    """

    rows: _Ints
    first: _Ints
    size: _Ints
    whole: npt.NDArray[np.bool_]

    def each(self) -> _Ints:
        """Return for every one of ``rows`` the number of its collective."""
        return np.repeat(np.arange(len(self.first)), self.size)


def collectives(timeline: Timeline) -> Calls:
    """Find the rows of each collective: those of equal group and number."""
    o = timeline.operations
    rows = np.flatnonzero((o["seq"] >= 0) & (o["group"] >= 0) & (o["flags"] & MESSAGE == 0))
    rows = rows[np.lexsort((o["rank"][rows], o["seq"][rows], o["group"][rows]))]
    group, seq = o["group"][rows], o["seq"][rows]
    new = np.ones(len(rows), bool)
    new[1:] = (group[1:] != group[:-1]) | (seq[1:] != seq[:-1])
    first = np.flatnonzero(new)
    size = np.diff(np.append(first, len(rows)))
    members = np.array([len(g.ranks) for g in timeline.groups] + [0])
    return Calls(rows, first, size, size == members[group[first]])


def messages(timeline: Timeline) -> tuple[_Ints, _Ints]:
    """Match the messages that were sent with those that were received.

    MPI keeps the order of the messages from one rank to another with one tag, so the n-th send is
    that of the n-th receive. That holds only for ranks whose recordings have all operations of
    their processes, and where no receive takes messages from any rank or with any tag. Messages
    of other ranks are left out.

    Returns:
        The rows of the sends, and those of their receives.
    """
    o = timeline.operations
    message = o["flags"] & MESSAGE != 0
    whole = np.zeros(max(timeline.ranks, default=0) + 1, bool)
    for rank, one in timeline.ranks.items():
        mine = o["rank"] == rank
        first = o["number"][mine].min(initial=2)
        # A message that failed may have been received, or not.
        whole[rank] = not one.lost and first == 1 and not o["outcome"][mine & message].any()
    ok = message & (o["group"] >= 0) & whole[o["rank"]]
    sent = _transfers(timeline, ok, (("send", 0), ("sendrecv", 0)), gives=True)
    got = _transfers(timeline, ok, (("recv", 0), ("sendrecv", 1)), gives=False)
    # A receiver that takes messages of any rank or tag may take those that others wait for.
    loose = np.unique(got["to"][(got["from"] < 0) | (got["tag"] < 0)])
    return _pair(*(of[~np.isin(of["to"], loose) & (of["to"] >= 0)] for of in (sent, got)))


_TRANSFER = np.dtype(
    [("group", "i4"), ("from", "i4"), ("to", "i4"), ("tag", "i4"), ("number", "i8"), ("row", "i8")]
)


def _transfers(
    timeline: Timeline, ok: _Ints, of: tuple[tuple[str, int], ...], gives: bool
) -> _Ints:
    """The transfers of rows; ``of`` has names of operations, each with the side that counts."""
    o = timeline.operations
    made = []
    for name, side in of:
        if name not in timeline.names.operations:
            continue
        rows = np.flatnonzero(ok & (o["name"] == timeline.names.operations.index(name)))
        one = np.zeros(len(rows), _TRANSFER)
        mine = o["rank"][rows]
        peers = _world_ranks(timeline, o["group"][rows], o["peers"][rows, side])
        one["from"], one["to"] = (mine, peers) if gives else (peers, mine)
        one["group"], one["tag"] = o["group"][rows], o["tags"][rows, side]
        one["number"], one["row"] = o["number"][rows], rows
        made.append(one)
    return np.concatenate([np.zeros(0, _TRANSFER), *made])


def _world_ranks(timeline: Timeline, groups: _Ints, peers: _Ints) -> _Ints:
    """Turn ranks of groups into those of the world, -1 where there is none."""
    found = np.full(len(groups), -1, np.int32)
    for group in np.unique(groups):
        ranks = np.array([*timeline.groups[group].ranks, -1], np.int32)
        mine = groups == group
        at = peers[mine]
        found[mine] = ranks[np.where((at >= 0) & (at < len(ranks) - 1), at, -1)]
    return found


def _pair(sent: _Ints, got: _Ints) -> tuple[_Ints, _Ints]:
    """Pair the n-th of both between the same ranks, with the same tag."""
    way = ["group", "from", "to", "tag"]
    _, place = np.unique(np.concatenate([sent[way], got[way]]), return_inverse=True)
    pairs = []
    for these, places in ((sent, place[: len(sent)]), (got, place[len(sent) :])):
        order = np.lexsort((these["number"], places))
        places = places[order]
        nth = np.arange(len(order)) - np.searchsorted(places, places)
        pairs.append((places * (len(sent) + len(got) + 1) + nth, these["row"][order]))
    _, left, right = np.intersect1d(
        pairs[0][0], pairs[1][0], assume_unique=True, return_indices=True
    )
    return pairs[0][1][left], pairs[1][1][right]
