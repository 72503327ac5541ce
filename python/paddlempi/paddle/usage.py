"""Which parameters the backwards of a model reach: counted, expected, compared over the ranks.

The first backward teaches how often the gradient of each parameter comes, and in which order. What
some ranks' backwards reach and others' do not is an error, of which every rank names the parameters
and the ranks. What no rank's reaches is told once, and expected from then on.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ..errors import MismatchError
from ..group import ProcessGroup
from ..objects import all_gather_object

__all__ = ["Usage"]

_WHERE = "paddlempi.paddle.DataParallel"

_UNKNOWN = 1 << 62
"""How often a gradient comes, before a backward has told."""


class Usage:
    """What is known of the parameters of a reducer, which are named by their places.

    Args:
        named: their names, the same on every rank, and the parameters.
        group: the reducer's.
        find_unused: nothing is expected, and nothing is told.

    Attributes:
        came: how often the gradient of each has come in this backward.
        times: after which of these it is the whole one.
        learning: whether this is the backward that teaches.
    """

    def __init__(
        self, named: Sequence[tuple[str, Any]], group: ProcessGroup, find_unused: bool
    ) -> None:
        self._named = named
        self._group = group
        self.find_unused = find_unused
        self.came = [0] * len(named)
        self.times = [_UNKNOWN] * len(named)
        self.learning = True
        self._order: list[int] = []
        self._unused: set[int] = set()  # what no rank's last backward reached, the same on all
        self._told = False

    def count(self, index: int) -> int:
        """The gradient of a parameter has come; how often now."""
        if self.learning:
            self._order.append(index)
        self.came[index] += 1
        return self.came[index]

    def is_surprise(self, index: int) -> bool:
        """Whether this rank's backward, now over, has reached a parameter unlike expected."""
        is_expected = (self.came[index] > 0) != (index in self._unused)
        return not (is_expected or self.find_unused or self._named[index][1].stop_gradient)

    def expect(self, reached: Mapping[int, bool]) -> None:
        """Expect of the next backward what this one has reached. Tell once of what none does."""
        if self.find_unused:
            return
        for index, is_used in reached.items():
            if is_used and index in self._unused:
                self._unused.discard(index)
                self.times[index] = max(self.came[index], 1)
            elif not is_used:
                self._unused.add(index)
                self.times[index] = _UNKNOWN
        if self._told or self._group.rank() > 0:
            return
        unused = [self._named[index] for index in sorted(self._unused)]
        lost = [name for name, parameter in unused if not parameter.stop_gradient]
        if lost:
            self._told = True
            more = f" (nor {len(lost) - 1} others)" if len(lost) > 1 else ""
            warnings.warn(
                f"{_WHERE}: no rank's backward reached parameter '{lost[0]}'{more}: "
                "this step does not train it. Freeze it (stop_gradient) if it is out of use; wrap "
                "the model again if its layers are others now",
                stacklevel=2,
            )

    def complain(self) -> NoReturn:
        """Raise on every rank, naming the parameters that had no gradient on some, and where."""
        mine = {
            name: bool(parameter.stop_gradient)
            for (name, parameter), count in zip(self._named, self.came, strict=True)
            if not count
        }
        everyone: list[Any] = [None] * self._group.size()
        all_gather_object(everyone, mine, self._group)
        lost = []
        for name, _ in self._named:
            ranks = [rank for rank, names in enumerate(everyone) if name in names]
            frozen = [rank for rank in ranks if everyone[rank][name]]
            if 0 < len(ranks) < len(everyone):
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
            "model; give find_unused_parameters=True and they contribute zero"
        )
        error.ranks = world
        raise error

    def learn(self) -> list[int]:
        """This was the backward that teaches: what came, in the order in which each came last."""
        self.learning = False
        self.times = [
            _UNKNOWN if index in self._unused else max(count, 1)
            for index, count in enumerate(self.came)
        ]
        last = {index: at for at, index in enumerate(self._order)}
        return sorted(last, key=last.__getitem__)

    def reset(self) -> None:
        """Make ready for the next backward."""
        self._order.clear()
        self.came = [0] * len(self._named)
