"""Rank 1 ends with status 0 before init. Rank 0 is on its host, the other ranks are on another."""

from __future__ import annotations

import sys

import paddlempi as dist
from paddlempi.errors import TimeoutError
from paddlempi_bootstrap import mpi_launcher

place = mpi_launcher.find()
assert place is not None
if place.rank == 1:
    sys.exit()
try:
    dist.init_process_group(timeout=3)
except TimeoutError as error:
    print(f"rank {place.rank}: {error}", flush=True)
    sys.exit()
print(f"rank {place.rank}: a world of {dist.get_world_size()}", flush=True)
