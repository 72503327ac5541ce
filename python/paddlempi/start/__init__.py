"""A world whose ranks no MPI's launcher has started: which it is, and how they meet.

* ``worlds`` says which world a process joins, from one table.
* ``stores``, ``file_store``, ``tcp_store`` and ``methods``: keys and values that the ranks share.
* ``meeting``: the ranks agree on the id of the world, so that none is of an earlier one.
* ``exchange``: words that the core exchanges over the store while it starts.
* ``joining`` is all of that for one init; ``beginning`` starts the core, with it or without.

The modules are imported when a program first needs them. docs/adr/0047-a-world-without-mpirun.md
has the reasons.
"""
