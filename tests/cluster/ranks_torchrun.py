"""A rank of torchrun: a sum in torch's default group."""

from __future__ import annotations

import ranks_report
import torch
import torch.distributed as dist
from paddlempi import _native

dist.init_process_group("mpi")
x = torch.full((3,), dist.get_rank() + 1.0)
dist.all_reduce(x)
core = _native.control("info")
ranks_report.write(
    {
        "rank": dist.get_rank(),
        "sum": x[0].item(),
        "transport": core["transport"],
        "mpi": core["mpi"]["name"],
    }
)
dist.destroy_process_group()
