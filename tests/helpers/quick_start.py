"""Import it before jobs are started: Open MPI's ranks then begin a second sooner.

On a machine without a fabric, MPI_Init waits a second in Open MPI's transfer layer "ofi", in every
rank of every job: it asks libfabric for interfaces and finds none. Tests that start hundreds of
jobs do without this layer. ``tests/ranks`` and ``tests/cluster`` take Open MPI as it is installed.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMPI_MCA_btl", "^ofi")
