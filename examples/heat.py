"""The heat equation on a plate that is cut into blocks, one for each rank.

    mpirun -np 4 python examples/heat.py        # any number of ranks, also one

The edge of the plate has fixed temperatures. In each step a cell comes nearer to the mean of its
four neighbours, some of which another rank has: halo_exchange puts them into the border of this
rank's block. While it is under way, the ranks compute the cells that need no border. At the end
every rank also computes the whole plate by itself, and compares its block bit for bit.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import paddlempi as dist


def start(rows: int, columns: int) -> np.ndarray:
    """Return the plate with its edge, at the beginning."""
    plate = np.zeros((rows + 2, columns + 2), np.float32)
    plate[0] = 100
    plate[:, 0] = np.linspace(100, 0, rows + 2, dtype=np.float32)
    plate[-1] = np.sin(np.arange(columns + 2, dtype=np.float32)) * 20
    return plate


def step(old: np.ndarray, new: np.ndarray) -> None:
    """Compute the inner cells of ``new``."""
    inner = old[1:-1, 1:-1]
    around = (old[:-2, 1:-1] + old[2:, 1:-1]) + (old[1:-1, :-2] + old[1:-1, 2:])
    new[1:-1, 1:-1] = inner + np.float32(0.2) * (around - np.float32(4) * inner)


def overlapped(cart: dist.Cartesian, old: np.ndarray, new: np.ndarray) -> None:
    """Compute a step while the borders of ``old`` travel."""
    exchange = cart.halo_exchange(old, 1, async_op=True)
    step(old[1:-1, 1:-1], new[1:-1, 1:-1])  # all cells whose neighbours are inside
    exchange.wait()
    for part in (np.s_[:3], np.s_[-3:]):
        step(old[part], new[part])
        step(old[:, part], new[:, part])


def block(length: int, ranks: int, place: int) -> slice:
    """Return which part of a dimension a rank has."""
    return slice(length * place // ranks, length * (place + 1) // ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=150)
    parser.add_argument("--columns", type=int, default=101)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()

    dist.init_process_group("mpi")
    cart = dist.Cartesian([0, 0])
    whole = start(options.rows, options.columns)
    lengths = (options.rows, options.columns)
    mine = [block(n, d, x) for n, d, x in zip(lengths, cart.dims, cart.coords, strict=True)]
    # This rank's block, and the border around it.
    with_border = tuple(slice(part.start, part.stop + 2) for part in mine)
    old, new = dist.zeros([part.stop - part.start + 2 for part in mine], "float32"), None
    old[...] = whole[with_border]
    new = dist.empty_like(old)
    new[...] = old

    began = time.perf_counter()
    for _ in range(options.steps):
        overlapped(cart, old, new)
        old, new = new, old
    seconds = time.perf_counter() - began

    alone, next_ = whole, whole.copy()
    for _ in range(options.steps):
        step(alone, next_)
        alone, next_ = next_, alone
    same = np.array([np.array_equal(old[1:-1, 1:-1], alone[1:-1, 1:-1][tuple(mine)])])
    dist.all_reduce(same, dist.ReduceOp.MIN)
    if dist.get_rank() == 0:
        print(f"{cart.dims[0]} x {cart.dims[1]} blocks, {options.steps} steps in {seconds:.3f} s")
        print(f"equal bit for bit to one process: {'yes' if same[0] else 'no'}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
