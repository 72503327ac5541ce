"""What runs before ``paddlempi`` is imported: at ``import torch``, and to find this process's rank.

``import torch`` calls this package in every process, so it imports neither ``paddlempi`` nor the
core, and nothing that takes long.

How is a rank found?

* ``mpi_launcher`` finds the MPI's launcher above this process, by the table ``known_launchers``.
* ``starters`` has the other programs that start ranks, torchrun and the like, and tells which of
  all is the nearest.
* ``torchrun_variables`` tells frameworks the rank, in the variables of torchrun.

What does ``import torch`` run?

* ``torch_autoload`` is its entry point.
* ``torch_stubs`` is what ``torch.distributed`` gets: backends, and stubs that load the front.

How ranks are started, and how they meet, is in ``paddlempi.startup``.
"""
