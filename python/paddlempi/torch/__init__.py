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

from paddlempi_bootstrap import torch_stubs

from .activation import activate, init
from .process_group import ProcessGroupMPI
from .work import Work

__all__ = ["ProcessGroupMPI", "Work", "activate", "init"]

# A user who imports this module wants our "mpi" also in a torch that was built with an MPI.
torch_stubs.register(replace_native=not torch_stubs.lazily)
activate()
