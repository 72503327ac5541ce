"""All of these tests run under the wheel of Open MPI. Some run under the other MPIs, too."""

from __future__ import annotations

from one_mpi import MPI, pytest_collection_modifyitems, pytest_configure

__all__ = ["pytest_collection_modifyitems", "pytest_configure"]

# Only MPICH can treat the ranks of one host as if they were on different hosts.
collect_ignore = [] if MPI == "mpich" else ["test_far_apart.py"]
