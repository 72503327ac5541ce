"""Record the files that one call passes through, on rank 0. way.py runs this on every rank.

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
files: dict[str, None] = {}


def record(frame: FrameType, event: str, argument: object) -> None:
    if recording and event == "call" and frame.f_code.co_filename.startswith(package):
        files[frame.f_code.co_filename[len(package) + 1 :]] = None


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
        recording = is_recorder
        if is_recorder:
            assert core.pmpi_way_start() == 0
        loss.backward()

    return forward_and_back


is_recorder = False
threading.setprofile(record)
sys.setprofile(record)
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
is_recorder = dist.get_rank() == 0
if is_recorder and case != "ddp":
    recording = True
    assert core.pmpi_way_start() == 0
call()
if is_recorder:
    recording = False
    assert core.pmpi_way_stop(str(folder).encode()) == 0
    (folder / "python.json").write_text(json.dumps(list(files)))
sys.setprofile(None)
dist.barrier()
