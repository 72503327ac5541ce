"""The model of ``bench ps --level model``: with rows on parameter servers, and with TorchRec.

Only that command imports this module.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as calls

from .. import ps
from .distributed_optimizer import DistributedOptimizer
from .embedding import Embedding

__all__ = ["Contender", "Model", "Samples"]

RATE = 0.05
HIDDEN = 64
ZIPF = 1.05


class Samples(NamedTuple):
    """A batch: ids [samples, features], below ``rows`` of a feature, and labels [samples, 1]."""

    ids: torch.Tensor
    labels: torch.Tensor


class Contender(NamedTuple):
    """One way to train the model.

    Attributes:
        ready: makes its input of samples; the time of that does not count.
        step: takes it, and returns the loss before the update.
    """

    ready: Callable[[Samples], Any]
    step: Callable[[Any], float]


class _Head(torch.nn.Module):  # type: ignore[misc]
    """The dense part: an MLP over the rows of all features, [samples, features * dim]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        layers = [torch.nn.Linear(width, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1)]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layers(rows)


class _Sharded(torch.nn.Module):  # type: ignore[misc]
    """The model as TorchRec takes it."""

    def __init__(self, keys: list[str], embeddings: torch.nn.Module, head: torch.nn.Module) -> None:
        super().__init__()
        self.keys, self.embeddings, self.head = keys, embeddings, head

    def forward(self, features: Any) -> torch.Tensor:
        found = self.embeddings(features)
        return self.head(torch.cat([found[key].values() for key in self.keys], dim=1))


class Model:
    """Embeddings of several features, and an MLP; SGD for all.

    Args:
        features: every sample has one id of each.
        rows: of each feature.
        dim: of a row.
    """

    def __init__(self, features: int, rows: int, dim: int) -> None:
        self.features, self.rows, self.dim = features, rows, dim
        self._initializer = ps.Uniform(-0.05, 0.05)
        generator = torch.Generator().manual_seed(dim)
        weights = 1 / torch.arange(1, rows + 1, dtype=torch.float64) ** ZIPF
        self._sums = torch.cumsum(weights / weights.sum(), 0)
        self._of_rank = torch.randperm(rows, generator=generator)
        self._planted = torch.randn(features, rows, generator=generator)

    def samples(self, round_: int, number: int, rank: int) -> Samples:
        """Draw the samples of a round and a rank: Zipf ids, and labels that follow from them."""
        generator = torch.Generator().manual_seed(2 * round_ + rank)
        drawn = torch.rand(number, self.features, generator=generator, dtype=torch.float64)
        place = torch.searchsorted(self._sums, drawn).clamp_(max=self.rows - 1)
        ids = self._of_rank[place]
        score = sum(self._planted[f, ids[:, f]] for f in range(self.features))
        chance = torch.rand(number, generator=generator)
        return Samples(ids, (torch.sigmoid(score) > chance).float()[:, None])

    def ours(self, name: str) -> Contender:
        """Return the model with all features in one table of parameter servers. Collective."""
        head = _Head(self.features * self.dim)
        layer = Embedding(
            None, self.dim, name=name, optimizer=ps.SGD(RATE), initializer=self._initializer
        )
        for begin in range(0, self.features * self.rows, 50_000):  # so that all rows are there
            layer.table.pull(torch.arange(begin, min(begin + 50_000, self.features * self.rows)))
        optimizer = DistributedOptimizer(torch.optim.SGD(head.parameters(), RATE))
        offsets = torch.arange(self.features) * self.rows

        def step(given: Samples) -> float:
            optimizer.zero_grad()
            loss = _loss(head(layer(given.ids).flatten(1)), given.labels)
            loss.backward()
            optimizer.step()
            return float(loss.detach())

        return Contender(lambda given: Samples(given.ids + offsets, given.labels), step)

    def torchrec(self, backend: str, name: str) -> Contender:
        """Return the model as TorchRec trains it over a backend of torch. Collective.

        Args:
            name: the name of a table of :meth:`ours`, which was not pushed to: its rows are the
                first values.
        """
        torchrec = importlib.import_module("torchrec")
        parts = importlib.import_module("torchrec.distributed")
        types = importlib.import_module("torchrec.distributed.types")
        plans = importlib.import_module("torchrec.distributed.sharding_plan")
        sharders = importlib.import_module("torchrec.distributed.embedding")
        overlapped = importlib.import_module("torchrec.optim.apply_optimizer_in_backward")

        keys = [f"f{feature}" for feature in range(self.features)]
        embeddings = torchrec.EmbeddingCollection(
            device=torch.device("meta"),
            tables=[
                torchrec.EmbeddingConfig(
                    name=key,
                    embedding_dim=self.dim,
                    num_embeddings=self.rows,
                    feature_names=[key],
                )
                for key in keys
            ],
        )
        overlapped.apply_optimizer_in_backward(
            torch.optim.SGD, embeddings.parameters(), {"lr": RATE}
        )
        members = calls.new_group(backend=backend)
        sharder = sharders.EmbeddingCollectionSharder()
        plan = plans.construct_module_sharding_plan(
            embeddings,
            {key: plans.row_wise() for key in keys},
            sharder,
            local_size=calls.get_world_size(),
            world_size=calls.get_world_size(),
            device_type="cpu",
        )
        model = parts.DistributedModelParallel(
            _Sharded(keys, embeddings, _Head(self.features * self.dim)),
            env=parts.ShardingEnv.from_process_group(members),
            device=torch.device("cpu"),
            plan=types.ShardingPlan({"embeddings": plan}),
            sharders=[sharder],
        )
        self._begin_as(name, model, keys)
        dense = [p for of, p in model.named_parameters() if "head" in of]
        optimizer = torch.optim.SGD(dense, RATE)

        def ready(given: Samples) -> Any:
            jagged = torchrec.KeyedJaggedTensor(
                keys=keys,
                values=given.ids.t().contiguous().flatten(),
                lengths=torch.ones(given.ids.numel(), dtype=torch.int64),
            )
            return jagged, given.labels

        def step(given: Any) -> float:
            optimizer.zero_grad()
            loss = _loss(model(given[0]), given[1])
            loss.backward()
            optimizer.step()
            return float(loss.detach())

        return Contender(ready, step)

    def _begin_as(self, name: str, model: Any, keys: list[str]) -> None:
        """Give TorchRec's shards on this rank the rows of a table on the servers."""
        table = ps.RemoteTable(name, self.dim, ps.SGD(RATE), self._initializer)
        weights = model.state_dict()
        for feature, key in enumerate(keys):
            (shard,) = weights[f"embeddings.embeddings.{key}.weight"].local_shards()
            begin = feature * self.rows + shard.metadata.shard_offsets[0]
            with torch.no_grad():
                shard.tensor.copy_(table.pull(torch.arange(begin, begin + len(shard.tensor))))


def _loss(score: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(score, labels)
