"""Conway's game of life on a torus that is cut into blocks, one for each rank.

    mpirun -np 4 python examples/life.py        # any number of ranks, also one

A cell has eight neighbours, so the corners of a block's border matter too: halo_exchange fills them
in the same call. The border is as wide as --width: after one exchange the ranks compute that many
generations, and each time one cell less of the border is still right. At the end every rank also
computes the whole torus by itself, and compares its block.
"""

from __future__ import annotations

import argparse

import numpy as np
import paddlempi as dist


def generation(cells: np.ndarray) -> np.ndarray:
    """Return the next generation of all cells but the outermost ones."""
    rows = cells[:-2] + cells[1:-1] + cells[2:]
    around = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]  # the cell itself, too
    return ((around == 3) | ((around == 4) & (cells[1:-1, 1:-1] == 1))).astype(np.uint8)


def block(length: int, ranks: int, place: int) -> slice:
    """Return which part of a dimension a rank has."""
    return slice(length * place // ranks, length * (place + 1) // ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=90)
    parser.add_argument("--columns", type=int, default=131)
    parser.add_argument("--generations", type=int, default=120)
    parser.add_argument("--width", type=int, default=2)
    options = parser.parse_args()
    width = options.width
    if options.generations % width:
        parser.error("--generations must be a multiple of --width")

    dist.init_process_group("mpi")
    cart = dist.Cartesian([0, 0], periodic=True)
    lengths = (options.rows, options.columns)
    whole = (np.random.default_rng(7).random(lengths) < 0.3).astype(np.uint8)
    mine = tuple(block(n, d, x) for n, d, x in zip(lengths, cart.dims, cart.coords, strict=True))
    cells = np.pad(whole[mine], width)

    for _ in range(options.generations // width):
        cart.halo_exchange(cells, width)
        new = cells
        for _ in range(width):
            new = generation(new)
        cells[width:-width, width:-width] = new

    for _ in range(options.generations):
        whole = generation(np.pad(whole, 1, mode="wrap"))
    same = np.array([np.array_equal(cells[width:-width, width:-width], whole[mine])])
    alive = np.array([int(cells[width:-width, width:-width].sum())])
    dist.all_reduce(same, dist.ReduceOp.MIN)
    dist.all_reduce(alive)
    if dist.get_rank() == 0:
        print(f"{cart.dims[0]} x {cart.dims[1]} blocks, {alive[0]} cells live")
        print(f"equal to one process: {'yes' if same[0] else 'no'}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
