"""torch's RPC: the whole batch travels to a tensor, with one thread of arithmetic on each side."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .... import group
from ..collectives import of_all_ranks
from .batches import RATE, Batches
from .measured import Turn
from .rivals import Place, Rival, check, pull_and_push

__all__ = ["TorchRpc"]


class _Table:
    """The table of the server's process."""

    weight: Any = None


def _make(rows: int, dim: int) -> None:
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(dim)
    _Table.weight = torch.empty(rows, dim).uniform_(-0.05, 0.05, generator=generator)


def _pull(ids: Any) -> Any:
    return _Table.weight.index_select(0, ids)


def _push(ids: Any, gradients: Any, rate: float) -> None:
    _Table.weight.index_add_(0, ids, gradients, alpha=-rate)


class TorchRpc(Rival):
    """A tensor on rank 1, whose rows ``index_select`` reads and ``index_add_`` updates."""

    NAME = "torch RPC"

    def __init__(self) -> None:
        self._torch = importlib.import_module("torch")
        self._rpc = importlib.import_module("torch.distributed.rpc")
        if not self._torch.distributed.rpc.is_available():
            raise ImportError("this torch has no torch.distributed.rpc")
        self.version = self._torch.__version__
        self._torch.set_num_threads(1)

    def open(self, at: Place) -> None:
        where, port = at.endpoint("store", 0)
        method = f"tcp://{where}:{port}" if port else f"file://{where}"
        options = self._rpc.TensorPipeRpcBackendOptions(init_method=method)
        name = f"bench{group.get_rank()}"
        self._rpc.init_rpc(name, rank=group.get_rank(), world_size=2, rpc_backend_options=options)

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._rpc.rpc_sync("bench1", function, args=arguments)

    def table(self, batches: Batches) -> None:
        self._ask(_make, batches.rows, batches.dim)

    def turns(self, batches: Batches) -> dict[str, Turn]:
        tensor = self._torch.from_numpy
        pulled: list[Any] = [None]

        def pull(round_: int) -> None:
            pulled[0] = self._ask(_pull, tensor(batches.ids_of(round_))).numpy()

        def push(round_: int) -> None:
            self._ask(_push, tensor(batches.ids_of(round_)), tensor(batches.gradient()), RATE)

        turn = pull_and_push(pull, push)
        check(self.NAME, turn, lambda: pulled[0], batches)
        return {self.NAME: turn}

    def close(self) -> None:
        self._rpc.shutdown()
        of_all_ranks("")  # rank 1 still reads the store of rank 0
