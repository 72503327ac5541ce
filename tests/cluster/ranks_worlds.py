"""Worlds with groups are made and destroyed, one after another. Then the program ends."""

from __future__ import annotations

import numpy as np
import paddlempi as dist
import ranks_report


def main() -> None:
    for _ in range(3):
        dist.init_process_group()
        rank = dist.get_rank()
        for ranks in ([0, 2], [3, 1, 2], [1, 0]):
            group = dist.new_group(ranks)
            if rank in ranks:
                dist.all_reduce(np.ones(4, np.float32), group=group)
        x = np.ones(1, np.float32)
        dist.all_reduce(x)
        dist.destroy_process_group()
    ranks_report.write({"rank": rank, "sum": int(x[0])})


main()
