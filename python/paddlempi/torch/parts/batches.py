"""Batches of a dataset for ranks whose number changes: every sample of an epoch is used once.

A position in the epoch is all that counts. It is the same on all ranks: how many samples all of
them together have used. After a reform the rest of the epoch is divided among the ranks that are
there then.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from ...elasticity.sharing import told
from ...errors import ArgumentError

__all__ = ["Batches", "Sampler"]


class Sampler(DistributedSampler):  # type: ignore[misc]
    """A ``DistributedSampler`` that can begin anywhere in an epoch, with any number of ranks.

    Args:
        dataset: has a length.
        shuffle: whether every epoch has an order of its own.
        seed: of the orders.
        drop_last: leave the last samples of an epoch out if there is not one for each rank;
            otherwise some ranks use a sample that another one uses too.
    """

    def __init__(
        self, dataset: Any, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        super().__init__(
            dataset,
            dist.get_world_size(),
            dist.get_rank(),
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
        )
        self._from = 0

    def begin_at(self, position: int) -> None:
        """Divide what is left of the epoch from here among the ranks of the world."""
        self.rank, self.num_replicas = dist.get_rank(), dist.get_world_size()
        left = max(0, len(self.dataset) - position) / self.num_replicas
        self.num_samples = math.floor(left) if self.drop_last else math.ceil(left)
        self.total_size = self.num_samples * self.num_replicas
        self._from = position

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)
        if self.shuffle:
            generator = torch.Generator()
            generator.manual_seed(self.seed + self.epoch)
            order = torch.randperm(size, generator=generator).tolist()
        else:
            order = list(range(size))
        left = order[self._from :]
        # What is missing at the end comes from the beginning of the epoch.
        missing = self.total_size - len(left)
        left += (order * math.ceil(max(0, missing) / max(1, size)))[: max(0, missing)]
        return iter(left[self.rank : self.total_size : self.num_replicas])


class Batches:
    """The batches of a loader, epoch after epoch, without an end.

    ``next(batches)`` is called in a step. The part keeps the position in the epoch: a step that is
    repeated gets the same samples, in other parts if the number of ranks is another one.

    Args:
        loader: with a :class:`Sampler`, and a ``batch_size``.

    Raises:
        ArgumentError: it has another sampler, or no batch size.
    """

    def __init__(self, loader: DataLoader) -> None:
        if not isinstance(loader.sampler, Sampler) or loader.batch_size is None:
            raise ArgumentError(
                "Batches: the loader needs batch_size=, and sampler=paddlempi.torch.Sampler(...): "
                f"it has batch_size={loader.batch_size} and a {type(loader.sampler).__name__}"
            )
        self._loader, self._sampler = loader, loader.sampler
        self.epoch = 0
        """The epoch that the next batch is of, unless the last one was its end."""
        self._position = 0
        self._of_step = (0, 0)
        self._batches: Iterator[Any] | None = None

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        """Return this rank's next batch.

        Raises:
            ArgumentError: an epoch has no batch: there are fewer samples than the loader needs.
        """
        for _ in range(2):  # the end of one epoch, and the next one
            if self._batches is None:
                self._begin()
            try:
                batch = next(self._batches)  # type: ignore[arg-type]
            except StopIteration:
                self.epoch, self._position, self._batches = self.epoch + 1, 0, None
                continue
            self._position += self._loader.batch_size * self._sampler.num_replicas
            return batch
        raise ArgumentError(
            f"Batches: {len(self._sampler.dataset)} samples are too few for batches of "
            f"{self._loader.batch_size} on {self._sampler.num_replicas} ranks with drop_last"
        )

    def _begin(self) -> None:
        self._sampler.set_epoch(self.epoch)
        self._sampler.begin_at(self._position)
        # A loader draws a seed for its workers from torch's generator, which here may happen at
        # other times than in a job that no rank has left.
        text = f"{self._sampler.seed} {self.epoch} {self._position} {dist.get_rank()}"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little"))
            self._batches = iter(self._loader)

    # The part

    def state(self) -> tuple[int, int]:
        """Return the position: the epoch, and the samples of it that were used."""
        return self.epoch, self._position

    def load(self, state: tuple[int, int]) -> None:
        """Go to a position."""
        self.epoch, self._position = state
        self._batches = None

    def before(self) -> None:
        """Keep the position."""
        self._of_step = self.state()

    def whole(self) -> bool:
        """Whether :meth:`back` can give the state back."""
        return True

    def back(self) -> None:
        """Go back to the position at the beginning of the step."""
        self.load(self._of_step)

    def reformed(self, job: Any) -> None:
        """Drop what the loader has prepared for other ranks."""
        self._batches = None

    def share(self, root: int) -> None:
        """Take the root's position."""
        self.load(told(self.state(), root))
