"""What ``fleet`` asks for: the world at ``fleet.init``, and small arrays and numbers over MPI."""

from __future__ import annotations

from typing import Any

import numpy as np
from paddle.distributed.fleet.base.role_maker import PaddleCloudRoleMaker

from .. import collectives, group, objects
from ..errors import ArgumentError
from ..reduce_op import ReduceOp
from . import world
from .patches import Replacement

__all__ = ["Workers", "replacements"]

_MODES = {"sum": ReduceOp.SUM, "min": ReduceOp.MIN, "max": ReduceOp.MAX}


class Workers:
    """In the place of a role maker's ``Gloo``, with its methods.

    In collective mode every rank is a worker, so that ``"worker"`` and ``"all"`` are the same.
    All methods are collective over the world.
    """

    def barrier(self, comm_world: str) -> None:
        """Return when every worker has called it."""
        _check(comm_world)
        collectives.barrier()

    def all_reduce(self, input: Any, mode: str = "sum", comm_world: str = "worker") -> Any:
        """The reduction of the workers' arrays (or nested lists of numbers), element by element."""
        _check(comm_world)
        if mode not in _MODES:
            raise ArgumentError(f"all_reduce: mode={mode!r}: it must be one of {', '.join(_MODES)}")
        result = np.array(input)
        collectives.all_reduce(result, _MODES[mode])
        return result

    def all_gather(self, input: Any, comm_world: str = "worker") -> list[Any]:
        """Every worker's value, in the order of the ranks."""
        _check(comm_world)
        found: list[Any] = [None] * group.get_world_size()
        objects.all_gather_object(found, input)
        return found


def _check(comm_world: str) -> None:
    if comm_world not in ("worker", "all"):
        raise ArgumentError(
            f"comm_world={comm_world!r}: in collective mode there are workers only: "
            "it must be 'worker' or 'all'"
        )


def replacements() -> list[Replacement]:
    """Before a role maker reads the environment, which must say by then what MPI says."""
    generate = PaddleCloudRoleMaker._generate_role

    def generate_role(self: Any) -> Any:
        if self._is_collective and not self._role_is_generated:
            world.start(group.DEFAULT_TIMEOUT)
            self._gloo = Workers()
        return generate(self)

    return [(PaddleCloudRoleMaker, "_generate_role", generate_role)]
