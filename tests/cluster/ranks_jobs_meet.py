"""A job that accepts one of another host, or connects to it: messages, a merged group, a window."""

from __future__ import annotations

import sys

import numpy as np
import paddlempi as dist
import ranks_report


def main() -> None:
    role, address = sys.argv[2:]
    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    meet = dist.accept if role == "accept" else dist.connect
    with meet(address, secret="s3cret", timeout=60) as others:
        remote = others.remote_size()
        told = [None]
        for peer in range(remote):
            others.send_object_list([[role, rank]], peer)
        heard = []
        for _ in range(remote):
            source = others.recv_object_list(told)
            heard.append([source, told[0]])
        both = others.merge()
        x = np.full(100_000, 1.0 + both.rank(), np.float32)
        dist.all_reduce(x, group=both)
        window = dist.Window(20_000, group=both)
        beside = (both.rank() + 1) % both.size()
        window.put(np.full(20_000, both.rank(), np.float32), beside)
        window.fence()
        put = float(window.local[0]), float(window.local[-1])
        window.free()
        place = both.rank()
    dist.barrier()
    ranks_report.write(
        {
            "rank": rank,
            "role": role,
            "size": size,
            "remote": remote,
            "heard": sorted(heard),
            "sums": [float(x.min()), float(x.max())],
            "place": place,
            "put": put,
        }
    )
    dist.destroy_process_group()


main()
