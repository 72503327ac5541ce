"""A rank that no mpirun has started. argv[2] says what it does after the start."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from typing import Any

import numpy as np
import paddlempi as dist
import ranks_report
from paddlempi import _native

HOW = sys.argv[2]


def total() -> float:
    x = np.full(3, dist.get_rank() + 1.0)
    dist.all_reduce(x)
    return float(x[0])


def until_somebody_dies() -> None:
    while True:
        total()


def all_reduce_of_a_megabyte(info: dict[str, Any]) -> str:
    """Return the algorithm of an all_reduce of 1 MiB of float32."""
    rows = [r for r in info["algorithms"] if (r["operation"], r["dtype"]) == wanted]
    return str([r["algorithm"] for r in rows if r["from"] <= 1 << 20][-1])


wanted = ("all_reduce", "float32")

start = ranks_report.error_of(lambda: dist.init_process_group(timeout=timedelta(seconds=30)))
if start["error"]:
    ranks_report.write(start | {"rank": int(os.environ["RANK"])})
    raise SystemExit(1)
rank = dist.get_rank()
if HOW == "sum":
    core = _native.control("info")
    facts = {
        "rank": rank,
        "sum": total(),
        "node": core["node"],
        "transport": core["transport"],
        "all_reduce of a megabyte": all_reduce_of_a_megabyte(core),
        "variables": [name for name in os.environ if name.startswith("PMI")],
    }
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1000)
    dist.init_process_group(timeout=timedelta(seconds=30))
    ranks_report.write(facts | {"again": total()})
    dist.destroy_process_group()
elif rank == 1:
    total()
    if HOW == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(5)
else:
    ranks_report.write(ranks_report.error_of(until_somebody_dies) | {"rank": rank})
    sys.exit(11)
