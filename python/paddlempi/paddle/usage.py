"""Which parameters the backwards of a model reach: counted, expected, compared over the ranks.

The first backward shows how often the gradient of every parameter comes, and in which order. It is
an error if the backwards of only some ranks reach a parameter: every rank raises it, with the names
of the parameters and the ranks. If no rank's backward reaches a parameter, rank 0 warns once, and
the next backward is expected not to reach the parameter either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from .. import _log
from ..errors import MismatchError
from ..group import ProcessGroup
from ..objects import all_gather_object

__all__ = ["Usage"]

_WHERE = "paddlempi.paddle.DataParallel"

_UNKNOWN = 1 << 62
"""How often a gradient comes, as long as no backward has shown it."""


class Usage:
    """What the backwards have shown of a reducer's parameters, which are known by their indices.

    Args:
        named: names and parameters; the names are the same on every rank.
        group: the group of the reducer.
        find_unused: expect nothing of a backward, and do not warn.

    Attributes:
        counts: for each parameter, how often its gradient has come in this backward.
        times: for each parameter, how often its gradient comes until it is complete.
        learning: whether this is the first backward, which shows how often gradients come.
    """

    def __init__(
        self, named: Sequence[tuple[str, Any]], group: ProcessGroup, find_unused: bool
    ) -> None:
        self._named = named
        self._group = group
        self.find_unused = find_unused
        self.counts = [0] * len(named)
        self.times = [_UNKNOWN] * len(named)
        self.learning = True
        self._order: list[int] = []
        # The parameters that no rank's last backward has reached. All ranks have the same set.
        self._unused: set[int] = set()
        self._warned = False

    def count(self, index: int) -> int:
        """Count a gradient of a parameter. Return how often it has come in this backward."""
        if self.learning:
            self._order.append(index)
        self.counts[index] += 1
        return self.counts[index]

    def is_unexpected(self, index: int) -> bool:
        """Return whether this rank's backward reached a parameter that it should not, or missed it.

        Call it when the backward is over. The answer is False if nothing is expected.
        """
        is_expected = (self.counts[index] > 0) != (index in self._unused)
        return not (is_expected or self.find_unused or self._named[index][1].stop_gradient)

    def expect(self, reached: Mapping[int, bool]) -> None:
        """Expect the next backward to reach what this one has reached.

        Rank 0 warns once about parameters that no rank's backward reaches.

        Args:
            reached: for indices of parameters, whether any rank's backward reached them.
        """
        if self.find_unused:
            return
        for index, is_used in reached.items():
            if is_used and index in self._unused:
                self._unused.discard(index)
                self.times[index] = max(self.counts[index], 1)
            elif not is_used:
                self._unused.add(index)
                self.times[index] = _UNKNOWN
        if self._warned or self._group.rank() > 0:
            return
        unused = [self._named[index] for index in sorted(self._unused)]
        lost = [name for name, parameter in unused if not parameter.stop_gradient]
        if lost:
            self._warned = True
            more = f" (nor {len(lost) - 1} others)" if len(lost) > 1 else ""
            _log.warn(
                f"{_WHERE}: no rank's backward reached parameter '{lost[0]}'{more}: "
                "this step does not train it. Freeze it (stop_gradient) if it is not used; wrap "
                "the model again if its layers have changed",
                stacklevel=2,
            )

    def raise_mismatch(self) -> NoReturn:
        """Raise the error for parameters that only some ranks have reached. Collective.

        Raises:
            MismatchError: on every rank. Its text names the first parameter and the ranks that did
                not reach it; ``ranks`` has these ranks too.
        """
        missing = {
            name: bool(parameter.stop_gradient)
            for (name, parameter), count in zip(self._named, self.counts, strict=True)
            if not count
        }
        missing_by_rank: list[Any] = [None] * self._group.size()
        all_gather_object(missing_by_rank, missing, self._group)
        lost = []
        for name, _ in self._named:
            ranks = [rank for rank, names in enumerate(missing_by_rank) if name in names]
            frozen = [rank for rank in ranks if missing_by_rank[rank][name]]
            if 0 < len(ranks) < len(missing_by_rank):
                lost.append((name, ranks, frozen == ranks))
        name, ranks, is_frozen = lost[0]
        world = tuple(self._group._ranks[rank] for rank in ranks)
        what = (
            f"{_WHERE}: parameter '{name}' had no gradient in this backward on rank(s) "
            f"{list(world)}"
            + (", where it is frozen" if is_frozen else "")
            + (f" (nor had {len(lost) - 1} others)" if len(lost) > 1 else "")
        )
        error = MismatchError(
            f"{what}, and one on the others: the ranks went different ways through the "
            "model; with find_unused_parameters=True such ranks contribute zero"
        )
        error.ranks = world
        raise error

    def learn(self) -> list[int]:
        """End the first backward: keep how often every gradient came.

        Returns:
            The indices of the parameters that had gradients, in the order in which the last
            gradient of each came.
        """
        self.learning = False
        self.times = [
            _UNKNOWN if index in self._unused else max(count, 1)
            for index, count in enumerate(self.counts)
        ]
        last = {index: position for position, index in enumerate(self._order)}
        return sorted(last, key=last.__getitem__)

    def reset(self) -> None:
        """Prepare for the next backward."""
        self._order.clear()
        self.counts = [0] * len(self._named)
