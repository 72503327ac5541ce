"""A trainer of train_ps_layers.py: with tables in its own process, or on servers of paddlempi.ps.

Both kinds compute the same in sync mode, but for rounding: the trainers divide every batch among
them, and the servers update the rows by the mean of the trainers' gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddlempi as dist
import torch
from paddlempi import ps


class Trainer:
    """What both kinds have in common.

    Attributes:
        rank: its place among the trainers, from 0.
        size: how many trainers there are.
        rows: how many rows this one has pulled and pushed.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.rows = rank, size, 0

    def embedding(self, name: str, dim: int, optimizer: Any, initializer: Any) -> torch.nn.Module:
        """Return a layer that gives the rows of its ids, [*ids.shape, dim]."""
        layer = self._embedding(name, dim, optimizer, initializer)
        layer.register_forward_hook(self._count)
        return layer

    def _count(self, layer: torch.nn.Module, given: tuple[torch.Tensor], rows: Any) -> None:
        self.rows += given[0].numel() * (1 + torch.is_grad_enabled())  # they are pushed, too

    def part(self, batch: np.ndarray) -> np.ndarray:
        """Return this trainer's part of a batch, which all trainers have."""
        return batch[self.rank :: self.size]


class Alone(Trainer):
    """The only trainer, without MPI: the tables are in this process."""

    def __init__(self) -> None:
        super().__init__(0, 1)
        self.layers: list[_Rows] = []

    def _embedding(self, name: str, dim: int, optimizer: Any, initializer: Any) -> torch.nn.Module:
        self.layers.append(_Rows(ps.Table(dim, optimizer, initializer)))
        return self.layers[-1]

    def optimizer(self, name: str, dense: torch.optim.Optimizer | None) -> Any:
        """Return what steps the dense parameters and the tables. None: there are only tables."""
        return _Steps(self.layers, dense)

    def total(self, value: float) -> float:
        """Return the sum of the trainers' values."""
        return value

    def report(self) -> list[str]:
        """Return lines about the tables."""
        infos = [layer.table.info() for layer in self.layers]
        rows, size = (sum(info[what] for info in infos) for what in ("rows", "bytes"))
        return [f"tables in this process: {rows:,} rows, {size / 1e6:.0f} MB"]


class _Rows(torch.nn.Module):
    """Rows of a table as leaves of autograd, which have their gradients after backward."""

    def __init__(self, table: ps.Table) -> None:
        super().__init__()
        self.table = table
        self.used: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        flat = ids.reshape(-1)
        rows = self.table.pull(flat)
        if torch.is_grad_enabled():
            self.used.append((flat, rows.requires_grad_()))
        return rows.view(*ids.shape, self.table.dim)


class _Steps:
    def __init__(self, layers: list[_Rows], dense: torch.optim.Optimizer | None) -> None:
        self.layers, self.dense = layers, dense

    def zero_grad(self) -> None:
        if self.dense:
            self.dense.zero_grad()

    def step(self) -> None:
        if self.dense:
            self.dense.step()
        for layer in self.layers:
            for ids, rows in layer.used:
                layer.table.push(ids, rows.grad)
            layer.used.clear()


class OnServers(Trainer):
    """A trainer among others, after ps.init: the tables are on the servers."""

    def __init__(self, mode: str) -> None:
        super().__init__(ps.trainers().index(dist.get_rank()), len(ps.trainers()))
        self.group = ps.trainer_group()
        # A trainer that reduces its gradients with the others waits for them.
        self.dense = "all_reduce" if mode == "sync" else "server"

    def _embedding(self, name: str, dim: int, optimizer: Any, initializer: Any) -> torch.nn.Module:
        return ps.Embedding(None, dim, name=name, optimizer=optimizer, initializer=initializer)

    def optimizer(self, name: str, dense: torch.optim.Optimizer | None) -> Any:
        if dense is None:
            return _TablesOnly()
        return ps.DistributedOptimizer(dense, dense=self.dense, name=f"{name}/dense")

    def total(self, value: float) -> float:
        values = np.array([value])
        dist.all_reduce(values, group=self.group)
        return float(values[0])

    def report(self) -> list[str]:
        stats = ps.stats()
        tables = [table for server in stats["servers"] for table in server["tables"]]
        rows, size = (sum(table[what] for table in tables) for what in ("rows", "bytes"))
        ways = {way: self.total(count) / 1e6 for way, count in sorted(stats["bytes"].items())}
        moved = ", ".join(f"{way} {count:,.2f}" for way, count in ways.items())
        calls = self.total(stats["rpcs"])
        return [
            f"tables on {len(stats['servers'])} servers: {rows:,} rows, {size / 1e6:.0f} MB",
            f"moved between trainers and servers, in MB: {moved}",
            f"administration: {calls:.0f} calls over gRPC, none of them in a step",
            f"steps of others between a pull and its push: {stats['staleness']:.2f} in the mean",
        ]


class _TablesOnly:
    def zero_grad(self) -> None:
        ps.discard()

    def step(self) -> None:
        ps.step()
