"""The part of a model some of whose tensors are divided among the ranks.

Who has what depends on the ranks for which model and optimizer were made. So in a new world the
program's function builds them again, and their tensors are filled box by box: a *box* is the place
of a shard in the whole tensor (:mod:`.boxes`). The box of a rank that is gone comes from

* a living rank that has the same: nothing is lost;
* otherwise the copy that its neighbour keeps. Then all go back to the step of that copy.

A framework's class says what is divided: FSDP2's parameters, ZeRO's states of the optimizer.
"""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import group, objects
from ..errors import ArgumentError, DtypeError
from ..p2p import irecv, isend
from .boxes import Array, Box, Flat, Index, Owners, complete, fill, size_of
from .generators import Generators
from .lost import StateLost

__all__ = ["Divided"]


class _State(NamedTuple):
    """What one rank has at the beginning of a step."""

    step: int
    world: int
    """Whose division of the tensors it has: the generation of the world."""
    is_own: bool
    boxes: Index
    arrays: dict[Any, Array]
    small: Any
    """What is no tensor, and the states of the job's other parts."""
    flat: Flat | None = None
    """Where the arrays are, if they are a copy."""


class _Found(NamedTuple):
    """A step that the ranks have whole."""

    step: int
    world: int
    who: Owners
    small: Any


class Divided(ABC):
    """A model and its optimizer, as a part of a job. :meth:`share` and others are collective.

    The names of tensors are tuples that are the same on all ranks and in all worlds: ``("p",
    NAME)`` a parameter, ``("b", NAME)`` a buffer, ``("s", PARAMETER, KIND)`` a state of the
    optimizer, ``("owner", PARAMETER)`` the mark of the rank that has all states of a parameter.
    """

    def __init__(self, build: Callable[[], tuple[Any, ...]], every: int = 1) -> None:
        if every < 0:
            raise ArgumentError(f"Sharded: every={every}: it must be 0 or more")
        self.model: Any = None
        self.optimizer: Any = None
        self.scheduler: Any = None
        self.seconds = 0.0
        """How long the copies have taken so far."""
        self._build, self._every = build, every
        self._job: Any = None
        self._parameters: dict[str, Any] = {}
        self._steps: Any = None
        self._buffers: Any = None
        self._step = 0
        self._small: Any = None  # at the beginning of the step
        self._copies: list[tuple[_State, ...]] = []  # the newest last: this rank's, its neighbour's
        self._spare: list[Flat] = []
        self._world = -1  # for which model and optimizer are filled; -1: they are not
        self._old: list[_State] = []  # of worlds before, until a step of this world counts
        self._filled_at: int | None = None  # the first step of this world
        self._found: _Found | None = None

    # What a framework says

    @abstractmethod
    def _built(self) -> tuple[Any, Any]:
        """Look at the new model and optimizer.

        Returns:
            What notes the optimizer's steps (``before``, ``whole``, ``made``), and what keeps the
            buffers (``before``, ``back``): as of a :class:`~.parts.Part`.
        """

    @abstractmethod
    def _tensors(self) -> dict[Any, tuple[Box, Array]]:
        """Return what this rank has of the tensors, by name. The arrays share their memory."""

    @abstractmethod
    def _plain(self) -> Any:
        """Return what is no tensor: hyperparameters, the scheduler's state."""

    @abstractmethod
    def _take_plain(self, plain: Any) -> None:
        """Take what :meth:`_plain` has returned, on this rank or another."""

    @abstractmethod
    def _make_states(self, boxes: Index) -> None:
        """Make tensors of the new optimizer's state, which are filled then.

        Args:
            boxes: a box of each state that this rank must have, by name.
        """

    def _owns(self, parameter: Any) -> bool:
        """Whether this rank has states of a parameter: all ranks, or one owner."""
        return True

    def _is_here(self, name: Any) -> bool:
        """Whether this rank must have the tensor of this name."""
        if name[0] != "s":
            return bool(name[0] != "owner")
        parameter = self._parameters.get(name[1])
        return parameter is None or self._owns(parameter)

    # The part

    def before(self) -> None:
        """Copy the shards if it is time. Collective then."""
        self._step, self._world = self._job.done, self._job.generation
        if self._filled_at is None:
            self._filled_at = self._step
        elif self._step > self._filled_at:  # so all ranks have filled theirs
            self._old = []
        self._steps.before()
        self._buffers.before()
        self._small = self._small_now()
        if self._every and self._step % self._every == 0:
            begun = time.perf_counter()
            self._copy()
            self.seconds += time.perf_counter() - begun

    def whole(self) -> bool:
        """True: what is torn comes from copies."""
        return True

    def back(self) -> None:  # noqa: B027 (nothing to do is no default)
        """Do nothing: :meth:`share` finds out which step the ranks can go on with."""

    def made(self) -> bool:
        """Whether the optimizer has stepped, as often as in the step before."""
        return bool(self._steps.made())

    def reformed(self, job: Any) -> None:
        """Build the model for the ranks of this world."""
        if self._world >= 0:
            self._old += [state for pair in self._copies for state in pair]
            if self._steps.whole():
                self._buffers.back()
                self._old.append(self._state(self._step, self._small))
            elif self._steps.made():
                self._old.append(self._state(self._step + 1, self._small_now()))
        self._job, self._world, self._filled_at, self._copies = job, -1, None, []
        built = tuple(self._build())
        if len(built) not in (2, 3):
            raise DtypeError(
                f"Sharded: build returned {len(built)} objects: it must return the model and the "
                "optimizer, and a scheduler if there is one"
            )
        self.model, self.optimizer, self.scheduler = (*built, None)[:3]
        self._parameters = dict(self.model.named_parameters())
        self._steps, self._buffers = self._built()

    def share(self, root: int) -> None:
        """Fill model and optimizer with the last state that the ranks have whole.

        Raises:
            StateLost: they have none.
        """
        offers: list[Any] = [None] * group.get_world_size()
        mine = [(state.step, state.world, state.boxes, state.small) for state in self._old]
        objects.all_gather_object(offers, mine)
        self._found = self._chosen(offers)
        if self._found is not None:
            self._take(self._found)

    def settled(self) -> int | None:
        """Have the other parts go back to the step that was found. Return it; None: the first."""
        found, self._found = self._found, None
        self._world = self._job.generation
        if found is None:
            self._step, self._small = self._job.done, self._small_now()
            return None
        own = [s for s in self._old if s.is_own and (s.step, s.world) == (found.step, found.world)]
        for number, part in enumerate(self._others()):
            if own:
                part.load(own[0].small["others"][number])
            elif not isinstance(part, Generators):  # a replacement has its own numbers
                part.load(found.small["others"][number])
        self._step, self._small = found.step, self._small_now()
        return found.step

    def _others(self) -> list[Any]:
        return [part for part in self._job.parts if part is not self and hasattr(part, "load")]

    # Copies

    def _copy(self) -> None:
        """Copy what this rank has, and give the next one a copy of what is divided."""
        rank, size = group.get_rank(), group.get_world_size()
        kept = self._copies[-1:]  # complete on all ranks, because all have agreed on a step since
        self._spare += [
            flat for pair in self._copies[:-1] for flat in (s.flat for s in pair) if flat
        ]
        live = self._state(self._step, self._small)
        # What is divided comes first, and is one message.
        index = {name: box for name, box in live.boxes.items() if box.is_divided}
        mine = self._flat({**index, **live.boxes})
        for name, array in live.arrays.items():
            np.copyto(mine.arrays[name], array)
        pair = [live._replace(arrays=mine.arrays, flat=mine)]
        if size > 1:
            told: list[Any] = [None] * size
            objects.all_gather_object(told, (index, live.small))
            before, small = told[rank - 1]
            theirs = self._flat(before)
            works = [
                isend(mine.memory[: size_of(index)], (rank + 1) % size),
                irecv(theirs.memory, (rank - 1) % size),
            ]
            for work in works:
                work.wait()
            pair.append(_State(live.step, live.world, False, before, theirs.arrays, small, theirs))
        self._copies, self._spare = [*kept, tuple(pair)], []

    def _flat(self, boxes: Index) -> Flat:
        """Return memory for boxes: that of an older copy if it fits, because new pages are slow."""
        for flat in self._spare:
            if [*flat.boxes.items()] == [*boxes.items()]:
                self._spare.remove(flat)
                return flat
        return Flat(boxes)

    def _state(self, step: int, small: Any) -> _State:
        there = self._tensors()
        boxes = {name: box for name, (box, _) in there.items()}
        arrays = {name: array for name, (_, array) in there.items()}
        return _State(step, self._world, True, boxes, arrays, small)

    def _small_now(self) -> Any:
        others = [part.state() for part in self._others()]
        return copy.deepcopy({"plain": self._plain(), "others": others})

    # The tensors

    def _chosen(self, offers: list[list[Any]]) -> _Found | None:
        """Return the last step whose tensors the ranks have whole; None: no step was made yet."""
        known = {(step, world) for offer in offers for step, world, *_ in offer}
        for known_one in sorted(known, reverse=True):
            there = [
                (rank, which, index)
                for rank, offer in enumerate(offers)
                for which, (step, world, index, _) in enumerate(offer)
                if (step, world) == known_one
            ]
            who = complete(there)
            if who is not None:
                rank, which, _ = there[0]
                return _Found(*known_one, who, offers[rank][which][3])
        if not known:
            return None
        raise StateLost(
            f"Sharded: the {len(offers)} ranks of this world have no step whole, of those from "
            f"{min(known)[0]} to {max(known)[0]}: two neighbours have died, or every=0"
        )

    def _take(self, found: _Found) -> None:
        self._make_states(
            {
                name: next(iter(boxes.values()))[2]
                for name, boxes in found.who.items()
                if name[0] == "s" and name[1] in self._parameters and self._is_here(name)
            }
        )
        targets = self._tensors()
        missing = sorted(
            str(name) for name in found.who.keys() ^ targets.keys() if self._is_here(name)
        )
        if missing:
            raise ArgumentError(
                f"Sharded: build made another model than before: {', '.join(missing[:3])}"
            )
        fill(targets, found.who, [state.arrays for state in self._old])
        self._take_plain(found.small["plain"])
