"""Run by way.py on every rank: notes what one call passes through, on rank 0.

probe.py CASE FOLDER
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import paddlempi as dist

case, folder = sys.argv[1], Path(sys.argv[2])
package = str(Path(dist.__file__).parent)
recording = False
seen: dict[str, None] = {}


def note(frame: FrameType, event: str, argument: object) -> None:
    if recording and event == "call" and frame.f_code.co_filename.startswith(package):
        seen[frame.f_code.co_filename[len(package) + 1 :]] = None


def numpy_case() -> Any:
    import numpy as np

    tensor = np.ones(4, np.float32)
    return lambda: dist.all_reduce(tensor)


def ddp_case() -> Any:
    import torch

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))

    def forward_and_back() -> None:
        loss = model(torch.ones(2, 8)).sum()
        global recording
        recording = was_asked
        if was_asked:
            assert core.pmpi_way_start() == 0
        loss.backward()

    return forward_and_back


was_asked = False
threading.setprofile(note)
sys.setprofile(note)
if case == "ddp":
    import torch.distributed

    torch.distributed.init_process_group("mpi")
else:
    dist.init_process_group("mpi")
core = ctypes.PyDLL(dist._native.core().__file__)
call = {"numpy": numpy_case, "ddp": ddp_case}[case]()
for _ in range(4):
    call()
dist.barrier()
was_asked = dist.get_rank() == 0
if was_asked and case != "ddp":
    recording = True
    assert core.pmpi_way_start() == 0
call()
if was_asked:
    recording = False
    assert core.pmpi_way_stop(str(folder).encode()) == 0
    (folder / "python.json").write_text(json.dumps(list(seen)))
sys.setprofile(None)
dist.barrier()
