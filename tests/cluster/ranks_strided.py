"""Strided tensors over nodes, in pieces: on all ranks, and on the ranks of one node only."""

from __future__ import annotations

import numpy as np
import paddlempi as dist
import ranks_report

ROWS, COLUMNS = 1536, 2048  # 12 MiB of float32: two pieces in a collective
LONG = 2 * ROWS  # 24 MiB: a long message


def array(rows: int, strided: bool, dtype: str = "float32") -> np.ndarray:
    if strided:
        return np.zeros((rows, 2 * COLUMNS), dtype)[:, ::2]
    return np.zeros((rows, COLUMNS), dtype)


BASE = np.resize(np.arange(1009, dtype=np.float32), (LONG, COLUMNS))


def values(rank: int, rows: int = ROWS) -> np.ndarray:
    return BASE[:rows] + rank


def total(size: int) -> np.ndarray:
    return BASE[:ROWS] * size + size * (size - 1) // 2


def main() -> None:
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    tried, wrong = 0, []

    def see(right: bool, *what: object) -> None:
        nonlocal tried
        tried += 1
        if not right:
            wrong.append(repr(what))

    for strided in (True, rank == 0):
        x = array(ROWS, strided)
        x[...] = values(rank)
        dist.all_reduce(x)
        see((x == total(size)).all(), "all_reduce", strided)

        x[...] = values(rank)
        dist.broadcast(x, size - 1)
        see((x == values(size - 1)).all(), "broadcast", strided)

        share = ROWS // size
        x[...] = 0
        dist.all_gather_into_tensor(x, values(rank, share)[:, :])
        see((x == np.concatenate([values(r, share) for r in range(size)])).all(), "gather", strided)

        out = array(share, strided)
        x[...] = values(rank)
        dist.reduce_scatter_tensor(out, x)
        whole = total(size)
        see((out == whole[rank * share : (rank + 1) * share]).all(), "reduce_scatter", strided)

        # Rank r sends 8 * r rows more to the next rank, and so many less to itself.
        lengths = [[share] * size for _ in range(size)]
        for r in range(size):
            lengths[r][(r + 1) % size] += 8 * r
            lengths[r][r] -= 8 * r
        got = [lengths[r][rank] for r in range(size)]
        back = array(sum(got), strided)
        work = dist.all_to_all_single(back, x, got, lengths[rank], async_op=True)
        assert work is not None
        work.wait()
        parts = [np.split(values(r), np.cumsum(lengths[r])[:-1])[rank] for r in range(size)]
        see((back == np.concatenate(parts)).all(), "all_to_all", strided)

        long = array(LONG, strided)
        long[...] = values(rank, LONG)
        after, before = (rank + 1) % size, (rank - 1) % size
        dist.sendrecv(long, after, long, before)
        see((long == values(before, LONG)).all(), "sendrecv", strided)

        room = [array(LONG // 2, strided), array(LONG // 2, not strided)]
        work = dist.irecv(room, before)
        dist.send(long, after)
        work.wait()
        sent = values((rank - 2) % size, LONG)
        see((np.concatenate(room) == sent).all(), "a list", strided)
    dist.barrier()
    ranks_report.write({"tried": tried, "wrong": wrong})
    dist.destroy_process_group()


main()
