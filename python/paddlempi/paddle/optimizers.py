"""What ``get_context()`` makes of Paddle's optimizers: averaged gradients, sharded states."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import paddle

from .. import group
from ..context import get_context
from ..errors import ArgumentError, NotInitializedError
from . import autograd, overlap, zero
from .parameters import parameters_of
from .patches import Replacement
from .reducer import Reducer, is_averaged
from .replicas import Buffers, broadcast_all, check_same

__all__ = ["apply_context", "replacements"]

_building: set[int] = set()
"""The ids of the optimizers whose ``__init__`` runs.

Not an attribute of the optimizer: one of auto-parallel passes its attributes to the one inside it.
"""


def replacements() -> list[Replacement]:
    """Return the replacements of every ``__init__``: some do not call that of their base class."""
    found: list[Replacement] = []
    classes = [paddle.optimizer.Optimizer]
    while classes:
        cls = classes.pop()
        classes += cls.__subclasses__()
        if "__init__" in vars(cls):
            found.append((cls, "__init__", _init(cls.__init__)))
    return found


def _init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        outermost = id(self) not in _building
        _building.add(id(self))
        try:
            original(self, *arguments, **named)
        finally:
            if outermost:
                _building.discard(id(self))
        if outermost:
            apply_context(self)
            overlap.register(self)

    return init


def apply_context(optimizer: Any) -> None:
    """Apply the context to a new optimizer. Collective if the context asks for anything.

    The ranks compare the parameters, which then become rank 0's. The gradients are averaged, unless
    a :class:`DataParallel` does that: the all_reduce of a bucket starts when backward has computed
    its gradients, and the end of backward waits for it.

    Raises:
        NotInitializedError: there is no world yet.
        ArgumentError: level 2 with a model inside DataParallel, which averages by itself; or an
            optimizer of Paddle's auto-parallel.
        MismatchError: the ranks' parameters differ.
    """
    context = get_context()
    level = context.zero_opt_level
    if not (context.enable_data_parallel or level) or not paddle.in_dynamic_mode():
        return
    if "_inner_opt" in vars(optimizer):  # of auto-parallel: it wraps an optimizer made before
        raise ArgumentError(
            f"get_context() asks for data parallelism, and {type(optimizer).__name__} is Paddle's "
            "own way to it: use one of the two"
        )
    # Compared by number, not by name. Paddle numbers layers in their names, and some ranks may
    # have built other layers before.
    parameters = [p for p in parameters_of(optimizer) if not p.stop_gradient]
    named = [(f"parameters[{number}]", p) for number, p in enumerate(parameters)]
    if not named:
        return
    world = _world()
    new = group.new_group(world._ranks)
    check_same(named, {"zero_opt_level": level, "size": context.group_bucket_size}, new)
    broadcast_all(parameters, new)
    if level < 2 and not is_averaged(parameters):
        autograd.watch()
        size = context.group_bucket_size
        buffers = Buffers(None, "local", new)
        reducer = Reducer(
            parameters=named,
            frozen=[],
            tables=[],
            group=new,
            limit=size,
            last_limit=size,
            find_unused=True,
            buffers=buffers,
        )
        reducer.prepare(True)
        optimizer._paddlempi_reducer = reducer
    if level:
        # A group of its own, because steps and backwards have no common order on all ranks.
        zero.shard(optimizer, level, group.new_group(world._ranks), context.group_bucket_size)


def _world() -> group.ProcessGroup:
    if group.WORLD is None:
        raise NotInitializedError(
            "get_context() asks the optimizers for data parallelism: call "
            "paddle.distributed.init_parallel_env() before building one"
        )
    return group.WORLD
