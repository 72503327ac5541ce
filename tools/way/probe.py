"""Record the functions that a call enters, on rank 0, some times. way.py runs this on every rank.

probe.py CASE LIB FOLDER
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

case, lib, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
sys.path.insert(0, lib)

import paddlempi as dist  # noqa: E402 - of LIB

WARM, TIMES = 4, 20  # calls before the records, and records
LATE = 0.05  # seconds that rank 0 comes after the others, so that it seldom waits for them
package = str(Path(dist.__file__).parent)
is_recorder = recording = False
entries: list[tuple[int, int, str, str]] = []  # time, thread, file, function


def record(frame: FrameType, event: str, argument: object) -> None:
    code = frame.f_code
    if recording and event == "call" and code.co_filename.startswith(package):
        qualified = getattr(code, "co_qualname", code.co_name)  # Python 3.10 has only co_name
        name = qualified.replace(".<locals>", "").partition(".<")[0]
        file = code.co_filename[len(package) + 1 :]
        entries.append((time.monotonic_ns(), threading.get_native_id(), file, name))


def begin() -> None:
    global recording
    if is_recorder:
        time.sleep(LATE)
        core.pmpi_way_start()
        recording = True


def array_case(count: int, in_heap: bool) -> Callable[[], None]:
    import numpy as np

    array = dist.empty(count) if in_heap else np.empty(count, np.float32)
    array[:] = 1

    def call() -> None:
        begin()
        dist.all_reduce(array)

    return call


def message_case() -> Callable[[], None]:
    """Send 8 bytes to rank 1, or receive them from it, which has called before."""
    import numpy as np

    array = np.ones(8, np.uint8)

    def call() -> None:
        other, sends = 1 - dist.get_rank(), (case == "send") == (dist.get_rank() == 0)
        begin()
        if sends:
            dist.send(array, other)
        else:
            dist.recv(array, other)

    return call


def ddp_case() -> Callable[[], None]:
    import torch

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))

    def forward_and_back() -> None:
        loss = model(torch.ones(2, 8)).sum()
        begin()
        loss.backward()

    return forward_and_back


if case == "ddp":
    import torch.distributed

    # The threads of the package begin after this. An import would take long under a profiler.
    threading.setprofile(record)
    torch.distributed.init_process_group("mpi")
    call = ddp_case()
else:
    threading.setprofile(record)
    dist.init_process_group("mpi")
    if case in ("send", "recv"):
        call = message_case()
    else:
        call = array_case((16 << 20) // 4 if case == "mapped" else 4, case == "mapped")
core = ctypes.PyDLL(dist._native.core().__file__)
for i in range(WARM + TIMES):
    dist.barrier()
    is_recorder = dist.get_rank() == 0 and i >= WARM
    sys.setprofile(record if is_recorder else None)
    call()
    sys.setprofile(None)
    if is_recorder:
        recording = False
        assert core.pmpi_way_stop(str(folder / f"{i}.core").encode()) == 0
        (folder / f"{i}.json").write_text(json.dumps(entries))
        entries.clear()
dist.barrier()
