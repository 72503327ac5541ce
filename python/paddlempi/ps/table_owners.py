"""Which optimizer pushes what layers have noted.

A table belongs to the optimizer that was given it. The others belong to the optimizer that was
given none. Several of these share them, and whichever steps first pushes all. That is right if only
its own dense parameters have got gradients since its last step: the others are those of models
that are not trained now. Else it is right only if they step together. So they must: after a step of
one, all others step before more is noted, and what was noted is dropped when all of them drop it.
Else nobody can tell whose step it is.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError

__all__ = ["Owner", "Owners"]


class Owner:
    """The tables of an optimizer.

    Attributes:
        names: those of its own tables.
        rest: whether it also has the tables that belong to nobody.

    Args:
        gradients: returns the gradients of its dense parameters, each with a number that a change
            of it changes; None: that is not known.
    """

    def __init__(
        self,
        names: Iterable[str],
        rest: bool,
        gradients: Callable[[], Sequence[tuple[Any, int]] | None] | None = None,
    ) -> None:
        self.names = set(names)
        self.rest = rest
        self._gradients = weakref.WeakMethod(gradients) if gradients is not None else None
        self._settled: list[tuple[weakref.ref[Any], int]] = []
        self.settle()

    def settle(self) -> None:
        """Note that its gradients of now were stepped with, or dropped."""
        self._settled = [(weakref.ref(one), version) for one, version in self._now() or ()]

    def takes_part(self) -> bool:
        """Whether its dense parameters have got gradients since; also if that is not known."""
        now = self._now()
        if now is None:
            return True
        if len(now) != len(self._settled):
            return len(now) > 0
        return any(
            before() is not one or at != version
            for (one, version), (before, at) in zip(now, self._settled, strict=True)
        )

    def _now(self) -> Sequence[tuple[Any, int]] | None:
        gradients = self._gradients() if self._gradients is not None else None
        return None if gradients is None else gradients()


class Owners:
    """The optimizers of a program. One that nobody has any more is forgotten.

    Methods take what was noted: the tables' names, with the number of the latest note of each.
    """

    def __init__(self) -> None:
        self._all: weakref.WeakSet[Owner] = weakref.WeakSet()
        # Of the optimizers that share: who is to step before more is noted than up to some note;
        # and who wants to drop what is noted.
        self._owing: weakref.WeakSet[Owner] = weakref.WeakSet()
        self._dropped: weakref.WeakSet[Owner] = weakref.WeakSet()
        self._until = 0

    def check(self, what: str, owner: Owner) -> None:
        """Look whether an optimizer can have its tables.

        Raises:
            ArgumentError: another one has one of them.
        """
        if any(owner.names & one.names for one in self._all):
            gc.collect()  # an optimizer that nobody has may be in a cycle with its schedule
        for one in self._all:
            both = sorted(owner.names & one.names)
            if both:
                raise ArgumentError(
                    f"{what}: tables={both} are those of another optimizer: a table has one"
                )

    def add(self, owner: Owner) -> None:
        """Take an optimizer, which may step from now on."""
        self._all.add(owner)

    def owned(self) -> set[str]:
        """Return the names of the tables that some optimizer was given."""
        return {name for one in self._all for name in one.names}

    def agree(self) -> None:
        """Forget what optimizers have done with tables they share: nothing is noted any more."""
        self._owing.clear()
        self._dropped.clear()

    def to_push(self, owner: Owner, noted: Mapping[str, int], until: int) -> set[str]:
        """Return the tables that a step of an optimizer pushes.

        Args:
            until: the number of the latest note of all.

        Raises:
            ArgumentError: nobody has a table, or several do that do not step together.
        """
        mine, rest = self._of(owner, noted)
        if rest and owner.rest and self._apart(rest, noted):
            gc.collect()
            if self._apart(rest, noted):
                self.agree()
                raise ArgumentError(
                    f"ps.DistributedOptimizer: the gradients of table {min(rest)!r} may belong to "
                    f"any of {len(self._all_sharing())} optimizers that do not step together: say "
                    "which tables each has: DistributedOptimizer(..., tables=[layer, ...])"
                )
        if rest and not self._all_sharing():
            raise ArgumentError(
                f"ps.DistributedOptimizer: table {min(rest)!r} has gradients and no optimizer: "
                "name it in tables= of one, or make one without tables="
            )
        if owner.rest:
            if not self._owing:
                self._until = until
                self._owing.update(self._sharing(owner))
            self._owing.discard(owner)
            self._dropped.clear()
        return mine | rest if owner.rest else mine

    def to_drop(self, owner: Owner, noted: Mapping[str, int]) -> set[str]:
        """Return the tables whose gradients an optimizer drops."""
        mine, rest = self._of(owner, noted)
        if rest and owner.rest:
            self._dropped.add(owner)
            if self._dropped >= self._sharing(owner):
                self._dropped.clear()
                return mine | rest
        return mine

    def to_forget(self, owner: Owner, noted: Mapping[str, int]) -> set[str]:
        """Return the tables whose gradients are lost with a step that an optimizer cannot make."""
        mine, rest = self._of(owner, noted)
        return mine | rest if owner.rest else mine

    def _of(self, owner: Owner, noted: Mapping[str, int]) -> tuple[set[str], set[str]]:
        """Return an optimizer's own tables of those that were noted, and those of nobody."""
        return owner.names & set(noted), set(noted) - self.owned()

    def _all_sharing(self) -> set[Owner]:
        return {one for one in self._all if one.rest}

    def _sharing(self, owner: Owner) -> set[Owner]:
        """Return the optimizers whose gradients may have been noted, for one of them."""
        found = {one for one in self._all_sharing() if one.takes_part()}
        return found if owner in found else self._all_sharing()

    def _apart(self, rest: set[str], noted: Mapping[str, int]) -> bool:
        """Whether the optimizers that share tables have done different things with them."""
        if len(self._all_sharing()) < 2:
            return False
        later = any(noted[name] > self._until for name in rest)
        return bool(self._dropped) or (bool(self._owing) and later)
