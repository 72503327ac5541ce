"""How this process comes to be a rank of a world: how ranks are found, started, and how they meet.

How are ranks found?

* ``worlds`` says which world this process joins, from one table. Which program has started the
  process, ``paddlempi_bootstrap`` finds out, which does not need this package.
* ``core_init`` begins that world: the core's ``init``, with a rendezvous before where MPI does not
  know the ranks.
* ``paddle_variables`` tells Paddle the rank; ``unused_rank`` warns of a rank that never used MPI.

How are ranks started?

* ``launch`` is ``paddlempi.launch``: a function in several processes.
* ``cli.local_ranks`` is ``python -m paddlempi run -np``: a script in several processes.
* ``cpu_binding`` says which CPUs these two bind a rank to, if they are told to.
* ``testing.launch`` is ``python -m paddlempi.testing.launch``: a command under an MPI's ``mpirun``.

How do ranks meet? See ``rendezvous``.

The modules are imported when a program first needs them.
"""
