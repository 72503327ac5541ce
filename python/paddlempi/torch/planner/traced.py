"""A step of one rank under a plan, without the others: what it computes, holds and calls.

The plan is applied in a world that moves nothing (:mod:`.fake_world`), so it is torch's own wrapper
that shows its collectives and takes its time.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import dataclasses
import gc
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ...planner import here
from ...planner.machine import Range
from ...planner.plans import Plan
from . import batch_parts
from .applied import apply_plan as apply
from .batch_parts import Loss, loss_of
from .fake_world import fake_world
from .recorded import Call, Flops, Recorder

__all__ = ["Traced", "plain", "process", "states", "trace", "walk"]

_STEPS = 9
_SECONDS = 3.0
"""A step is repeated so often at most, and no more after so long."""


@dataclass(frozen=True)
class Traced:
    """What a rank does in a step.

    Attributes:
        seconds: of a step whose collectives take no time.
        calls: the collectives.
        flops: the floating point operations of products and convolutions.
        parameters, gradients, optimizer, activations, communication: the bytes that it holds:
            activations are what the forward keeps for the backward, communication the tensors of
            collectives that are neither.
    """

    seconds: Range
    calls: tuple[Call, ...]
    flops: int
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    communication: int

    @property
    def traffic(self) -> int:
        """About how many bytes a step reads and writes.

        Forward and backward read the parameters and write the gradients; an optimizer reads both
        and writes the parameters, and reads and writes its states; an activation and its gradient
        are written and read.
        """
        return 6 * self.parameters + 2 * self.optimizer + 4 * self.activations


def trace(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss | None,
    example: Any,
    plan: Plan,
    threads: int,
) -> Traced:
    """Make some steps of a copy of a model, as rank 0 of a plan.

    Args:
        model, optimizer, loss, example: as for :func:`paddlempi.torch.apply`; they stay as they
            are.
        plan: any but a pipeline.
        threads: with which it computes.
    """
    with _quiet(), _threads(threads), fake_world(plan.nodes * plan.ranks):
        # Together, because they share the parameters.
        copied, its = copy.deepcopy((model, optimizer))
        wrapped, step, shard_batch = apply(copied, its, plan, loss=loss)
        part = shard_batch(example)
        seen = _seen(wrapped, step.optimizer, lambda: step(part), plan.ranks)
        return dataclasses.replace(seen, seconds=_timed(lambda: step(part)))


def plain(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss | None,
    part: Any,
    threads: int,
) -> Traced:
    """Make some steps of a copy of a model as it is.

    Args:
        part: of a batch, with which it computes.
    """
    with _quiet(), _threads(threads), fake_world(1):
        copied, its = copy.deepcopy((model, optimizer))

        def step() -> None:
            its.zero_grad()
            loss_of(copied, part, loss).backward()
            its.step()

        seen = _seen(copied, its, step, 1)
        return dataclasses.replace(seen, seconds=_timed(step))


def walk(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss | None,
    example: Any,
    plan: Plan,
) -> Traced:
    """Make steps of a model with tensors that have no values, as rank 0 of a plan.

    Args:
        model, optimizer: the plan is applied to themselves.

    Returns:
        What the rank does, without seconds.
    """
    with _quiet(), fake_world(plan.nodes * plan.ranks):
        if plan.kind == "ddp":  # it reads the memory of what it wraps
            part = batch_parts.cut(example, 0, plan.mesh["replicate"], "ddp")

            def alone() -> None:
                optimizer.zero_grad()
                loss_of(model, part, loss).backward()

            return _seen(model, optimizer, alone, plan.ranks)
        wrapped, step, shard_batch = apply(model, optimizer, plan, loss=loss)
        part = shard_batch(example)
        return _seen(wrapped, step.optimizer, lambda: step(part), plan.ranks)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out torch's warnings: those of the plan that is taken come with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    """Compute with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        gc.collect()  # what was copied has cycles


def _seen(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    step: Callable[[], object],
    ranks: int,
) -> Traced:
    """Make steps, and note what one of them calls and holds. The seconds are missing."""
    recorder = Recorder(ranks)
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model.register_comm_hook(None, _annotated(recorder.hook(model.process_group)))
    for _ in range(2):  # DDP makes its buckets anew after the first, optimizers their states
        step()
    recorder.calls.clear()
    kept, counted = _Kept(model), Flops()
    with recorder, counted, torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack):
        step()
    calls = tuple(recorder.calls)
    return Traced(
        seconds=Range(0.0, 0.0, 0.0),
        calls=calls,
        flops=counted.total,
        parameters=sum(_bytes(p) for p in model.parameters()),
        gradients=sum(_bytes(p) for p in model.parameters() if p.requires_grad),
        optimizer=sum(_bytes(t) for t in states(optimizer)),
        activations=kept.bytes,
        communication=_buffers(calls, sharded=hasattr(model, "unshard")),
    )


def _annotated(hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Give a hook the annotations that DDP checks, which are no texts."""
    bucket = torch.distributed.GradBucket
    hook.__annotations__ = {"bucket": bucket, "return": torch.futures.Future[torch.Tensor]}
    return hook


def _timed(step: Callable[[], object]) -> Range:
    """Return the seconds of a step."""
    gc.collect()
    gc.disable()
    try:
        took: list[float] = []
        end = time.perf_counter() + _SECONDS
        while len(took) < 3 or (len(took) < _STEPS and time.perf_counter() < end):
            began = time.perf_counter()
            step()
            took.append(time.perf_counter() - began)
    finally:
        gc.enable()
    took.sort()
    return Range(*(took[int(len(took) * part)] for part in (0.5, 0.25, 0.75)))


class _Kept:
    """The bytes that the forward keeps for the backward, each storage once, without parameters."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.bytes = 0
        self._own = {_local(p).untyped_storage()._cdata for p in model.parameters()}
        self._storages: dict[int, torch.UntypedStorage] = {}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = _local(tensor).untyped_storage()
        if storage._cdata not in self._own:
            self._storages[storage._cdata] = storage
        return tensor

    def unpack(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._storages:  # the backward begins; what FSDP has gathered is empty again
            self.bytes = sum(storage.nbytes() for storage in self._storages.values())
            self._storages.clear()
        return tensor


def _buffers(seen: tuple[Call, ...], sharded: bool) -> int:
    """Return the bytes of collectives' tensors: FSDP holds two units of both directions."""
    gathered = max((c.bytes for c in seen if c.operation == "all_gather"), default=0)
    scattered = max((c.bytes for c in seen if c.operation == "reduce_scatter"), default=0)
    waited = max((c.bytes for c in seen if c.waits), default=0)
    return waited + (2 * (gathered + scattered) if sharded else 0)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _bytes(tensor: torch.Tensor) -> int:
    return int(_local(tensor).nbytes)


def process(model: torch.nn.Module) -> int:
    """Return the bytes of this process that are in memory, without those of a model.

    They are code for the most part, also of the modules that a script has imported.
    """
    gc.collect()
    with contextlib.suppress(AttributeError):  # a C library without it gives back by itself
        ctypes.CDLL(None).malloc_trim(0)
    held = sum(t.nbytes for t in (*model.parameters(), *model.buffers()) if not t.is_meta)
    return here.resident() - int(held)


def states(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the tensors of an optimizer's states."""
    for state in optimizer.state.values():
        for value in state.values() if isinstance(state, Mapping) else ():
            if isinstance(value, torch.Tensor):
                yield value
