"""A DLRM on clicks of Criteo's shape: a program of one process, and of trainers and servers.

    python examples/train_ps_dlrm.py --out alone.json
    mpirun -np 5 python -m paddlempi run --roles trainer:2,pserver:2,master:1 \\
        examples/train_ps_dlrm.py --mode async --beside alone.json

The model is that of Naumov et al. (2019): 13 counts go through layers, 26 ids have a vector each,
and the products of all pairs of vectors go through further layers. Who clicks is planted
(ps_data.py), so the AUC that nobody can beat is known.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

import ps_data
import torch
from paddlempi import ps
from ps_program import Course, batches, options_of

DIM, BATCH, SHARD, SHARDS = 16, 256, 4096, 80
NEAR = 0.005  # of the AUC


class DLRM(torch.nn.Module):
    """Layers below, embeddings, products of pairs, and layers above.

    Attributes:
        ahead: is called with the embeddings and what they are about to get.
    """

    ahead = staticmethod(list)

    def __init__(self) -> None:
        super().__init__()
        self.below = torch.nn.Sequential(
            torch.nn.Linear(ps_data.COUNTS, 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, DIM),
            torch.nn.ReLU(),
        )
        self.embeddings = torch.nn.ModuleList(
            torch.nn.Embedding(kinds, DIM, sparse=True) for kinds in ps_data.CARDINALITIES
        )
        for embedding in self.embeddings:
            torch.nn.init.normal_(embedding.weight, std=0.05)
        vectors = 1 + len(ps_data.CARDINALITIES)
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1), persistent=False)
        self.above = torch.nn.Sequential(
            torch.nn.Linear(DIM + self.pairs.shape[1], 64),
            torch.nn.ReLU(),
            torch.nn.Linear(64, 1),
        )

    def forward(self, counts: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        below = self.below(torch.log1p(counts))
        columns = ids.unbind(1)
        self.ahead(zip(self.embeddings, columns, strict=True))
        rows = [e(column) for e, column in zip(self.embeddings, columns, strict=True)]
        vectors = torch.stack([below, *rows], 1)
        products = (vectors @ vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.above(torch.cat([below, products], 1)).squeeze(1)


def main(arguments: Sequence[str] | None = None) -> bool:
    options = options_of(__doc__, SHARDS, NEAR, arguments)
    torch.set_num_threads(1)  # the ranks share the cores
    torch.sparse.check_sparse_tensor_invariants.disable()  # else torch warns of its own gradients
    torch.manual_seed(0)
    model = DLRM()
    optimizer = torch.optim.Adagrad(model.parameters(), 0.02)
    shards = range(options.shards)

    if options.roles:  # these lines make it a program of trainers and servers
        mode = {"mode": options.mode, "geo_step": options.geo_step}
        plan = ps.transpile(model, optimizer, options.roles, **mode)
        model, optimizer = plan.model, plan.optimizer
        model.ahead = ps.prefetch  # one request for all embeddings
        shards = ps.tasks(shards)

    test = ps_data.advertising(2**32 - 1, 10_000)

    def auc() -> float:
        with torch.no_grad():
            return ps_data.auc(test[2], model(*map(torch.from_numpy, test[:2])).numpy())

    course = Course("AUC", auc, options, options.shards * SHARD // BATCH)
    loss_of = torch.nn.BCEWithLogitsLoss()
    read = partial(ps_data.advertising, n=SHARD)
    for batch in batches(shards, read, BATCH, options.trainers):
        counts, ids, labels, _ = map(torch.from_numpy, batch)
        optimizer.zero_grad()
        loss_of(model(counts, ids), labels).backward()
        optimizer.step()
        course.step()
    right = course.end(higher_is_better=True)
    if course.first:
        print(f"AUC of the planted probabilities: {ps_data.auc(test[2], test[3]):.4f}", flush=True)
    if options.roles:
        ps.shutdown()
    return right


if __name__ == "__main__":
    sys.exit(not main())
