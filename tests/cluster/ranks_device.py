"""Every rank reports the results of operations on tensors in device memory."""

from __future__ import annotations

import os
import sys

import numpy as np
import paddlempi as dist
import ranks_report

sys.path.insert(0, os.environ["DEVICE_TENSORS"])
from device import DeviceTensor, calls  # from tests/helpers


def main() -> None:
    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    everyone = np.arange(size * 3000, dtype=np.float32).reshape(size, 3000)

    def tensor(values: np.ndarray) -> DeviceTensor:
        return DeviceTensor(np.array(values))

    reduced = tensor(everyone[rank])
    dist.all_reduce(reduced)
    later = tensor(everyone[rank])
    work = dist.all_reduce(later, async_op=True)
    work.wait()
    spread = tensor(everyone[rank])
    dist.broadcast(spread, src=size - 1)
    mixed = tensor(everyone[rank]) if rank % 2 else everyone[rank].copy()
    dist.all_reduce(mixed)
    got = tensor(np.zeros(3000, np.float32))
    to, source = (rank + size // 2) % size, (rank - size // 2) % size  # a rank on the other host
    sent = dist.isend(tensor(everyone[rank]), to)
    dist.recv(got, source)
    sent.wait()
    across = calls("cuIpcOpenMemHandle_v2")

    neighbours = [dist.new_group([i, i + 1]) for i in range(0, size, 2)][rank // 2]
    near = tensor(everyone[rank])
    dist.all_reduce(near, group=neighbours)
    first = rank // 2 * 2
    total = everyone.sum(0)
    ranks_report.write(
        {
            "rank": rank,
            "host": os.uname().nodename,
            "right": {
                "all_reduce": bool((reduced.numpy() == total).all()),
                "async": bool((later.numpy() == total).all()),
                "broadcast": bool((spread.numpy() == everyone[-1]).all()),
                "mixed": bool(((mixed.numpy() if rank % 2 else mixed) == total).all()),
                "recv": bool((got.numpy() == everyone[source]).all()),
                "near": bool((near.numpy() == everyone[first : first + 2].sum(0)).all()),
            },
            "mapped across hosts": across,
            "mapped on the host": calls("cuIpcOpenMemHandle_v2") - across,
        }
    )
    dist.barrier()


main()
