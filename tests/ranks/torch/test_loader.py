"""DistributedSampler and DataLoader's workers in a training loop over MPI."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
from models import ROWS, Net, agree, batches, close, seeded
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

# A third rank starts the same workers.
pytestmark = pytest.mark.mpi(ranks=2)

EPOCHS = 2
BATCH = 2


def loader_of(dataset: Any, sampler: Any, workers: str | None) -> DataLoader[Any]:
    if workers is None:
        return DataLoader(dataset, BATCH, sampler=sampler)
    return DataLoader(
        dataset,
        BATCH,
        sampler=sampler,
        num_workers=2 if workers == "fork" else 1,  # a spawned worker imports torch
        multiprocessing_context=workers,
        persistent_workers=True,
    )


# A forked worker has a copy of MPI's memory but not of its threads, so it must not call MPI.
@pytest.mark.mpi(timeout=150)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [None, "fork", "spawn"])
def test_training_loop(dist: ModuleType, rank: int, size: int, workers: str | None) -> None:
    """Two epochs, shuffled anew, give the result of one process that takes all ranks' samples."""
    dataset = TensorDataset(*batches(0), torch.arange(ROWS))
    start = seeded(Net)
    model = DDP(copy.deepcopy(start))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, seed=5)
    loader = loader_of(dataset, sampler, workers)
    seen: list[list[int]] = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        seen.append([])
        for x, y, index in loader:
            seen[-1] += index.tolist()
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    agree(dist, model)

    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, seen)
    for epoch in range(EPOCHS):
        assert sorted(i for theirs in everyone for i in theirs[epoch]) == list(range(ROWS))
    assert seen[0] != seen[1]

    x, y = batches(0)
    single = copy.deepcopy(start)
    optimizer = torch.optim.SGD(single.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        for at in range(0, ROWS // size, BATCH):
            rows = [i for theirs in everyone for i in theirs[epoch][at : at + BATCH]]
            optimizer.zero_grad()
            nn.functional.mse_loss(single(x[rows]), y[rows]).backward()
            optimizer.step()
    close(model, single)
