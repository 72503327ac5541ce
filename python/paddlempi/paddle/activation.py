"""Installs this front: the functions of ``paddle.distributed`` that it replaces, and when."""

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

_MODULES = (functions, fleet, checkpoint, autograd, batch_norm, data_parallel, optimizers)

_installed = False


def installed() -> bool:
    """Return whether ``paddle.distributed`` calls paddlempi."""
    return _installed


def install() -> None:
    """Replace Paddle's functions by those of paddlempi. Does not start MPI; may be called again.

    Raises:
        UnsupportedError: Paddle lacks a private name that paddlempi uses.
    """
    global _installed
    if _installed:
        return
    private.check()
    rows = patches.replacements_for(init_parallel_env, parallel, dist)
    for module in _MODULES:
        rows += module.replacements()
    patches.replace(rows)
    _installed = True
    world.export_environment(True)


def uninstall() -> None:
    """Restore Paddle's functions.

    A world that exists is left as it is, and so are the environment variables set for it, until it
    is destroyed.
    """
    global _installed
    world.export_environment(False)
    patches.put_back()
    _installed = False


def init(timeout: timedelta | float = core_group.DEFAULT_TIMEOUT) -> Any:
    """Start MPI if it does not run, and return Paddle's default group of all ranks."""
    install()
    return functions.make_default(timeout)


def init_parallel_env(nccl_config: Any = None) -> Any:
    return init()
