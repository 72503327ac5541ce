"""All of these tests run under the wheel of Open MPI. Some run under the other MPIs, too."""

from __future__ import annotations

from one_mpi import EVERYTHING, MPI, WHEEL, pytest_collection_modifyitems, pytest_configure

__all__ = ["pytest_collection_modifyitems", "pytest_configure"]

# Only MPICH can treat the ranks of one host as if they were on different hosts.
collect_ignore = [] if MPI == "mpich" else ["test_far_apart.py"]
# Other launchers than these two end all ranks when one dies.
if not EVERYTHING and MPI != "impi":
    collect_ignore.append("test_kill_points.py")
# Open MPI does not join two jobs.
if MPI == "openmpi":
    collect_ignore.append("test_joined.py")
# Intel MPI's launcher ends the job when a spawned process dies, and Debian's launchers may.
if MPI == "impi" or not WHEEL:
    collect_ignore.append("test_spawn_deaths.py")
# Debian's MPICH 4.0 can neither spawn nor join (docs/jobs.md); test_no_spawn.py shows its error.
if MPI == "mpich" and not WHEEL:
    collect_ignore += ["test_joined.py", "test_spawn.py", "test_spawn_deaths.py"]
# Debian's MPIs are older versions. These tests show nothing of the version of an MPI. Open MPI 4
# has another launcher than Open MPI 5, but MPICH 4 has that of MPICH 5.
if not WHEEL:
    collect_ignore.append("test_mapped_limits.py")
    if MPI == "mpich":
        collect_ignore += ["test_far_apart.py", "test_harness.py", "test_restart.py"]
        # A rank in a PID namespace does not see its launcher, and finds Debian's Open MPI first.
        collect_ignore.append("test_alive.py")
