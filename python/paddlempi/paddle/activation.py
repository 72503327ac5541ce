"""How ``paddle.distributed`` comes to be ours: what is replaced, and in which order."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import paddle.distributed as dist
from paddle.distributed import parallel

from .. import group as core_group
from . import (
    autograd,
    batch_norm,
    checkpoint,
    data_parallel,
    fleet,
    functions,
    optimizers,
    patches,
    private,
    world,
)

__all__ = ["init", "install", "installed", "uninstall"]

_ROOMS = (functions, fleet, checkpoint, autograd, batch_norm, data_parallel, optimizers)

_installed = False


def installed() -> bool:
    """Whether ``paddle.distributed`` is ours."""
    return _installed


def install() -> None:
    """Put our functions in the places of Paddle's. Starts no MPI; may be called again.

    Raises:
        UnsupportedError: a private name of Paddle has moved.
    """
    global _installed
    if _installed:
        return
    private.check()
    rows = patches.in_the_places_of(init_parallel_env, parallel, dist)
    for room in _ROOMS:
        rows += room.replacements()
    patches.replace(rows)
    _installed = True
    world.announce(True)


def uninstall() -> None:
    """Put Paddle's own back. The world is left as it is, and its environment until its end."""
    global _installed
    world.announce(False)
    patches.put_back()
    _installed = False


def init(timeout: timedelta | float = core_group.DEFAULT_TIMEOUT) -> Any:
    """Start MPI if it does not run and make Paddle's default group of all ranks."""
    install()
    return functions.make_default(timeout)


def init_parallel_env(nccl_config: Any = None) -> Any:
    return init()
