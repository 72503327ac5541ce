"""What ``python -m paddlempi bench --calibrate`` measures of torch: computation, and steps.

Only that command imports this module.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.testing._internal.distributed.fake_pg  # registers torch's group that moves nothing

from .. import group as core_group
from .bench import MODELS, Steps, by_node, calls, mine, training_step
from .planner.recorded import Recorder

__all__ = ["COPY", "FLOPS", "CutSteps", "copies", "products", "steps", "threads"]

_N = 512
FLOPS = 2 * _N**3
"""Of a product of :func:`products`."""

_COPIED = 64 << 20
COPY = 2 * _COPIED
"""Bytes that a copy of :func:`copies` reads and writes."""


def threads() -> int:
    """Return with how many threads this rank computes."""
    return int(torch.get_num_threads())


_WINDOW = 0.1
"""Seconds: a shorter one may not show that another rank has the CPU now and then."""


def _timed(call: Any, seconds: float) -> list[float]:
    """Return the mean seconds of a call, in each of several windows."""
    for _ in range(3):
        call()
    took: list[float] = []
    end = time.perf_counter() + seconds
    now = 0.0
    while now < end:
        begun, made = time.perf_counter(), 0
        now = begun
        while now < begun + _WINDOW:
            call()
            made += 1
            now = time.perf_counter()
        took.append((now - begun) / made)
    return took


def products(seconds: float) -> list[float]:
    """Return the seconds of matrix products of float32, which are made for so long."""
    a, b, product = (torch.ones(_N, _N) for _ in range(3))
    return _timed(partial(torch.mm, a, b, out=product), seconds)


def copies(seconds: float) -> list[float]:
    """Return the seconds of copies of 64 MiB, which are made for so long."""
    source, target = (torch.zeros(_COPIED, dtype=torch.uint8) for _ in range(2))
    return _timed(partial(target.copy_, source), seconds)


def steps(seconds: float) -> list[float]:
    """Return the seconds of training steps of mlp-16M, which are made for so long."""
    model, shape = MODELS["mlp-16M"]()
    return _timed(training_step(model, (torch.randn(shape), torch.randn(shape))), seconds)


_FUNCTIONS = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}


class CutSteps(Steps):
    """The steps of one model as ``Steps`` makes them, and that of the model alone: "plain".

    There is one more kind, "tp": pairs of layers are cut over the ranks of a node, or over all
    ranks where each node has one. Every rank has the same batch then. Its step without
    communication has torch's group that moves nothing.

    Attributes:
        units: how many collectives a step has.
        bytes: of all of them, of the larger side of each.
    """

    def __init__(self, kind: str, model: str) -> None:
        self._tensor_parallel = kind == "tp"
        self._sides: list[Any] = []  # the groups of "tp" that move something
        super().__init__(kind, model, [])
        sent = self._sent
        if self._tensor_parallel:
            side = self._sides[0]
            with Recorder(side.size()) as recorder:
                self.calls["paddlempi"]()
            sent = [
                (_FUNCTIONS.get(call.operation, call.operation), call.bytes // 4, side)
                for call in recorder.calls
            ]
            self.calls["collectives alone"] = self._alone(sent)
        self.units, self.bytes = len(sent), sum(4 * count for _, count, _ in sent)
        batch = self._batch(core_group.get_rank())
        self.calls["plain"] = training_step(self._build(), batch)

    def _batch(self, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        return super()._batch(0 if self._tensor_parallel else rank)

    def _zeros(self, count: int) -> Any:
        # DTensor's collectives are of results, and these lie in ordinary memory.
        return torch.zeros(count) if self._tensor_parallel else super()._zeros(count)

    def _tp(self, name: str, group: Any) -> torch.nn.Module:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        nodes = by_node()
        lists = nodes if len(nodes[0]) > 1 else [list(range(core_group.get_world_size()))]
        real = name == "paddlempi"
        backend = "mpi" if real else "fake"
        side = mine(lists, lambda ranks: calls.new_group(ranks, backend=backend))
        if real:
            self._sides.append(side)
        model = self._build()
        whole = [p.detach().clone() for p in model.parameters()]
        linear = [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
        kinds = (ColwiseParallel, RowwiseParallel)
        plan = {layer: kinds[at % 2]() for at, layer in enumerate(linear)}
        parallelize_module(model, DeviceMesh.from_group(side, "cpu"), plan)
        if not real:
            _fill(model, whole)
        return model


def _fill(model: torch.nn.Module, whole: Sequence[torch.Tensor]) -> None:
    """Give the shards usual values. They came over a group that moves nothing."""
    for parameter, values in zip(model.parameters(), whole, strict=True):
        local: Any = parameter.data
        local = local.to_local()
        local.copy_(values[tuple(slice(length) for length in local.shape)])
