"""``torch.distributed`` over MPI, on the stock wheels.

::

    import torch, paddlempi.torch            # the second is optional, see docs/torch.md
    torch.distributed.init_process_group("mpi")   # mpirun -np 4 python train.py

Importing it enters the backends ``mpi`` and ``paddlempi`` and sets ``RANK``, ``WORLD_SIZE``,
``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``GROUP_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT`` from the
launcher's variables where they are not set. Where the package is installed ``import torch`` alone
does that, but for jobs of one rank and addresses that are not sure. It starts no MPI.
"""

import paddlempi_autoload

from .activation import activate, init
from .process_group import ProcessGroupMPI
from .work import Work

__all__ = ["ProcessGroupMPI", "Work", "activate", "init"]

# torch's own "mpi", where it was built with one, gives way to whoever imports this himself.
paddlempi_autoload.register(replace_native=not paddlempi_autoload.lazily)
activate()
