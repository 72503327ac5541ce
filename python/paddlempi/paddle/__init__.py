"""``paddle.distributed`` over MPI, on the stock wheel.

::

    import paddlempi.paddle           # mpirun -np 4 python train.py
    import paddle.distributed as dist

    dist.init_parallel_env()
    dist.all_reduce(tensor)

The import replaces the functions of Paddle that make process groups. It also sets
``PADDLE_TRAINER_ID``, ``PADDLE_TRAINERS_NUM`` and similar variables from those of the launcher, if
they are not set. It does not start MPI.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from . import private  # noqa: F401 (first: it checks the names that the others use)
from .activation import init, install, installed, uninstall
from .compression import Cast, Compression
from .data_parallel import DataParallel
from .process_group import ProcessGroupMPI
from .task import Task

if _TYPE_CHECKING:
    from .parts.front import elastic
    from .parts.shards import Sharded
    from .planner import apply

__all__ = [
    "Cast",
    "Compression",
    "DataParallel",
    "ProcessGroupMPI",
    "Sharded",
    "Task",
    "apply",
    "elastic",
    "init",
    "install",
    "installed",
    "uninstall",
]

install()

# Of static programs, parameter servers, elastic jobs and plans. Imported when one is first used.
_LATER = {
    "DistributeTranspiler": "static_transpiler",
    "Sharded": "parts.shards",
    "StaticPlan": "static_transpiler",
    "apply": "planner",
    "elastic": "parts.front",
    "mpi_listenandserve": "static_operators",
    "mpi_recv": "static_operators",
    "mpi_send": "static_operators",
}


def __getattr__(name: str) -> _Any:
    if name in _LATER:
        return getattr(_import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
