"""How the ranks of a world meet that no MPI's launcher has started.

* ``joining`` is one init: a meeting, and then the exchange for the core.
* ``meeting``: the ranks agree on the id of the world, so that none is of an earlier one.
* ``exchange``: words that the core exchanges over the store while it starts.
* ``stores``, ``file_store`` and ``tcp_store``: keys and values that the ranks share;
  ``init_method`` opens one.

docs/adr/0047-a-world-without-mpirun.md has the reasons.
"""
