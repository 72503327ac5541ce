"""``torch.distributed`` over MPI, on the stock wheels.

::

    import torch, paddlempi.torch            # the second is optional, see docs/torch.md
    torch.distributed.init_process_group("mpi")   # mpirun -np 4 python train.py

Importing this module registers the backends ``mpi`` and ``paddlempi``. It also sets ``RANK``,
``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``GROUP_RANK``, ``MASTER_ADDR`` and
``MASTER_PORT`` from the launcher's variables, unless they are set. It does not start MPI. If the
package is installed, ``import torch`` does the same, but it sets no variables where they could
mislead a program (docs/torch.md).
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from paddlempi_bootstrap import torch_stubs

from .activation import activate, init
from .process_group import ProcessGroupMPI
from .work import Work

if _TYPE_CHECKING:
    from .parts.batches import Batches, Sampler
    from .parts.front import elastic
    from .parts.shards import Sharded
    from .planner.apply import apply
    from .planner.dtensor_costs import use_measured_costs
    from .planner.predict import plan

__all__ = [
    "Batches",
    "ProcessGroupMPI",
    "Sampler",
    "Sharded",
    "Work",
    "activate",
    "apply",
    "elastic",
    "init",
    "plan",
    "use_measured_costs",
]

# A user who imports this module wants our "mpi" also in a torch that was built with an MPI.
torch_stubs.register(replace_native=not torch_stubs.lazily)
activate()


# Of elastic jobs and of plans. Imported when one is first used.
_LATER = {
    "Batches": ".parts.batches",
    "Sampler": ".parts.batches",
    "Sharded": ".parts.shards",
    "apply": ".planner.apply",
    "elastic": ".parts.front",
    "plan": ".planner.predict",
    "use_measured_costs": ".planner.dtensor_costs",
}


def __getattr__(name: str) -> _Any:
    if name in _LATER:
        return getattr(_import_module(_LATER[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
