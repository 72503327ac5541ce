"""What ``get_context()`` asks of Paddle's optimizers: averaged gradients, sharded states."""

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
from .reducer import Reducer, averaged
from .replicas import Buffers, broadcast_all, check_same

__all__ = ["built", "replacements"]

_building: set[int] = set()
"""Optimizers whose ``__init__`` runs, by id: auto-parallel's have no attributes of their own."""


def replacements() -> list[Replacement]:
    """What stands in the places of the optimizers' ``__init__``; not all call their base's."""
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
            built(self)
            overlap.know(self)

    return init


def built(optimizer: Any) -> None:
    """An optimizer was built: do what the context says. Collective where it says something.

    Parameters and their initial values are compared and become rank 0's. Where no
    :class:`DataParallel` averages the gradients, they are averaged here: those of a bucket
    as soon as backward has them all, waited for at the end of backward.

    Raises:
        NotInitializedError: there is no world yet.
        ArgumentError: level 2 with a model inside DataParallel, which averages by itself; an
            optimizer of Paddle's auto-parallel.
        MismatchError: the ranks' parameters differ.
    """
    context = get_context()
    level = context.zero_opt_level
    if not (context.enable_data_parallel or level) or not paddle.in_dynamic_mode():
        return
    if "_inner_opt" in vars(optimizer):  # auto-parallel's, around one that was built before
        raise ArgumentError(
            f"get_context() asks for data parallelism, and {type(optimizer).__name__} is Paddle's "
            "own way to it: use one of the two"
        )
    # By number: Paddle counts in the names of layers, and a rank may have built more of them.
    parameters = [p for p in parameters_of(optimizer) if not p.stop_gradient]
    named = [(f"parameters[{number}]", p) for number, p in enumerate(parameters)]
    if not named:
        return
    world = _world()
    own = group.new_group(world._ranks)
    check_same(named, {"zero_opt_level": level, "size": context.group_bucket_size}, own)
    broadcast_all(parameters, own)
    if level < 2 and not averaged(parameters):
        autograd.watch()
        size = context.group_bucket_size
        buffers = Buffers(None, "local", own)
        reducer = Reducer(
            parameters=named,
            frozen=[],
            tables=[],
            group=own,
            limit=size,
            last_limit=size,
            find_unused=True,
            buffers=buffers,
        )
        reducer.prepare(True)
        optimizer._paddlempi_reducer = reducer
    if level:
        # Steps and backwards are ordered each by itself: groups of their own.
        zero.shard(optimizer, level, group.new_group(world._ranks), context.group_bucket_size)


def _world() -> group.ProcessGroup:
    if group.WORLD is None:
        raise NotInitializedError(
            "get_context() asks the optimizers for data parallelism: call "
            "paddle.distributed.init_parallel_env() before building one"
        )
    return group.WORLD
