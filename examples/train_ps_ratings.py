"""A matrix factorisation of ratings: a program of one process, and of trainers and servers.

    python examples/train_ps_ratings.py --out alone.json
    mpirun -np 5 python -m paddlempi run --roles trainer:2,pserver:2,master:1 \\
        examples/train_ps_ratings.py --mode ssp --beside alone.json

A rating is a mean, a number of the user and one of the item, and the product of their vectors
(Koren et al., 2009). What the ratings would be without noise is planted (ps_data.py), so the error
that nobody can beat is known. Rows have SparseAdam, the mean has Adam, and the learning rates fall.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

import ps_data
import torch
from paddlempi import ps
from ps_program import Course, batches, options_of

DIM, BATCH, SHARD, SHARDS = 4, 512, 8192, 120
NEAR = 0.015  # of the error


class Factors(torch.nn.Module):
    """What a user gives an item."""

    def __init__(self) -> None:
        super().__init__()
        self.users = torch.nn.Embedding(ps_data.USERS, 1 + DIM, sparse=True)
        self.items = torch.nn.Embedding(ps_data.ITEMS, 1 + DIM, sparse=True)
        for rows in (self.users, self.items):
            torch.nn.init.normal_(rows.weight, std=0.1)
        self.mean = torch.nn.Parameter(torch.zeros(()))

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        user, item = self.users(users), self.items(items)
        return self.mean + user[:, 0] + item[:, 0] + (user[:, 1:] * item[:, 1:]).sum(1)


def main(arguments: Sequence[str] | None = None) -> bool:
    options = options_of(__doc__, SHARDS, NEAR, arguments)
    torch.set_num_threads(1)  # the ranks share the cores
    torch.sparse.check_sparse_tensor_invariants.disable()  # else torch warns of its own gradients
    torch.manual_seed(0)
    model = Factors()
    optimizers = [
        torch.optim.SparseAdam([model.users.weight, model.items.weight], 0.05),
        torch.optim.Adam([model.mean], 0.05),
    ]
    shards = range(options.shards)

    if options.roles:  # these lines make it a program of trainers and servers
        mode = {"mode": options.mode, "geo_step": options.geo_step}
        plan = ps.transpile(model, optimizers, options.roles, **mode)
        model, optimizers = plan.model, plan.optimizer
        shards = ps.tasks(shards)

    test = tuple(map(torch.from_numpy, ps_data.ratings(2**32 - 1, 50_000)))

    def error() -> float:
        with torch.no_grad():
            return float(((model(*test[:2]) - test[2]) ** 2).mean().sqrt())

    course = Course("error", error, options, options.shards * SHARD // BATCH)
    falls = [torch.optim.lr_scheduler.LinearLR(one, 1.0, 0.2, course.steps) for one in optimizers]
    read = partial(ps_data.ratings, n=SHARD)
    for batch in batches(shards, read, BATCH, options.trainers):
        users, items, ratings = map(torch.from_numpy, batch)
        for optimizer in optimizers:
            optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(users, items), ratings).backward()
        for optimizer, fall in zip(optimizers, falls, strict=True):
            optimizer.step()
            fall.step()
        course.step()
    right = course.end(higher_is_better=False)
    if course.first:
        print(f"error of the planted ratings: {ps_data.NOISE:.4f}", flush=True)
    if options.roles:
        ps.shutdown()
    return right


if __name__ == "__main__":
    sys.exit(not main())
